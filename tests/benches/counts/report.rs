//! What was counted, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use exoprobe_probes::DisplacedBy;
use serde::{Deserialize, Serialize};

/// Version of the JSON: another one may have other fields.
pub(crate) const SCHEMA: u32 = 1;

/// One measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`SCHEMA`].
    pub(crate) schema: u32,
    pub(crate) host: HostKind,
    /// What the time stamp counter counts.
    pub(crate) clock: Clock,
    /// Hits in each round.
    pub(crate) turns: u32,
    /// Rounds of which the least counts.
    pub(crate) rounds: u32,
    /// Why columns are empty.
    pub(crate) missing: BTreeMap<Column, String>,
    pub(crate) rows: Vec<RowCounts>,
}

/// Where it was measured.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostKind {
    /// KVM's module, such as `kvm_intel`.
    pub(crate) kvm: String,
    /// Guest kernel code is emulated.
    pub(crate) software: bool,
    /// Release of the host's kernel.
    pub(crate) kernel: String,
}

impl HostKind {
    pub(crate) fn here(software: bool) -> Self {
        let loaded = |name: &&str| Path::new("/sys/module").join(name).exists();
        let kvm = ["kvm_intel", "kvm_amd", "kvm_pvm"].into_iter().find(loaded);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kvm = kvm.unwrap_or("unknown").to_owned();
        Self { kvm, software, kernel: kernel.trim().to_owned() }
    }
}

/// Unit of the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    /// Executed instructions, host and guest together.
    Instructions,
    /// Time: no counts come from it.
    Time,
}

/// Columns that some hosts cannot fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Column {
    /// VM exits as KVM counts them.
    KvmExits,
    Guest,
    All,
    /// All less guest.
    Host,
    KvmEmulated,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KvmExits => "VM exits",
            Self::Guest => "guest instructions",
            Self::All => "all instructions",
            Self::Host => "host instructions",
            Self::KvmEmulated => "emulated by KVM",
        })
    }
}

/// Counts of one hit: of a loop's turn with the probe, less one without.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RowCounts {
    pub(crate) name: String,
    /// How the probed instruction runs; null without a probe.
    pub(crate) displaced: Option<DisplacedBy>,
    /// Registers that each hit records.
    pub(crate) registers: usize,
    /// Exits to user space by kind, those that there are.
    pub(crate) exits: BTreeMap<String, f64>,
    /// VM exits as KVM counts them.
    pub(crate) kvm_exits: Option<f64>,
    /// Instructions that the guest completes, by single steps (an `out` alone is one by definition): -1
    /// where the VMM does the probed one's work for it.
    pub(crate) guest_instructions: Option<f64>,
    /// Instructions of host and guest together.
    pub(crate) all_instructions: Option<f64>,
    /// The difference of these two.
    pub(crate) host_instructions: Option<f64>,
    /// Instructions that KVM emulated: on software-only KVM, all of the guest's kernel.
    pub(crate) kvm_emulated: Option<f64>,
}

impl RowCounts {
    /// Exits to user space, as `KIND N`.
    fn user_exits(&self) -> String {
        let kinds: Vec<String> = self.exits.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        if kinds.is_empty() { "0".to_owned() } else { kinds.join(", ") }
    }

    /// All counts as text, by the name of their column.
    pub(crate) fn cells(&self) -> [(String, String); 6] {
        let number = |column: Column, value: Option<f64>| {
            (column.to_string(), value.map_or_else(|| "-".to_owned(), |value| value.to_string()))
        };
        [
            ("exits to user space".to_owned(), self.user_exits()),
            number(Column::KvmExits, self.kvm_exits),
            number(Column::Guest, self.guest_instructions),
            number(Column::All, self.all_instructions),
            number(Column::Host, self.host_instructions),
            number(Column::KvmEmulated, self.kvm_emulated),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostKind { kvm, kernel, .. } = &self.host;
        let (turns, rounds) = (self.turns, self.rounds);
        writeln!(
            f,
            "Per hit, on {kvm}, Linux {kernel}: the least of {rounds} rounds of {turns} hits.\n"
        )?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let names = self.rows.first().map(RowCounts::cells).unwrap_or_default();
        let names = names.into_iter().map(|(name, _)| name.replacen(' ', "\n", 1));
        table.set_header(["row".to_owned()].into_iter().chain(names));
        for row in &self.rows {
            let counts = row.cells().into_iter().map(|(_, text)| text);
            table.add_row([row.name.clone()].into_iter().chain(counts));
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if index > 1 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(f, "{}", table.trim_fmt())?;
        for (column, reason) in &self.missing {
            writeln!(f, "\nNo {column}: {reason}.")?;
        }
        if self.host.software {
            writeln!(f, "\nKVM's emulator counts an int3 as emulated.")?;
        }
        Ok(())
    }
}
