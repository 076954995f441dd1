//! `exoprobe symbols`.

use clap::Args;
use serde::Deserialize;

use super::context::Context;
use super::definitions::is_source_line;
use super::error::CliError;
use super::format::{Column, printable, table};
use crate::client::ApiPath;
use crate::log::say;

const EXAMPLES: &str = "\
Examples:
  exoprobe symbols vfs_read
  exoprobe symbols 'vfs_*' --limit 20
  exoprobe symbols 'ext4:*read*'
  exoprobe symbols 0xffffffff81000010
  exoprobe symbols kernel/sys.c:950
  exoprobe --json symbols '*_openat*'";

/// Arguments of `symbols`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SymbolsArgs {
    /// A name; `*` stands for any run of characters, `?` for any one. Or an address (0x...), as with --at; or
    /// FILE:LINE of the source: the functions that have code of it
    #[arg(value_name = "NAME", required_unless_present = "at")]
    name: Option<String>,
    /// Instead: the function that has this address, and its source line where a file tells it
    #[arg(long, value_name = "ADDR", conflicts_with = "name")]
    at: Option<String>,
    /// Most symbols to print, 10000 at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Deserialize)]
struct Symbol {
    name: String,
    addr: String,
    size: u64,
    kind: String,
    module: Option<String>,
    offset: Option<u64>,
    source: Option<Source>,
}

#[derive(Deserialize)]
struct Source {
    file: String,
    line: u32,
    column: Option<u32>,
    inlined: Vec<InlinedCall>,
}

#[derive(Deserialize)]
struct InlinedCall {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

/// Prints symbols of the guest's kernel.
pub(super) async fn run(context: &mut Context<'_>, args: &SymbolsArgs) -> Result<(), CliError> {
    let is_address = args.name.as_ref().is_some_and(|name| name.starts_with("0x"));
    let (name, at) = if is_address {
        (None, args.name.as_ref())
    } else {
        (args.name.as_ref(), args.at.as_ref())
    };
    let (name, line) = match name {
        Some(name) if is_source_line(name) => (None, Some(name)),
        name => (name, None),
    };
    let path = ApiPath::new(&["symbols"]).query_if("name", name).query_if("at", at);
    let path = path.query_if("line", line);
    let answer = context.client.get(&path.query("limit", args.limit)).await?;
    let Some(symbols) = context.read::<Vec<Symbol>>(&answer)? else { return Ok(()) };
    let is_full = symbols.len() == args.limit && at.is_none();
    let sources: Vec<String> =
        symbols.iter().filter_map(|symbol| symbol.source.as_ref()).map(source_text).collect();
    let columns =
        [Column::Text("ADDR"), Column::Number("SIZE"), Column::Text("KIND"), Column::Text("NAME")];
    let rows = symbols.into_iter().map(|symbol| {
        let name = match symbol.offset {
            Some(offset) => format!("{}+{offset:#x}", symbol.name),
            None => symbol.name,
        };
        let name = match symbol.module {
            Some(module) => format!("{name} [{module}]"),
            None => name,
        };
        vec![symbol.addr, symbol.size.to_string(), symbol.kind, name]
    });
    writeln!(context.out, "{}", table(&columns, rows))?;
    for source in sources {
        writeln!(context.out, "{source}")?;
    }
    if is_full {
        say!("there may be more: give --limit");
    }
    Ok(())
}

/// A line of the source, and below it the inlined calls that it is in, innermost first.
fn source_text(source: &Source) -> String {
    let Source { file, line, column, inlined } = source;
    let mut text = printable(&format!("{file}:{line}"));
    if let Some(column) = column {
        text.push_str(&format!(":{column}"));
    }
    for call in inlined {
        let mut shown = call.function.clone().unwrap_or_else(|| "?".to_owned());
        if let (Some(file), Some(line)) = (&call.file, call.line) {
            shown.push_str(&format!(", inlined at {file}:{line}"));
        }
        text.push_str(&format!("\n  in {}", printable(&shown)));
    }
    text
}
