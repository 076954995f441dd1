//! The counts that `benches/counts` takes, as the JSON that it writes and other programs read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use exoprobe_probes::DisplacedBy;
use serde::{Deserialize, Serialize};

/// The row of return probes.
pub const KRETPROBE: &str = "kretprobe";
/// The row of a breakpoint that no engine sees.
pub const BARE: &str = "int3, bare";
/// The row of a probe at a function's entry that records four registers by an int3.
pub const BY_INT3: &str = "kprobe at an entry, 4 registers";
/// The row of the same probe, optimized.
pub const OPTIMIZED: &str = "optimized, 4 registers";
/// The rows of probes as a script in the bpftrace language arms them, each with its script.
pub const SCRIPTS: [&str; 2] = ["script, @ = count()", "script, @[pid] = hist(arg2)"];
/// The row of a jump-optimized kprobe event of a guest's own kernel, with the same four.
pub const OWN_EVENT: &str = "the guest's own event, 4 registers";
/// The row of [`BY_INT3`] in a guest whose threads have the service's filters of system calls.
pub const FILTERED: &str = "kprobe at an entry, 4 registers, filters";
/// How far two counts of a row may be apart that is not even, as a part of them.
const UNEVEN: f64 = 0.01;

/// Version of the JSON: another one may have other fields.
pub const SCHEMA: u32 = 1;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Where it was measured.
    pub host: HostKind,
    /// Unit of the time stamp counter.
    pub clock: Clock,
    /// Hits in each of the shorter rounds; the longer ones have twice as many.
    pub turns: u32,
    /// Rounds of each length, of which the least counts.
    pub rounds: u32,
    /// Columns that this host could not fill, and why.
    pub missing: BTreeMap<Column, String>,
    /// The rows.
    pub rows: Vec<RowCounts>,
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKind {
    /// KVM's module, such as `kvm_intel`, built in or not; `unknown` if it is none that is known
    /// here.
    pub kvm: String,
    /// Guest kernel code is emulated.
    pub software: bool,
    /// Release of the host's kernel.
    pub kernel: String,
}

/// Unit of the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// Executed instructions, host and guest together.
    Instructions,
    /// Time: no counts come from it.
    Time,
}

/// Columns that some hosts cannot fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// VM exits as KVM counts them.
    KvmExits,
    /// Instructions that the guest completes.
    Guest,
    /// Instructions of host and guest together.
    All,
    /// All less guest.
    Host,
    /// Instructions that KVM emulated.
    KvmEmulated,
}

/// Counts of one hit: of a loop's turn with the probe, less one without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCounts {
    /// Name of the row.
    pub name: String,
    /// How the probed instruction runs; null without a probe.
    pub displaced: Option<DisplacedBy>,
    /// Registers that each hit records.
    pub registers: usize,
    /// Exits to user space by kind, those that there are.
    pub exits: BTreeMap<String, f64>,
    /// VM exits as KVM counts them.
    pub kvm_exits: Option<f64>,
    /// Instructions that the guest completes, by single steps (an `out` alone is one by
    /// definition): -1 where the VMM does the probed one's work for it.
    pub guest_instructions: Option<f64>,
    /// Instructions of host and guest together.
    pub all_instructions: Option<f64>,
    /// The difference of these two.
    pub host_instructions: Option<f64>,
    /// Instructions that KVM emulated: on software-only KVM, all of the guest's kernel.
    pub kvm_emulated: Option<f64>,
}

/// A text that is no [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not JSON, or not of this form.
    #[error("no counts: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a program that is older or newer; `found` is its version as JSON, `null` if it
    /// has none.
    #[error("counts of schema {found}: this program reads schema {SCHEMA}")]
    Schema {
        /// The version.
        found: String,
    },
}

