//! Probes for people.

use serde::Deserialize;

use super::format::{Column, table};

/// A probe, as far as its table shows it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ProbeRow {
    group: String,
    event: String,
    symbol_name: Option<String>,
    offset: u64,
    addr: String,
    flags: Vec<String>,
    hits: u64,
    nmissed: u64,
    lost: u64,
    displaced: String,
    clobbered: bool,
}

const COLUMNS: [Column; 8] = [
    Column::Text("EVENT"),
    Column::Text("PLACE"),
    Column::Text("ADDR"),
    Column::Number("HITS"),
    Column::Number("NMISSED"),
    Column::Number("LOST"),
    Column::Text("FLAGS"),
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

    fn place(&self) -> String {
        match &self.symbol_name {
            Some(symbol) if self.offset == 0 => symbol.clone(),
            Some(symbol) => format!("{symbol}+{:#x}", self.offset),
            None => "-".to_owned(),
        }
    }

    fn flags(&self) -> String {
        let clobbered = self.clobbered.then_some("CLOBBERED");
        self.flags.iter().map(String::as_str).chain(clobbered).collect::<Vec<_>>().join(",")
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name(),
            self.place(),
            self.addr.clone(),
            self.hits.to_string(),
            self.nmissed.to_string(),
            self.lost.to_string(),
            self.flags(),
            self.displaced.clone(),
        ]
    }
}

/// Probes, one a line.
pub(super) fn probe_table(probes: &[ProbeRow]) -> String {
    table(&COLUMNS, probes.iter().map(ProbeRow::cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_one_a_line() {
        let probes: Vec<ProbeRow> = serde_json::from_str(
            r#"[{"id":1,"kind":"k","group":"kprobes","event":"getpid","symbol_name":"sys_getpid",
                "offset":0,"addr":"0xffffffff81000000","flags":[],"hits":12,"nmissed":0,
                "recorded":12,"filtered":0,"lost":0,"instruction":"endbr64",
                "displaced":"emulation","clobbered":false,"definition":"p:kprobes/getpid sys_getpid"},
               {"id":2,"kind":"k","group":"my","event":"e","symbol_name":null,
                "offset":0,"addr":"0xffffffff81000010","flags":["DISABLED"],"hits":0,"nmissed":3,
                "recorded":0,"filtered":0,"lost":1,"instruction":"nop",
                "displaced":"boost","clobbered":true,"definition":"p:my/e 0xffffffff81000010"}]"#,
        )
        .unwrap();
        let text = probe_table(&probes);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "EVENT   PLACE       ADDR                HITS  NMISSED  LOST  FLAGS               HOW",
                "getpid  sys_getpid  0xffffffff81000000    12        0     0                      emulation",
                "my/e    -           0xffffffff81000010     0        3     1  DISABLED,CLOBBERED  boost",
            ]
        );
    }
}
