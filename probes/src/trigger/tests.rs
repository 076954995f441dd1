//! Tests of commands, and of the steps that hits trigger.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, GuestTime, Gva};
use exoprobe_introspect::{SymbolTable, TaskId};
use proptest::prelude::*;

use super::hist::HistTable;
use super::*;
use crate::definition::{Argument, FetchArg, parse_line};
use crate::events::{Control, Hit, Origin, Record, Returned, Step, TraceInstance};
use crate::synthetic::SyntheticDefinition;

mod handlers;
mod recorded;
mod values;
mod variables;

fn parsed(text: &str) -> TriggerCommand {
    parse_trigger(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn added(text: &str) -> Trigger {
    match parsed(text) {
        TriggerCommand::Add(trigger) => trigger,
        TriggerCommand::Remove(_) => panic!("{text}"),
    }
}

#[test]
fn commands_are_those_of_the_kernel() {
    let cases = [
        ("traceoff", "traceoff:unlimited"),
        ("traceon:3", "traceon:count=3"),
        ("snapshot:1 if fd > 2", "snapshot:count=1 if fd > 2"),
        (" stacktrace:0x10  if  comm == \"sh\" ", "stacktrace:count=16 if  comm == \"sh\""),
        ("enable_event:kprobes:f", "enable_event:kprobes:f:unlimited"),
        ("disable_hist:g:e:0x2 if a == 1", "disable_hist:g:e:count=2 if a == 1"),
        ("hist:keys=fd", "hist:keys=fd:vals=hitcount:sort=hitcount:size=2048"),
        (
            "hist:key=common_pid.execname,fd.log2:values=hitcount,len:sort=len.descending,fd:size=200:pause if fd == 3",
            "hist:keys=common_pid.execname,fd.log2:vals=hitcount,len:sort=len.descending,fd.log2:size=256 if fd == 3",
        ),
        (
            "hist:keys=a.buckets=100,b.sym-offset,c.hex",
            "hist:keys=a.buckets=100,b.sym-offset,c.hex:vals=hitcount:sort=hitcount:size=2048",
        ),
        (
            "hist:keys=nr.syscall:vals=hitcount,len.graph,hitcount.percent:sort=len.descending",
            "hist:keys=nr.syscall:vals=hitcount,len.graph,hitcount.percent:sort=len.graph.descending:size=2048",
        ),
        (
            "hist:keys=a.hex:vals=hitcount,hitcount:sort=a",
            "hist:keys=a.hex:vals=hitcount,hitcount:sort=a.hex:size=2048",
        ),
        ("hist:keys=a:name=n:size=128", "hist:name=n:keys=a:vals=hitcount:sort=hitcount:size=128"),
        (
            "hist:NOHC:keys=a.hex:vals=b.hex",
            "hist:keys=a.hex:vals=b.hex:sort=hitcount:size=2048:nohitcount",
        ),
        (
            "hist:keys=a:vals=common_timestamp.usecs:clock=global",
            "hist:keys=a:vals=hitcount,common_timestamp.usecs:sort=hitcount:size=2048:clock=global",
        ),
    ];
    for (text, listed) in cases {
        assert_eq!(added(text).to_string(), listed);
        assert_eq!(added(listed).to_string(), listed);
    }
    assert!(matches!(parsed("!hist:keys=fd"), TriggerCommand::Remove(_)));
    assert!(matches!(parsed("!stacktrace if fd =="), TriggerCommand::Remove(_)), "it is not read");
    let hist = |text: &str| match added(text).kind {
        TriggerKind::Hist(hist) => hist.change,
        _ => None,
    };
    assert_eq!(hist("hist:keys=a:clear"), Some(HistChange::Clear));
    assert_eq!(hist("hist:keys=a:cont"), Some(HistChange::Continue));
}

#[test]
fn conditions_are_split_off_with_their_blanks() {
    let split = |text| split_trigger(text).map(|(command, (_, condition))| (command, condition));
    assert_eq!(split("traceoff:1 if  a == 1"), Some(("traceoff:1 ", " a == 1")));
    assert_eq!(split(" ! hist:keys=a\tif\ta == 1 "), Some((" ! hist:keys=a\t", "a == 1")));
    for text in ["traceoff", "traceoff if", "traceoff iff a", "traceoff a if b", "if a", ""] {
        assert_eq!(split(text), None, "{text}");
    }
    let (_, (at, condition)) = split_trigger("  traceoff  if a == 1").expect("a condition");
    assert_eq!((at, condition), (15, "a == 1"));
}

#[test]
fn faults_have_their_place() {
    let cases = [
        ("", "HIST_NOT_FOUND", 0),
        ("!", "HIST_NOT_FOUND", 1),
        ("tracof", "HIST_NOT_FOUND", 0),
        ("traceoff:0", "EXPECT_NUMBER", 9),
        ("enable_event", "HIST_CREATE_FAIL", 12),
        ("enable_event:g", "HIST_CREATE_FAIL", 14),
        ("enable_event::e", "HIST_CREATE_FAIL", 13),
        ("disable_event:g::2", "HIST_CREATE_FAIL", 16),
        ("enable_hist:g:e:0", "EXPECT_NUMBER", 16),
        ("enable_hist:g:e:1:2", "EXPECT_NUMBER", 16),
        ("traceoff:x", "EXPECT_NUMBER", 9),
        ("traceoff unless a", "NO_FILTER", 9),
        ("traceoff if a = 1", "INVALID_OP", 14),
        ("hist", "HIST_CREATE_FAIL", 4),
        ("hist:vals=a", "HIST_CREATE_FAIL", 5),
        ("hist:keys=a,b,c,d", "HIST_CREATE_FAIL", 10),
        ("hist:keys=a:vals=b,c,d", "HIST_CREATE_FAIL", 17),
        ("hist:keys=a:frob", "HIST_CREATE_FAIL", 12),
        ("hist:keys=a,", "FIELD_NOT_FOUND", 12),
        ("hist:keys=a b", "NO_FILTER", 12),
        ("hist:keys=a.frob", "BAD_FIELD_MODIFIER", 12),
        ("hist:keys=a.buckets=0", "BAD_FIELD_MODIFIER", 20),
        ("hist:keys=a:sort=b", "INVALID_SORT_FIELD", 17),
        ("hist:keys=a:sort=a.up", "INVALID_SORT_MODIFIER", 19),
        ("hist:keys=a:sort=a.hex", "INVALID_SORT_MODIFIER", 19),
        ("hist:keys=a:sort=hitcount.hex", "INVALID_SORT_MODIFIER", 26),
        ("hist:keys=a:sort=a.", "INVALID_SORT_MODIFIER", 19),
        ("hist:name=:keys=a", "EMPTY_ASSIGNMENT", 5),
        ("hist:keys=a:sort=", "EMPTY_ASSIGNMENT", 12),
        ("hist:keys=a:sort=a,", "EMPTY_SORT_FIELD", 12),
        ("hist:keys=a:sort=a,a,a", "TOO_MANY_SORT_FIELDS", 12),
        ("hist:keys=a:vals=common_timestamp:clock=local", "SET_CLOCK_FAIL", 40),
        ("hist:keys=a:vals=hitcount,b,c,d", "HIST_CREATE_FAIL", 17),
        ("hist:keys=a:size=1", "EXPECT_NUMBER", 17),
        ("hist:keys=a:size=131073", "EXPECT_NUMBER", 17),
    ];
    for (text, id, position) in cases {
        let error = parse_trigger(text).unwrap_err();
        assert_eq!((error.id, error.position), (id, position), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_a_trigger_or_a_fault_within_it(text in "\\PC{0,60}|!?(hist|traceon)[:=,. a-z0-9\"~&|!()]{0,40}|hist:keys=[a$.+,-]{1,6}(:(a|b|vals|sort)=[ab$+*/().,1-]{1,9}){1,3}") {
        match parse_trigger(&text) {
            Err(error) => prop_assert!(error.position <= text.len()),
            // The result is listed in a form that can be written.
            Ok(TriggerCommand::Add(found) | TriggerCommand::Remove(found)) => {
                prop_assert_eq!(added(&found.to_string()).to_string(), found.to_string());
            }
        }
    }
}

fn symbols() -> SymbolTable {
    let map = "ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 T second\nffffffff81000200 T _etext\n";
    SymbolTable::from_system_map(map).unwrap()
}

fn fields(line: &str) -> Box<[Argument]> {
    let definition = parse_line(line).unwrap();
    let kind = |arg: &FetchArg| arg.kind.unwrap_or_default();
    let each = definition.args.iter().enumerate().map(|(index, arg)| Argument {
        name: definition.arg_name(index),
        fetch: arg.body.clone(),
        kind: kind(arg),
        count: arg.count,
    });
    each.collect()
}

const LINE: &str = "r:e f fd=%di:s32 len=%si:u64 at=%dx";

/// A hit with these values, of a task, that took so many ticks.
fn hit(args: [u64; 3], pid: u32, took: u64) -> Hit {
    hit_of(&fields(LINE), args, pid, took)
}

/// The same of an event with these arguments.
fn hit_of(list: &[Argument], args: [u64; 3], pid: u32, took: u64) -> Hit {
    let origin = Arc::new(Origin {
        group: "kprobes".into(),
        event: "e".into(),
        event_id: 1,
        synthetic: None,
        user_texts: Arc::default(),
        symbol_name: None,
        offset: 0,
        at: Gva(0x10),
        addr: "0x10".into(),
        fields: list.into(),
        symbols: None,
        clock: GuestClock::default(),
    });
    let record = Record {
        probe: 1,
        time: 1000,
        task: Some(TaskId { pid, comm: *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0" }),
        returned: Some(Returned { to: Gva(0), entered: GuestTime(1000 - took) }),
        args: args.map(Some).to_vec(),
        stack: vec![0xffff_ffff_8100_0008, 0xffff_ffff_8100_0104],
        text: Box::default(),
    };
    Hit { origin, vcpu: 1, record }
}

/// No variables.
struct NoVariables;

impl Variables for NoVariables {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        Err(VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, _: &str, _: &str) -> bool {
        false
    }

    fn synthetic(&self, _: &str) -> Option<Arc<SyntheticDefinition>> {
        None
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        Ok(self.find(&field.variable())?)
    }
}

/// A histogram over some hits.
fn counted(command: &str, hits: &[Hit]) -> HistogramTable {
    let TriggerKind::Hist(hist) = added(command).kind else { panic!("{command}") };
    let table = HistTable::new(&hist, &fields(LINE), true, &NoVariables).unwrap();
    hits.iter().for_each(|hit| assert!(!table.add(hit, &mut Vec::new())));
    table.at_once("LINE", &fields(LINE), Some(&symbols()))
}

/// The first entry of a histogram over some hits, for programs.
fn first(command: &str, hits: &[Hit]) -> HistogramEntry {
    let view = Histogram::from(&counted(command, hits));
    assert_eq!((view.trigger.as_str(), view.hits), ("LINE", hits.len() as u64));
    assert_eq!(view.entries.iter().map(|entry| entry.hits).sum::<u64>() + view.dropped, view.hits);
    view.entries.into_iter().next().unwrap()
}

#[test]
fn programs_have_each_key_as_what_it_is() {
    use HistogramNumber::{Signed, Unsigned};
    use HistogramValue::{Number, Range, Stack, Task, Text};
    let of = |fd: u64, len: u64| [hit([fd, len, 0xffff_ffff_8100_0108], 7, 0)];
    let text = |text: &str| Text(text.to_owned());
    let cases = [
        ("hist:keys=fd", Number(Signed(-1))),
        ("hist:keys=fd.log2", text("negative")),
        ("hist:keys=len", Number(Unsigned(20))),
        ("hist:keys=len.log2", Range(17, 32)),
        ("hist:keys=len.buckets=10", Range(20, 29)),
        ("hist:keys=len.hex", text("0x14")),
        ("hist:keys=at.sym", text("second")),
        ("hist:keys=at.sym-offset", text("second+0x8/0x100")),
        ("hist:keys=common_pid.execname", Task("sh".to_owned(), 7)),
        ("hist:keys=comm", text("sh")),
    ];
    for (command, expected) in cases {
        assert_eq!(first(command, &of(0xffff_ffff, 20)).keys, [expected], "{command}");
    }
    let powers =
        [(0, (0, 1)), (1, (0, 1)), (2, (2, 2)), (3, (3, 4)), (1 << 63, ((1 << 62) + 1, 1 << 63))];
    for (len, (from, to)) in powers.into_iter().chain([(u64::MAX, ((1 << 63) + 1, u64::MAX))]) {
        assert_eq!(first("hist:keys=len.log2", &of(0, len)).keys, [Range(from, to)], "{len}");
    }
    let sums = first("hist:keys=comm:vals=fd,len", &of(0xffff_fffe, 3)).sums;
    assert_eq!(sums, [Signed(-2), Unsigned(3)]);
    let stack = first("hist:keys=common_stacktrace", &of(0, 0)).keys;
    let [Stack(frames)] = stack.as_slice() else { panic!("{stack:?}") };
    let frames: Vec<_> =
        frames.iter().map(|f| (f.symbol_name.as_deref(), f.offset, f.addr.as_str())).collect();
    assert_eq!(
        frames,
        [(Some("first"), 8, "0xffffffff81000008"), (Some("second"), 4, "0xffffffff81000104")]
    );
}

#[test]
fn hits_are_counted_by_their_keys_and_values_summed() {
    use HistogramKey::{Number, Signed, Stack, Task, Text};
    let hits = [
        hit([3, 10, 0], 7, 0),
        hit([4, 1, 0], 7, 0),
        hit([3, 20, 0], 8, 0),
        hit([u64::from(u32::MAX), 5, 0], 7, 0),
    ];
    let table = counted("hist:keys=fd:vals=len:sort=len.descending", &hits);
    let [key, value] = [&table.keys, &table.values].map(|fields| &fields[0]);
    assert_eq!((key.is_signed, value.is_signed, key.is_symbol), (true, false, false));
    let entry = |keys: &[HistogramKey], hits: u64, sums: &[u64]| CountedEntry {
        keys: keys.into(),
        hits,
        sums: sums.iter().copied().map(HistogramNumber::Unsigned).collect(),
        tracked: None,
    };
    let fd = |fd, hits, sum| entry(&[Signed(fd)], hits, &[sum]);
    assert_eq!(table.entries, [fd(3, 2, 30), fd(-1, 1, 5), fd(4, 1, 1)]);
    assert_eq!((table.hits, table.dropped), (4, 0));
    let by_task = counted("hist:keys=common_pid.execname,cpu", &hits);
    let task = |pid, hits| entry(&[Task("sh".to_owned(), pid), Number(1)], hits, &[]);
    assert_eq!(by_task.entries, [task(8, 1), task(7, 3)]);
    let cases = [
        ("hist:keys=comm", Text("sh".to_owned()), 4),
        ("hist:keys=len.log2:sort=len", Number(0), 1),
        ("hist:keys=len.buckets=10:sort=len", Number(0), 2),
        ("hist:keys=len.hex:sort=len.descending", Number(0x14), 1),
        ("hist:keys=common_latency", Number(0), 4),
    ];
    for (command, key, hits_of_key) in cases {
        let first = entry(&[key], hits_of_key, &[]);
        assert_eq!(counted(command, &hits).entries[0], first, "{command}");
    }
    let at = hit([0, 0, 0xffff_ffff_8100_0104], 1, 0);
    let table = counted("hist:keys=stacktrace", std::slice::from_ref(&at));
    let stack = Stack(vec![0xffff_ffff_8100_0008, 0xffff_ffff_8100_0104]);
    assert_eq!(table.entries, [entry(&[stack], 1, &[])]);
    assert!(table.symbols.is_some());
}

#[test]
fn fields_are_listed_by_their_names_in_the_kernel() {
    let named = |command: &str, line: &str| {
        let trigger = added(command);
        Trigger { kind: trigger.kind.with_listed_names(&fields(line)), ..trigger }.to_string()
    };
    let command = "hist:keys=CPU,stacktrace:sort=CPU,stacktrace";
    assert_eq!(
        named(command, "p:e f"),
        "hist:keys=common_cpu,common_stacktrace:vals=hitcount:sort=common_cpu,common_stacktrace:size=2048"
    );
    assert_eq!(
        named("hist:keys=cpu", "p:e f cpu=%di"),
        "hist:keys=cpu:vals=hitcount:sort=hitcount:size=2048",
        "an argument comes first"
    );
}

#[test]
fn hits_are_a_key_and_a_value_like_others() {
    let hits = [hit([3, 10, 0], 7, 0), hit([3, 20, 0], 7, 0), hit([4, 1, 0], 7, 0)];
    let table = counted("hist:keys=fd:vals=hitcount.percent,len.graph:NOHC:sort=fd", &hits);
    let sums: Vec<_> = table.entries.iter().map(|entry| entry.sums.clone()).collect();
    let number = HistogramNumber::Unsigned;
    assert_eq!(sums, [[number(2), number(30)], [number(1), number(1)]]);
    assert!(table.no_hitcount);
    let of_hits = counted("hist:keys=hitcount", &hits);
    assert_eq!(
        (&*of_hits.entries[0].keys, of_hits.entries[0].hits),
        (&[HistogramKey::Number(1)][..], 3)
    );
    assert_eq!(
        first("hist:keys=len.syscall", &hits[2..]).keys,
        [HistogramValue::Text("sys_write".to_owned())]
    );
}

#[test]
fn a_full_histogram_drops_new_keys_and_counts_the_others() {
    let mut hits: Vec<Hit> = (0..200).map(|fd| hit([fd, 0, 0], 1, 0)).collect();
    hits.push(hit([3, 0, 0], 1, 0));
    let table = counted("hist:keys=fd:size=128:sort=hitcount.descending", &hits);
    assert_eq!(
        (&table.entries[0].keys[..], table.entries[0].hits),
        (&[HistogramKey::Signed(3)][..], 2)
    );
    assert_eq!((table.hits, table.entries.len(), table.dropped), (201, 128, 72));
}

#[test]
fn fields_that_are_not_there_are_named() {
    let refused = |command: &str| {
        let trigger = added(command);
        let TriggerKind::Hist(hist) = &trigger.kind else { panic!("{command}") };
        let list = fields("p:e f fd=%di s=+0(%si):string a=@0x10:u8[4]");
        HistTable::new(hist, &list, false, &NoVariables).unwrap_err()
    };
    for (command, part) in [
        ("hist:keys=fb", "fb"),
        ("hist:keys=common_latency", "common_latency"),
        ("hist:keys=a", "a"),
        ("hist:keys=s.log2", "log2"),
        ("hist:keys=s.syscall", "syscall"),
        ("hist:keys=fd.execname", "execname"),
        ("hist:keys=fd.usecs", "usecs"),
        ("hist:keys=fd:vals=s", "s"),
        ("hist:keys=s:vals=fd.log2", "fd.log2"),
        ("hist:keys=s:vals=fd.syscall", "fd.syscall"),
        ("hist:keys=fd.percent", "percent"),
        ("hist:keys=fd.graph:vals=fd.graph", "graph"),
    ] {
        assert_eq!(refused(command).fault().1, Some(part), "{command}");
    }
    let none = refused("hist:keys=fd:nohitcount");
    assert_eq!((none.code(), none.fault()), ("ENOENT", ("NEED_NOHC_VAL", None)));
    assert!(refused("hist:keys=fb").to_string().contains("fd, s, a, common_pid"));
}

fn triggers(commands: &[&str]) -> Arc<Triggers> {
    let list = fields(LINE);
    let fields = Fields { list: &list, is_return: true, variables: &NoVariables };
    let live = |command: &&str| Arc::new(Live::new(added(command), None, &fields).unwrap());
    Triggers::new(commands.iter().map(live).collect(), false, Vec::new()).expect("there are some")
}

/// No events.
struct NoEvents;

impl SwitchedEvents for NoEvents {
    fn is_due(&self, _: Option<&TraceInstance>, _: &EventSwitch) -> bool {
        false
    }

    fn switch(&self, _: Option<&TraceInstance>, _: &EventSwitch) {
        panic!("it is not due");
    }
}

/// Outcome of a hit: events as the lengths of their back-traces.
fn steps(triggers: &Triggers, is_shown: bool) -> Vec<Result<usize, Control>> {
    let mut steps = Vec::new();
    let shown = triggers.apply(
        hit([0; 3], 1, 0),
        &NoEvents,
        |_| is_shown,
        false,
        &mut steps,
        &mut Vec::new(),
    );
    let found: Vec<_> = steps
        .into_iter()
        .map(|step| match step {
            Step::Keep(hit) => Ok(hit.record.stack.len()),
            Step::Control(control) => Err(control),
            Step::Unmade { .. } => unreachable!("no synthetic event is made here"),
        })
        .collect();
    assert_eq!(found.iter().any(Result::is_ok), shown);
    found
}

#[test]
fn a_switch_of_no_effect_does_not_count() {
    let all = triggers(&["enable_event:g:e:2", "enable_hist:g:e", "traceon:3"]);
    assert_eq!(steps(&all, false), [Err(Control::On)]);
    let lines: Vec<String> = all.list().iter().map(|live| live.line()).collect();
    let expected = ["enable_event:g:e:count=2", "enable_hist:g:e:unlimited", "traceon:count=2"];
    assert_eq!(lines, expected, "with the times that are left");
    assert!(Triggers::new(Vec::new(), false, Vec::new()).is_none());
    assert_eq!(Triggers::new(Vec::new(), true, Vec::new()).map(|all| all.number()), Some(1));
}

#[test]
fn hits_set_triggers_off_in_the_kernels_order_and_as_often_as_told() {
    let all = triggers(&["traceoff:1", "stacktrace:2", "snapshot", "traceon:1"]);
    assert!(all.want_stack);
    let first = [Err(Control::On), Err(Control::Snapshot), Ok(2), Err(Control::Off)];
    assert_eq!(steps(&all, true), first);
    assert_eq!(steps(&all, false), [Err(Control::Snapshot), Ok(2)], "for its back-trace");
    assert_eq!(steps(&all, true), [Err(Control::Snapshot), Ok(0)]);
    assert_eq!(steps(&all, false), [Err(Control::Snapshot)]);
}

#[test]
fn a_paused_histogram_counts_nothing() {
    let all = triggers(&["hist:keys=fd:pause"]);
    let live = &all.list()[0];
    let hits = || live.table().unwrap().counted().hits;
    assert!(live.line().ends_with(":size=2048 [paused]") && !all.want_stack);
    steps(&all, true);
    assert_eq!(hits(), 0);
    live.change(HistChange::Continue);
    steps(&all, false);
    assert_eq!(hits(), 1, "also of an event that is not enabled");
    live.change(HistChange::Clear);
    assert!(hits() == 0 && live.line().ends_with(" [active]"));
}
