//! The numbers, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Two passes of exoprobe may differ by this part.
const TOLERANCE: f64 = 0.03;
/// KVM's names of what the table shows: VM exits, and those of them for the VMM's own devices.
const EXITS: &str = "exits";
const MMIO_EXITS: &str = "mmio_exits";
/// Speed that is asked for, of QEMU's.
const ASKED: f64 = 0.7;

/// A request's cost.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    /// Of guest and host together.
    pub(crate) instructions: f64,
    /// KVM's statistics, by its names.
    pub(crate) kvm: BTreeMap<String, f64>,
}

/// A kind of request.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) request: String,
    pub(crate) exoprobe: Cost,
    pub(crate) qemu: Cost,
    pub(crate) qemu_thread: Cost,
}

/// All numbers of a pass.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// In each of the shorter rounds.
    pub(crate) requests: u64,
    pub(crate) rounds: u32,
    /// Instructions from the program's start to the workload's prompt, idle time included.
    pub(crate) boot: u64,
    pub(crate) qemu_boot: u64,
    pub(crate) rows: Vec<Row>,
}

impl Row {
    fn costs(&self) -> [&Cost; 3] {
        [&self.exoprobe, &self.qemu, &self.qemu_thread]
    }

    /// Speed as a part of that of QEMU, the quicker of its two ways.
    fn ratio(&self) -> f64 {
        self.qemu.instructions.min(self.qemu_thread.instructions) / self.exoprobe.instructions
    }
}

impl Report {
    /// Shows how far another pass differs. Fails if exoprobe's own counts do by more than
    /// [`TOLERANCE`]: QEMU's threads poll for as long as the time before suggests.
    pub(crate) fn compare(&self, other: &Self) -> Result<(), String> {
        let mut worst = [0.0_f64; 3];
        for (one, other) in self.rows.iter().zip(&other.rows) {
            let pairs = one.costs().into_iter().zip(other.costs());
            for (worst, (mine, theirs)) in worst.iter_mut().zip(pairs) {
                *worst = worst.max((mine.instructions / theirs.instructions - 1.0).abs());
            }
        }
        let [own, qemu, qemu_thread] = worst.map(|part| format!("{:.1} %", 100.0 * part));
        println!(
            "Passes differ by at most {own}; QEMU's by {qemu}, with an iothread {qemu_thread}."
        );
        if worst[0] > TOLERANCE { Err("exoprobe's two passes differ".to_owned()) } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let heads = [
            "exoprobe",
            "QEMU",
            "QEMU,\niothread",
            "speed,\nof QEMU's",
            "VM exits",
            "of them\nMMIO",
        ];
        table.set_header(["request"].into_iter().chain(heads));
        for row in &self.rows {
            let costs = row.costs();
            let each = |name: &str| {
                let count = |cost: &Cost| cost.kvm.get(name).copied().unwrap_or(0.0);
                costs.map(|cost| format!("{:.2}", count(cost))).join(" / ")
            };
            let instructions = costs.map(|cost| format!("{:.0}", cost.instructions));
            let ratio = format!("{:.0} %", 100.0 * row.ratio());
            let rest = [ratio, each(EXITS), each(MMIO_EXITS)];
            table.add_row([row.request.clone()].into_iter().chain(instructions).chain(rest));
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if index > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let Self { requests, rounds, boot, qemu_boot, .. } = self;
        let most = 2 * requests;
        writeln!(
            f,
            "Instructions of guest and host per request: {most} less {requests}, least of {rounds} rounds.\n"
        )?;
        writeln!(f, "{}\n", table.trim_fmt())?;
        let least = self.rows.iter().map(Row::ratio).fold(f64::INFINITY, f64::min);
        let (least, asked) = (100.0 * least, 100.0 * ASKED);
        writeln!(f, "At least {least:.0} % of QEMU's speed (asked: {asked:.0} %).")?;
        let millions = |count: &u64| count / 1_000_000;
        let (boot, qemu_boot) = (millions(boot), millions(qemu_boot));
        writeln!(
            f,
            "To the prompt: {boot} million instructions, idle time among them; QEMU: {qemu_boot}."
        )
    }
}
