//! `exoprobe modules`.

use serde::Deserialize;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::ApiPath;

pub(super) const EXAMPLES: &str = "\
Examples:
  exoprobe modules
  exoprobe --json modules
  exoprobe symbols 'ext4:*read*'
  exoprobe probe add 'p:read ext4:ext4_file_read_iter'";

#[derive(Deserialize)]
struct Module {
    name: String,
    state: String,
    addr: String,
    size: u64,
    symbols: usize,
    probes: Vec<String>,
}

/// Prints the guest's modules.
pub(super) async fn run(context: &mut Context<'_>) -> Result<(), CliError> {
    let answer = context.client.get(&ApiPath::new(&["modules"])).await?;
    let Some(modules) = context.read::<Vec<Module>>(&answer)? else { return Ok(()) };
    let columns = [
        Column::Text("NAME"),
        Column::Text("STATE"),
        Column::Text("TEXT"),
        Column::Number("SIZE"),
        Column::Number("SYMBOLS"),
        Column::Text("PROBES"),
    ];
    let rows = modules.into_iter().map(|module| {
        let Module { name, state, addr, size, symbols, probes } = module;
        let probes = if probes.is_empty() { "-".to_owned() } else { probes.join(",") };
        vec![name, state, addr, size.to_string(), symbols.to_string(), probes]
    });
    Ok(writeln!(context.out, "{}", table(&columns, rows))?)
}
