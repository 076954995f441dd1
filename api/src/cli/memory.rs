//! `exoprobe x` and `exoprobe disas`.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, printable, table};
use super::typed;
use crate::client::{ApiPath, ClientError};

/// Bytes of a line.
const LINE: usize = 16;

const EXAMPLES: &str = "\
Examples:
  exoprobe x jiffies 8
  exoprobe x 0xffffffff81000000 256
  exoprobe x --vcpu 1 %sp 128
  exoprobe x --type file %di
  exoprobe x --type task_struct init_task
  exoprobe x --pid 1 0x400000

A register is that of a vCPU. An address of user mode is of the task --pid, or else of what the vCPU
runs. Numbers of a type are shown by their declarations, other members as bytes.";

/// Arguments of `x`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MemoryArgs {
    /// Where: an address, SYMBOL[+OFFSET], or a register, %REG[+OFFSET]
    #[arg(value_name = "AT")]
    at: String,
    /// How many bytes, 65536 at most
    #[arg(value_name = "LEN", default_value_t = 64)]
    len: usize,
    /// Show the memory as a type of the kernel's: a struct with its members
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "len")]
    type_name: Option<String>,
    /// The vCPU of the register and of the address: 0 unless given
    #[arg(long, conflicts_with = "pid")]
    vcpu: Option<u8>,
    /// The task of an address of user mode, running or not
    #[arg(long)]
    pid: Option<u32>,
}

impl MemoryArgs {
    fn path(&self, len: u64) -> ApiPath {
        let path = ApiPath::new(&["memory"]).query("at", &self.at).query("len", len);
        path.query_if("vcpu", self.vcpu).query_if("pid", self.pid)
    }
}

/// Arguments of `disas`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  exoprobe disas vfs_read\n  exoprobe disas 0xffffffff81000010")]
pub(super) struct CodeArgs {
    /// A function, or an address in it
    #[arg(value_name = "AT")]
    at: String,
}

#[derive(Deserialize)]
struct Memory {
    addr: String,
    bytes: String,
}

#[derive(Deserialize)]
struct CodeLine {
    addr: String,
    bytes: String,
    text: String,
    target: Option<String>,
    probes: Vec<String>,
    source: Option<String>,
}

/// Prints memory of the guest.
pub(super) async fn memory(context: &mut Context<'_>, args: &MemoryArgs) -> Result<(), CliError> {
    if let Some(name) = &args.type_name {
        return value(context, args, name).await;
    }
    let answer = context.client.get(&args.path(args.len as u64)).await?;
    let Some(Memory { addr, bytes }) = context.read(&answer)? else { return Ok(()) };
    let start = u64::from_str_radix(addr.trim_start_matches("0x"), 16).unwrap_or_default();
    let pairs: Vec<&str> =
        bytes.as_bytes().chunks(2).filter_map(|p| str::from_utf8(p).ok()).collect();
    for (line, pairs) in (0u64..).zip(pairs.chunks(LINE)) {
        let at = start.wrapping_add(line * LINE as u64);
        let text: String = pairs.iter().map(|pair| shown(pair)).collect();
        let width = 3 * LINE - 1;
        writeln!(context.out, "{at:#018x}  {:width$}  {text}", pairs.join(" "))?;
    }
    Ok(())
}

/// Prints memory as a value of a type.
async fn value(context: &mut Context<'_>, args: &MemoryArgs, name: &str) -> Result<(), CliError> {
    let found = context.client.get(&ApiPath::new(&["types", name])).await?;
    let found: Value = serde_json::from_slice(&found).map_err(ClientError::from)?;
    let size = found["size"].as_u64().ok_or_else(|| CliError::NoValue(name.to_owned()))?;
    let answer = context.client.get(&args.path(size)).await?;
    let memory: Memory = serde_json::from_slice(&answer).map_err(ClientError::from)?;
    let pairs = memory.bytes.as_bytes().chunks(2).filter_map(|pair| str::from_utf8(pair).ok());
    let bytes: Vec<u8> = pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect();
    let mut shown = typed::with_values(found, &bytes);
    if context.json {
        shown["addr"] = memory.addr.into();
        return Ok(context.print_json(&shown.to_string())?);
    }
    Ok(write!(context.out, "{}: {}", memory.addr, typed::text(&shown))?)
}

/// A byte as a character, where it is one that a terminal may be shown.
fn shown(pair: &str) -> char {
    let byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' }
}

/// Prints a function of the guest's kernel.
pub(super) async fn code(context: &mut Context<'_>, args: &CodeArgs) -> Result<(), CliError> {
    let path = ApiPath::new(&["disassembly"]).query("at", &args.at);
    let answer = context.client.get(&path).await?;
    let Some(lines) = context.read::<Vec<CodeLine>>(&answer)? else { return Ok(()) };
    let sources: Vec<Option<String>> = lines.iter().map(|line| line.source.clone()).collect();
    let columns = ["ADDR", "BYTES", "INSTRUCTION", "TARGET", "PROBES"].map(Column::Text);
    let rows = lines.into_iter().map(|line| {
        let target = line.target.unwrap_or_default();
        vec![line.addr, line.bytes, line.text, target, line.probes.join(" ")]
    });
    let table = table(&columns, rows);
    let mut shown = table.lines();
    writeln!(context.out, "{}", shown.next().unwrap_or_default())?;
    // Each row is one line.
    for (line, source) in shown.zip(sources) {
        if let Some(source) = source {
            writeln!(context.out, "; {}", printable(&source))?;
        }
        writeln!(context.out, "{line}")?;
    }
    Ok(())
}
