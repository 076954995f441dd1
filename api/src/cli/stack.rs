//! `exoprobe stack`.

use clap::Args;
use serde::Deserialize;

use super::context::Context;
use super::error::CliError;
use super::format::printable;
use crate::client::ApiPath;

const EXAMPLES: &str = "\
Examples:
  exoprobe stack 0
  exoprobe stack --pid 1
  exoprobe --json stack 1 | jq -r '.[].symbol_name'";

/// Arguments of `stack`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StackArgs {
    /// Which vCPU, from 0
    #[arg(value_name = "VCPU", required_unless_present = "pid", conflicts_with = "pid")]
    vcpu: Option<u8>,
    /// A task instead, running or not: the number of a process or thread (needs the kernel's types)
    #[arg(long)]
    pid: Option<u32>,
}

#[derive(Deserialize)]
struct Frame {
    addr: String,
    symbol_name: Option<String>,
    offset: u64,
    size: u64,
    user: bool,
}

/// Prints the back-trace of a vCPU or a task.
pub(super) async fn run(context: &mut Context<'_>, args: &StackArgs) -> Result<(), CliError> {
    let path = match args.pid {
        Some(pid) => ApiPath::new(&["tasks", &pid.to_string(), "stack"]),
        None => ApiPath::new(&["vcpus", &args.vcpu.unwrap_or_default().to_string(), "stack"]),
    };
    let answer = context.client.get(&path).await?;
    let Some(frames) = context.read::<Vec<Frame>>(&answer)? else { return Ok(()) };
    for frame in &frames {
        writeln!(context.out, " => {}", printable(&shown(frame)))?;
    }
    Ok(())
}

/// A place as the kernel shows it.
fn shown(frame: &Frame) -> String {
    let Frame { addr, symbol_name, offset, size, user } = frame;
    match symbol_name {
        Some(name) => format!("{name}+{offset:#x}/{size:#x}"),
        None if *user => format!("{addr} (user)"),
        None => addr.clone(),
    }
}