impl Report {
    /// Reads what `counts --json` wrote.
    ///
    /// # Errors
    /// [`ReportError`]: another schema is refused before anything else of the text is looked at.
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let schema = &value["schema"];
        if *schema != SCHEMA {
            return Err(ReportError::Schema { found: schema.to_string() });
        }
        Ok(serde_json::from_value(value)?)
    }

    /// Everything that must not be in a measurement on a host which cannot fill `expected_missing`,
    /// and no other column: no rows, a count that is no whole number, a count that is not there, a
    /// column that is missing or filled against expectation, a hit of a script that takes an exit.
    /// Empty when all is well.
    #[must_use]
    pub fn problems(&self, expected_missing: &[Column]) -> Vec<String> {
        let mut problems = Vec::new();
        if self.rows.is_empty() {
            problems.push("there are no rows".to_owned());
        }
        let expected: BTreeSet<Column> = expected_missing.iter().copied().collect();
        for (column, reason) in &self.missing {
            if !expected.contains(column) {
                problems.push(format!("no {column}: {reason}"));
            }
        }
        let filled = expected.iter().filter(|column| !self.missing.contains_key(column));
        problems.extend(filled.map(|column| format!("{column} were not expected here")));
        problems.extend(self.rows.iter().flat_map(|row| self.row_problems(row)));
        problems
    }

    /// Ratio of a row's instructions to another's: host and guest together, or of the guest alone
    /// where those were not counted.
    #[must_use]
    pub fn ratio(&self, row: &str, to: &str) -> Option<f64> {
        let of = |name: &str| self.rows.iter().find(|row| row.name == name);
        let (row, to) = (of(row)?, of(to)?);
        let all = row.all_instructions.zip(to.all_instructions);
        let (part, whole) = all.or(row.guest_instructions.zip(to.guest_instructions))?;
        (whole > 0.0).then_some(part / whole)
    }

    /// Whether the other report has the same counts, but for rows that vary by a little.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let rows = self.rows.iter().zip(&other.rows);
        self.rows.len() == other.rows.len()
            && self.missing == other.missing
            && rows.into_iter().all(|(mine, theirs)| mine.agrees_with(theirs))
    }

    fn row_problems(&self, row: &RowCounts) -> Vec<String> {
        let at = |what: &dyn fmt::Display, problem| format!("{}, {what}: {problem}", row.name);
        let mut problems = Vec::new();
        // On software-only KVM each first write to a page of the ring is one of KVM's own.
        let kvm_exits = row.kvm_exits.filter(|_| !self.host.software);
        let has_exits = !row.exits.is_empty() || kvm_exits.is_some_and(|count| count > 0.0);
        if has_exits && SCRIPTS.contains(&row.name.as_str()) {
            problems.push(at(&"exits", "a script's hit takes one".to_owned()));
        }
        for (kind, count) in &row.exits {
            if count.fract() != 0.0 {
                problems.push(at(kind, format!("{count} is no whole number")));
            }
        }
        for (column, count) in row.columns() {
            match count {
                None if !self.missing.contains_key(&column) && row.can_have(column) => {
                    problems.push(at(&column, "there is none".to_owned()));
                }
                Some(count) if count.fract() != 0.0 && row.is_even(column) => {
                    problems.push(at(&column, format!("{count} is no whole number")));
                }
                _ => {}
            }
        }
        problems
    }
}

impl HostKind {
    /// This host; `software` if preflight found that its KVM has no hardware below it.
    #[must_use]
    pub fn here(software: bool) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let kvm = if software {
            let pvm = Path::new("/sys/module/kvm_pvm").exists();
            if pvm { "kvm_pvm" } else { "unknown" }
        } else {
            // By the CPU: a KVM that is built in need not be in /sys/module.
            hardware_kvm(&read("/proc/cpuinfo"))
        };
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self { kvm: kvm.to_owned(), software, kernel }
    }
}

/// The KVM module for the CPU that `/proc/cpuinfo` shows.
fn hardware_kvm(cpuinfo: &str) -> &'static str {
    let flags = cpuinfo.lines().find_map(|line| {
        let (name, flags) = line.split_once(':')?;
        (name.trim_end() == "flags").then_some(flags)
    });
    let has = |wanted: &str| flags.is_some_and(|f| f.split_whitespace().any(|f| f == wanted));
    match (has("vmx"), has("svm")) {
        (true, _) => "kvm_intel",
        (_, true) => "kvm_amd",
        _ => "unknown",
    }
}

