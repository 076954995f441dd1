//! Scenarios whose counts Linux 6.12 gave.

use super::*;
use crate::synthetic::{SyntheticCommand, SyntheticField, parse_synthetic};

/// The synthetic event.
const MADE: &str = "sy s32 p1; s32 p2; u32 p3";

/// A histogram, and the hits that its filter takes: those of which `v` is less than a number, or
/// those of the others.
struct Filtered {
    table: HistTable,
    is_below: bool,
    bound: u64,
}

impl Filtered {
    fn new(command: &str, list: &[Argument], earlier: &[Self]) -> Self {
        let (command, filter) = command.split_once(" if v").unwrap();
        let filter = filter.trim_start_matches(['_', ' ']);
        let (operator, bound) = filter.split_once(' ').unwrap();
        let TriggerKind::Hist(hist) = added(command).kind else { panic!("{command}") };
        let table = HistTable::new(&hist, list, false, &earlier).unwrap();
        Self { table, is_below: operator == "<", bound: bound.parse().unwrap() }
    }

    fn add(&self, v: u64, hit: &Hit, made: &mut Vec<MadeEvent>) {
        if (v < self.bound) == self.is_below {
            self.table.add(hit, made);
        }
    }

    /// Its hits, then its entries' hits and sums, as the file `hist` shows them.
    fn shown(&self, list: &[Argument]) -> String {
        let table = self.table.at_once("LINE", list, None);
        let entry = |entry: &CountedEntry| {
            let sums = entry.sums.iter().zip(&table.values).filter(|(_, of)| !of.is_operation);
            let sum = |(sum, _): (&HistogramNumber, _)| match sum {
                HistogramNumber::Unsigned(sum) => format!(" {sum}"),
                HistogramNumber::Signed(sum) => format!(" {sum}"),
            };
            let tracked = tracked(entry, &table.handlers);
            format!("{}{}{tracked}", entry.hits, sums.map(sum).collect::<String>())
        };
        let mut entries: Vec<String> = table.entries.iter().map(entry).collect();
        entries.sort();
        let shown = format!("{}: {}", table.hits, entries.join(", "));
        let key = |keys: &[HistogramKey]| match keys[0] {
            HistogramKey::Number(number) => number.cast_signed(),
            HistogramKey::Signed(number) => number,
            _ => panic!("{keys:?}"),
        };
        match &table.snapshot {
            Some(taken) => format!("{shown} @ {} {}", taken.value, key(&taken.keys)),
            None => shown.trim().to_owned(),
        }
    }
}

/// The values that an entry keeps for its handlers, but for those that take snapshots.
fn tracked(entry: &CountedEntry, handlers: &[Handler]) -> String {
    let mut shown = String::new();
    let Some(tracked) = &entry.tracked else { return shown };
    for (value, handler) in tracked.values.iter().zip(handlers) {
        if handler.action != HandlerAction::Snapshot {
            shown += &format!(" / {value}");
            for saved in &tracked.saved {
                let SavedValue::Number(number) = saved else { panic!("{saved:?}") };
                shown += &format!(" {number}");
            }
        }
    }
    shown
}

impl Variables for &[Filtered] {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        let found = self.iter().find_map(|filtered| filtered.table.variable(&name.name));
        found.ok_or_else(|| VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, group: &str, event: &str) -> bool {
        (group, event) == ("kprobes", "e")
    }

    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>> {
        let Ok(SyntheticCommand::Define(found)) = parse_synthetic(MADE) else { panic!() };
        (found.name == name).then(|| Arc::new(found))
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        Ok(self.find(&field.variable())?)
    }
}

/// Counts the hits of a scenario: returns its histograms, the events that they made, and the words
/// that were recorded.
fn run<'a>(line: &'a str, list: &[Argument]) -> (Vec<Filtered>, Vec<MadeEvent>, Vec<&'a str>) {
    let [first, second, hits, recorded @ ..] = &line.split(" ; ").collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    let (mut all, mut made) = (Vec::<Filtered>::new(), Vec::new());
    let commands = first.split('|').chain(second.split('|'));
    for command in commands.filter(|command| !command.is_empty()) {
        all.push(Filtered::new(command, list, &all));
    }
    for words in hits.split(' ') {
        let (k, v) = words.split_once(':').unwrap();
        let [k, v] = [k, v].map(|number| number.parse::<u64>().unwrap());
        // The recorded kernel had one CPU.
        let hit = Hit { vcpu: 0, ..hit_of(list, [k, v, v], 1, 0) };
        all.iter().for_each(|filtered| filtered.add(v, &hit, &mut made));
    }
    (all, made, recorded.to_vec())
}

fn scenarios(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// Checks that hits of recorded scenarios are counted as recorded.
fn check(recorded: &str, list: &[Argument]) {
    for line in scenarios(recorded) {
        let (all, _, results) = run(line, list);
        let shown = all[all.len() - results.len()..].iter().map(|filtered| filtered.shown(list));
        assert_eq!(shown.collect::<Vec<_>>(), results, "{line}");
    }
}

#[test]
fn hits_are_counted_as_by_the_kernel() {
    check(include_str!("variables.txt"), &fields("p:e f k=%di:s32 v=%si:s32 u=%si:u8"));
}

#[test]
fn handlers_keep_the_values_that_the_kernel_keeps() {
    check(include_str!("handlers.txt"), &fields("p:e f k_=%di:s32 v_=%si:s32 u_=%si:u8"));
}

#[test]
fn handlers_make_the_events_that_the_kernel_makes() {
    let list = fields("p:e f k_=%di:s32 v_=%si:s32 u_=%si:u8");
    let shown = |MadeEvent { definition, values }: &MadeEvent| {
        let number = |(field, value): (&SyntheticField, &SavedValue)| {
            let SavedValue::Number(number) = value else { panic!("{value:?}") };
            field.kind.kind().narrow(*number).cast_signed().to_string()
        };
        definition.fields.iter().zip(values).map(number).collect::<Vec<_>>().join(" ")
    };
    for line in scenarios(include_str!("made.txt")) {
        let (_, made, recorded) = run(line, &list);
        let made: Vec<String> = made.iter().map(shown).collect();
        assert_eq!(made.join(", "), recorded.concat(), "{line}");
    }
}
