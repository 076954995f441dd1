//! `exoprobe ps`.

use serde::Deserialize;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::ApiPath;

#[derive(Deserialize)]
struct Process {
    pid: u32,
    comm: String,
    vcpus: Vec<u8>,
    state: Option<char>,
    parent: Option<u32>,
}

/// Prints the guest's processes.
pub(super) async fn run(context: &mut Context<'_>) -> Result<(), CliError> {
    let answer = context.client.get(&ApiPath::new(&["tasks"])).await?;
    let Some(processes) = context.read::<Vec<Process>>(&answer)? else { return Ok(()) };
    let columns = [
        Column::Number("PID"),
        Column::Number("PPID"),
        Column::Text("STATE"),
        Column::Text("VCPU"),
        Column::Text("COMM"),
    ];
    let rows = processes.into_iter().map(|process| {
        let vcpus: Vec<String> = process.vcpus.iter().map(u8::to_string).collect();
        let vcpus = if vcpus.is_empty() { "-".to_owned() } else { vcpus.join(",") };
        let parent = process.parent.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let state = process.state.map_or_else(|| "-".to_owned(), String::from);
        vec![process.pid.to_string(), parent, state, vcpus, process.comm]
    });
    Ok(writeln!(context.out, "{}", table(&columns, rows))?)
}