impl RowCounts {
    /// Filters forbid a vCPU's thread to read KVM's statistics.
    fn can_have(&self, column: Column) -> bool {
        self.name != FILTERED || !matches!(column, Column::KvmExits | Column::KvmEmulated)
    }

    /// Whether each hit has the same count, and each time. A return probe takes its instances from
    /// a ring, whose end costs some instructions more; why the bare breakpoint's count varies is
    /// not known.
    fn is_even(&self, column: Column) -> bool {
        let uneven = [KRETPROBE, BARE].contains(&self.name.as_str());
        !uneven || !matches!(column, Column::All | Column::Host)
    }

    fn agrees_with(&self, other: &Self) -> bool {
        let columns = self.columns().into_iter().zip(other.columns());
        let same = |(column, mine): (Column, Option<f64>), theirs: Option<f64>| match (mine, theirs)
        {
            (Some(mine), Some(theirs)) if !self.is_even(column) => {
                (mine - theirs).abs() <= UNEVEN * mine.abs()
            }
            _ => mine == theirs,
        };
        self.name == other.name
            && self.exits == other.exits
            && columns.into_iter().all(|(mine, (_, theirs))| same(mine, theirs))
    }

    /// The counts that a host may be unable to take, in the order of a table.
    #[must_use]
    pub fn columns(&self) -> [(Column, Option<f64>); 5] {
        [
            (Column::KvmExits, self.kvm_exits),
            (Column::Guest, self.guest_instructions),
            (Column::All, self.all_instructions),
            (Column::Host, self.host_instructions),
            (Column::KvmEmulated, self.kvm_emulated),
        ]
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = RowCounts {
            name: "boosted".to_owned(),
            displaced: Some(DisplacedBy::Boost),
            registers: 4,
            exits: [("breakpoint".to_owned(), 1.0)].into(),
            kvm_exits: Some(1.0),
            guest_instructions: Some(-1.0),
            all_instructions: None,
            host_instructions: None,
            kvm_emulated: Some(2.0),
        };
        let kind = ("kvm_intel".to_owned(), "6.1.0".to_owned());
        let reason = "it is time".to_owned();
        Report {
            schema: SCHEMA,
            host: HostKind { kvm: kind.0, software: false, kernel: kind.1 },
            clock: Clock::Time,
            turns: 16,
            rounds: 32,
            missing: [(Column::All, reason.clone()), (Column::Host, reason)].into(),
            rows: vec![row],
        }
    }

    #[test]
    fn a_hit_of_a_script_takes_no_exit() {
        let missing = [Column::All, Column::Host];
        let with = |exits: &[(String, f64)], kvm_exits, software| {
            let mut report = report();
            report.host.software = software;
            let row = &mut report.rows[0];
            row.name = SCRIPTS[1].to_owned();
            row.exits = exits.iter().cloned().collect();
            row.kvm_exits = Some(kvm_exits);
            report.problems(&missing)
        };
        let wrong = ["script, @[pid] = hist(arg2), exits: a script's hit takes one"];
        assert_eq!(with(&[], 0.0, false), [] as [String; 0]);
        assert_eq!(with(&[("breakpoint".to_owned(), 1.0)], 0.0, true), wrong);
        assert_eq!(with(&[], 1.0, false), wrong);
        assert_eq!(with(&[], 1.0, true), [] as [String; 0], "a page of the ring");
        assert_eq!(report().problems(&missing), [] as [String; 0], "no script");
    }

    #[test]
    fn a_report_comes_back_as_it_went() {
        let text = serde_json::to_string_pretty(&report()).unwrap();
        assert_eq!(Report::parse(&text).unwrap(), report());
    }

    #[test]
    fn a_ratio_is_of_all_instructions_or_else_of_the_guests() {
        let mut report = report();
        let mut other = report.rows[0].clone();
        (other.name, other.guest_instructions) = ("other".to_owned(), Some(-2.0));
        report.rows.push(other);
        assert_eq!(report.ratio("boosted", "other"), None, "of nothing");
        report.rows[1].guest_instructions = Some(4.0);
        assert_eq!(report.ratio("boosted", "other"), Some(-0.25));
        report.rows[0].all_instructions = Some(30.0);
        report.rows[1].all_instructions = Some(300.0);
        assert_eq!(report.ratio("boosted", "other"), Some(0.1));
        assert_eq!(report.ratio("boosted", "nothing"), None);
    }

