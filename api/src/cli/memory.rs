//! `exoprobe x` and `exoprobe disas`.

use clap::Args;
use serde::Deserialize;

use super::Context;
use super::error::CliError;
use super::format::{Column, printable, table};
use crate::client::ApiPath;

/// Bytes of a line.
const LINE: usize = 16;

/// Arguments of `x`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  exoprobe x jiffies 8\n  exoprobe x 0xffffffff81000000 256")]
pub(super) struct MemoryArgs {
    /// Where: an address, or SYMBOL[+OFFSET]
    #[arg(value_name = "AT")]
    at: String,
    /// How many bytes, 65536 at most
    #[arg(value_name = "LEN", default_value_t = 64)]
    len: usize,
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

/// Prints memory of the guest's kernel.
pub(super) async fn memory(context: &mut Context<'_>, args: &MemoryArgs) -> Result<(), CliError> {
    let path = ApiPath::new(&["memory"]).query("at", &args.at).query("len", args.len);
    let answer = context.client.get(&path).await?;
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
