//! `exoprobe symbols`.

use clap::Args;
use serde::Deserialize;

use super::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::ApiPath;

const EXAMPLES: &str = "\
Examples:
  exoprobe symbols vfs_read
  exoprobe symbols 'vfs_*' --limit 20
  exoprobe symbols 'ext4:*read*'
  exoprobe symbols --at 0xffffffff81000010
  exoprobe --json symbols '*_openat*'";

/// Arguments of `symbols`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SymbolsArgs {
    /// A name; `*` stands for any run of characters, `?` for any one
    #[arg(value_name = "NAME", required_unless_present = "at")]
    name: Option<String>,
    /// Instead: the function that has this address
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
}

/// Prints symbols of the guest's kernel.
pub(super) async fn run(context: &mut Context<'_>, args: &SymbolsArgs) -> Result<(), CliError> {
    let path = ApiPath::new(&["symbols"]);
    let path = path.query_if("name", args.name.as_ref()).query_if("at", args.at.as_ref());
    let answer = context.client.get(&path.query("limit", args.limit)).await?;
    let Some(symbols) = context.read::<Vec<Symbol>>(&answer)? else { return Ok(()) };
    let is_full = symbols.len() == args.limit && args.at.is_none();
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
    if is_full {
        eprintln!("there may be more: give --limit");
    }
    Ok(())
}