    #[test]
    fn counts_are_the_same_each_time_but_for_rows_that_vary_by_a_little() {
        let with = |name: &str, all: f64| {
            let mut report = report();
            report.rows[0].name = name.to_owned();
            report.rows[0].all_instructions = Some(all);
            report
        };
        for (name, other, same) in [
            ("boosted", 3000.0, true),
            ("boosted", 3001.0, false),
            (KRETPROBE, 3010.5, true),
            (BARE, 3100.0, false),
        ] {
            assert_eq!(with(name, 3000.0).agrees_with(&with(name, other)), same, "{name} {other}");
        }
        assert!(with(KRETPROBE, 0.5).rows[0].is_even(Column::Guest));
    }

    #[test]
    fn a_text_that_was_cut_off_anywhere_is_refused() {
        let text = serde_json::to_string(&report()).unwrap();
        for end in 0..text.len() {
            let error = Report::parse(&text[..end]).unwrap_err();
            assert!(matches!(error, ReportError::Json(_)), "{end}: {error}");
        }
        let without_rows = text.replace("\"rows\"", "\"lines\"");
        let error = Report::parse(&without_rows).unwrap_err();
        assert!(error.to_string().contains("rows"), "{error}");
    }

    #[test]
    fn another_schema_is_refused_and_named() {
        for (text, found) in [
            (serde_json::to_string(&Report { schema: 2, ..report() }).unwrap(), "2"),
            ("{\"schema\": \"1\"}".to_owned(), "\"1\""),
            ("{}".to_owned(), "null"),
            ("[1]".to_owned(), "null"),
        ] {
            let error = Report::parse(&text).unwrap_err();
            assert!(matches!(&error, ReportError::Schema { found: f } if f == found), "{error}");
            let shown = error.to_string();
            assert!(shown.contains(found) && shown.contains("reads schema 1"), "{shown}");
        }
    }

    #[test]
    fn missing_parts_of_a_report_are_problems() {
        let expected = [Column::Host, Column::All];
        assert_eq!(report().problems(&expected), [""; 0]);
        let problems_are = |change: fn(&mut Report), expected: &[Column], problem: &str| {
            let mut changed = report();
            change(&mut changed);
            assert_eq!(changed.problems(expected), [problem]);
        };
        problems_are(|r| r.rows.clear(), &expected, "there are no rows");
        problems_are(|_| {}, &[Column::All], "no host instructions: it is time");
        let filled = [Column::Host, Column::All, Column::KvmExits];
        problems_are(|_| {}, &filled, "VM exits were not expected here");
        let none = "boosted, guest instructions: there is none";
        problems_are(|r| r.rows[0].guest_instructions = None, &expected, none);
        let mut filtered = report();
        (filtered.rows[0].name, filtered.rows[0].kvm_exits) = (FILTERED.to_owned(), None);
        assert_eq!(filtered.problems(&expected), [""; 0], "filters forbid to read it");
        filtered.rows[0].guest_instructions = None;
        assert_eq!(filtered.problems(&expected).len(), 1);
        let none = "boosted, VM exits: there is none";
        problems_are(|r| r.rows[0].kvm_exits = None, &expected, none);
        let half = "boosted, VM exits: 1.5 is no whole number";
        problems_are(|r| r.rows[0].kvm_exits = Some(1.5), &expected, half);
        let third = "boosted, port: 0.25 is no whole number";
        problems_are(|r| r.rows[0].exits.extend([("port".to_owned(), 0.25)]), &expected, third);
    }

    #[test]
    fn the_module_is_told_by_the_flags_of_the_cpu() {
        for (cpuinfo, module) in [
            ("processor\t: 0\nflags\t\t: fpu vmx ssse3\nvmx flags\t: vnmi\n", "kvm_intel"),
            ("flags\t\t: fpu svm\n", "kvm_amd"),
            ("flags\t\t: fpu svm_lock\nbugs\t: vmx\n", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(hardware_kvm(cpuinfo), module, "{cpuinfo}");
        }
    }
}
