//! `exoprobe probe switch`, `exoprobe probe optimization` and `exoprobe probe blacklist`.

use clap::ValueEnum;
use hyper::Method;
use serde::Deserialize;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::{ApiPath, Payload};

/// State of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// Sets the switch over all probes (`enabled`) or that of jump optimization (`optimization`), if
/// requested, and prints it.
pub(super) async fn switch(
    context: &mut Context<'_>,
    name: &str,
    to: Option<Switch>,
) -> Result<(), CliError> {
    let path = ApiPath::new(&["kprobes", name]);
    let answer = match to {
        Some(to) => {
            let payload = Payload::Json((to == Switch::On).into());
            context.client.call(Method::PUT, &path, payload).await?
        }
        None => context.client.get(&path).await?,
    };
    let Some(on) = context.read::<bool>(&answer)? else { return Ok(()) };
    Ok(writeln!(context.out, "{}", if on { "on" } else { "off" })?)
}

/// A place of the blacklist.
#[derive(Deserialize)]
struct BlacklistRow {
    start: String,
    end: String,
    symbol: String,
    reason: String,
}

/// Prints where no probe may be.
pub(super) async fn blacklist(context: &mut Context<'_>) -> Result<(), CliError> {
    let answer = context.client.get(&ApiPath::new(&["kprobes", "blacklist"])).await?;
    let Some(entries) = context.read::<Vec<BlacklistRow>>(&answer)? else { return Ok(()) };
    let columns = ["START", "END", "SYMBOL", "REASON"].map(Column::Text);
    let rows = entries.into_iter().map(|e| vec![e.start, e.end, e.symbol, e.reason]);
    Ok(writeln!(context.out, "{}", table(&columns, rows))?)
}
