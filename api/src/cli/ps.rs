//! `exoprobe ps`.

use serde::Deserialize;

use super::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::ApiPath;

#[derive(Deserialize)]
struct Process {
    pid: u32,
    comm: String,
    vcpus: Vec<u8>,
}

/// Prints the guest's processes.
pub(super) async fn run(context: &mut Context<'_>) -> Result<(), CliError> {
    let answer = context.client.get(&ApiPath::new(&["tasks"])).await?;
    let Some(processes) = context.read::<Vec<Process>>(&answer)? else { return Ok(()) };
    let columns = [Column::Number("PID"), Column::Text("VCPU"), Column::Text("COMM")];
    let rows = processes.into_iter().map(|process| {
        let vcpus: Vec<String> = process.vcpus.iter().map(u8::to_string).collect();
        let vcpus = if vcpus.is_empty() { "-".to_owned() } else { vcpus.join(",") };
        vec![process.pid.to_string(), vcpus, process.comm]
    });
    Ok(writeln!(context.out, "{}", table(&columns, rows))?)
}
