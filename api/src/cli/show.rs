//! Probes for people.

use exoprobe_probes::Latency;
use serde::Deserialize;
use serde_json::Value;

use super::context::Context;
use super::error::CliError;
use super::format::{Column, printable, table};
use crate::client::ClientError;

/// Text of an unknown value in a table.
const UNKNOWN: &str = "-";
/// The state of a probe whose text does not exist yet.
pub(super) const PENDING: &str = "pending";

/// A probe, as far as tables show it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ProbeRow {
    pub(super) id: u32,
    pub(super) kind: String,
    pub(super) group: String,
    pub(super) event: String,
    pub(super) symbol_name: Option<String>,
    pub(super) offset: u64,
    pub(super) addr: Option<String>,
    state: String,
    pub(super) flags: Vec<String>,
    reason: Option<String>,
    pub(super) hits: u64,
    pub(super) recorded: u64,
    pub(super) filtered: u64,
    pub(super) lost: u64,
    pub(super) nmissed: u64,
    pub(super) latency: Option<Latency>,
    displaced: Option<String>,
}

const COLUMNS: [Column; 10] = [
    Column::Text("KIND"),
    Column::Text("EVENT"),
    Column::Text("PLACE"),
    Column::Text("ADDR"),
    Column::Number("HITS"),
    Column::Number("NMISSED"),
    Column::Number("FILTERED"),
    Column::Number("LOST"),
    Column::Text("STATE"),
    Column::Text("HOW"),
];

impl ProbeRow {
    /// Its name as other commands take it: the default group goes without saying.
    pub(super) fn name(&self) -> String {
        if self.group == exoprobe_probes::definition::DEFAULT_GROUP {
            self.event.clone()
        } else {
            format!("{}/{}", self.group, self.event)
        }
    }

    /// Where it is, by symbol.
    pub(super) fn place(&self) -> String {
        match &self.symbol_name {
            Some(symbol) if self.offset == 0 => symbol.clone(),
            Some(symbol) => format!("{symbol}+{:#x}", self.offset),
            None => UNKNOWN.to_owned(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_unknown = |text: &Option<String>| text.as_deref().unwrap_or(UNKNOWN).to_owned();
        vec![
            self.kind.clone(),
            self.name(),
            self.place(),
            or_unknown(&self.addr),
            self.hits.to_string(),
            self.nmissed.to_string(),
            self.filtered.to_string(),
            self.lost.to_string(),
            self.state.clone(),
            or_unknown(&self.displaced),
        ]
    }
}

/// Probes, one a line, and below what those wait for that are pending.
pub(super) fn probe_table(probes: &[ProbeRow]) -> String {
    let mut text = table(&COLUMNS, probes.iter().map(ProbeRow::cells)) + "\n";
    for probe in probes {
        if let Some(reason) = probe.reason.as_ref().filter(|_| probe.state == PENDING) {
            let line = printable(&format!("{} is pending: {reason}", probe.name()));
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

/// Prints one probe, or an array of them.
pub(super) fn print_table(context: &mut Context<'_>, probes: &[u8]) -> Result<(), CliError> {
    let rows = match context.read(probes)? {
        None => return Ok(()),
        Some(Value::Array(probes)) => probes,
        Some(one) => vec![one],
    };
    let rows = rows.iter().map(ProbeRow::deserialize).collect::<Result<Vec<_>, _>>();
    Ok(write!(context.out, "{}", probe_table(&rows.map_err(ClientError::from)?))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_one_a_line() {
        let probes: Vec<ProbeRow> = serde_json::from_str(
            r#"[{"id":1,"kind":"k","group":"kprobes","event":"getpid","symbol_name":"sys_getpid",
                "offset":0,"addr":"0xffffffff81000000","state":"armed","flags":[],"reason":null,"hits":12,
                "nmissed":0,"recorded":12,"filtered":0,"lost":0,"instruction":"endbr64",
                "displaced":"emulation","unoptimized_reason":"text: an argument","definition":"p:kprobes/getpid sys_getpid"},
               {"id":2,"kind":"r","group":"my","event":"e","symbol_name":null,
                "offset":0,"addr":"0xffffffff81000010","state":"clobbered","flags":["DISABLED","CLOBBERED"],
                "reason":null,"hits":0,"nmissed":3,"recorded":0,"filtered":0,"lost":1,
                "instruction":"nop","displaced":"boost","definition":"r:my/e 0xffffffff81000010"},
               {"id":3,"kind":"k","group":"kprobes","event":"p","symbol_name":"f","offset":4,
                "addr":null,"state":"pending","flags":["PENDING"],"reason":"no\u001bkernel","hits":0,"nmissed":0,
                "recorded":0,"filtered":0,"lost":0,"instruction":null,"displaced":null,
                "definition":"p:kprobes/p f+4"}]"#,
        )
        .unwrap();
        let text = probe_table(&probes);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "KIND  EVENT   PLACE       ADDR                HITS  NMISSED  FILTERED  LOST  STATE      HOW",
                "k     getpid  sys_getpid  0xffffffff81000000    12        0         0     0  armed      emulation",
                "r     my/e    -           0xffffffff81000010     0        3         0     1  clobbered  boost",
                "k     p       f+0x4       -                      0        0         0     0  pending    -",
                "p is pending: no\\u{1b}kernel",
            ]
        );
    }
}
