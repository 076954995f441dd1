//! Triggers of events, as they come and go.

use super::*;
use crate::definition::Action;
use crate::error::ProbeError;
use crate::trigger::{HistogramNumber, TriggerError, VariableError, parse_trigger};
use crate::{Batch, Selection};

impl Fake {
    fn trigger(&self, command: &str) -> Result<(), ProbeError> {
        self.engine.set_trigger("kprobes", "e", parse_trigger(command).unwrap())
    }

    /// Events shown, and hits of the first histogram.
    fn counted(&self) -> (usize, u64) {
        self.engine.drain();
        let hists = self.engine.histograms("kprobes", "e").unwrap();
        let hits = hists.first().map_or(0, |hist| hist.hits);
        (self.engine.events().read(1, 100).events.len(), hits)
    }

    pub(super) fn run_all(&self, places: &[Gva]) {
        for at in places {
            self.run(*at);
        }
    }

    pub(super) fn assert_balanced(&self) {
        let found = self.status("e");
        assert_eq!(found.hits, found.recorded + found.filtered + found.lost, "{found:?}");
    }
}

#[test]
fn an_event_that_is_not_enabled_is_armed_for_its_triggers_alone() {
    let fake = Fake::booted();
    fake.register("p:e work a=%di");
    fake.engine.set_enabled(Selection::event("kprobes", "e"), false).unwrap();
    assert_eq!(fake.byte(WORK), BODY[0]);
    fake.trigger("hist:keys=a").unwrap();
    assert_eq!(
        (fake.byte(WORK), fake.status("e").enabled, fake.status("e").triggers),
        (INT3, false, 1)
    );
    assert!(fake.flags("e").is_empty(), "it is armed");
    fake.run(WORK);
    assert_eq!(fake.counted(), (0, 1));
    fake.engine.set_enabled(Selection::event("kprobes", "e"), true).unwrap();
    fake.run(WORK);
    assert_eq!(fake.counted(), (1, 2));
    fake.engine.set_filter("kprobes", "e", Some("a == 0x123456".parse().unwrap())).unwrap();
    fake.run(WORK);
    assert_eq!(fake.counted(), (1, 3), "its filter is for what is shown");
    fake.assert_balanced();
    // What was hit for it alone is not shown when it has gone.
    fake.run(WORK);
    fake.trigger("!hist:keys=a").unwrap();
    fake.run(WORK);
    assert_eq!(fake.counted(), (1, 0));
    fake.assert_balanced();
    fake.engine.set_enabled(Selection::event("kprobes", "e"), false).unwrap();
    assert_eq!(fake.byte(WORK), BODY[0]);
}

#[test]
fn hits_from_before_the_first_trigger_are_not_counted_by_it() {
    let fake = Fake::booted();
    fake.register("p:e work a=%di");
    fake.run(WORK);
    fake.trigger("hist:keys=a").unwrap();
    assert_eq!(fake.counted(), (1, 0));
    fake.run(WORK);
    assert_eq!(fake.counted(), (2, 1));
}

#[test]
fn a_probe_goes_with_its_triggers() {
    let fake = Fake::booted();
    let text = fake.text();
    for kind in ["p", "r"] {
        fake.register(&format!("{kind}:e work"));
        fake.trigger("hist:keys=common_pid").unwrap();
        fake.trigger("stacktrace").unwrap();
        fake.engine.unregister(Selection::all()).unwrap();
        assert_eq!(fake.text(), text);
        assert!(fake.engine.traceless().is_some());
    }
}

#[test]
fn a_probe_that_joins_an_event_has_its_triggers() {
    let fake = Fake::booted();
    let define =
        |line: &str| fake.engine.register(Batch::from(parse_line(line).unwrap()).joining());
    define("p:e work").unwrap();
    fake.engine.set_enabled(Selection::event("kprobes", "e"), false).unwrap();
    fake.trigger("hist:keys=CPU").unwrap();
    define("p:e far_off").unwrap();
    assert_eq!((fake.byte(FAR_OFF), fake.status("e").enabled), (INT3, false));
    fake.run(WORK);
    fake.run(FAR_OFF);
    assert_eq!(fake.counted(), (0, 2));
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
}

#[test]
fn probes_that_do_more_than_record_have_no_triggers_and_events_no_more_than_some() {
    let fake = Fake::booted();
    let mut definition = parse_line("p:e work").unwrap();
    definition.actions = vec![Action::Record, Action::Return(1)];
    fake.engine.register(definition).unwrap();
    let refused = |command: &str| match fake.trigger(command) {
        Err(ProbeError::Trigger(error)) => error,
        other => panic!("{command}: {other:?}"),
    };
    assert_eq!(refused("hist:keys=CPU"), TriggerError::NotOnlyRecords);
    fake.engine.unregister(Selection::all()).unwrap();
    fake.register("p:e work a=%di");
    for size in 1..=16 {
        fake.trigger(&format!("hist:keys=a.buckets={size}")).unwrap();
    }
    assert_eq!(refused("hist:keys=CPU"), TriggerError::TooMany(16));
    assert_eq!(refused("hist:keys=a.buckets=3"), TriggerError::There("hist"));
    assert_eq!(refused("hist:keys=CPU:clear"), TriggerError::NotThere("hist"));
    fake.trigger("!traceoff").unwrap();
    fake.engine.remove_histograms("kprobes", "e").unwrap();
    assert!(fake.engine.triggers("kprobes", "e").unwrap().is_empty());
}

/// An event `e` at one function, with an argument, and an event `f` at another, neither enabled.
pub(super) fn two_events() -> Fake {
    let fake = Fake::booted();
    fake.register("p:e work a=%di");
    fake.register("p:f far_off a=%di");
    fake.engine.set_enabled(Selection::all(), false).unwrap();
    fake
}

#[test]
fn an_event_is_switched_by_hits_of_another_in_the_order_of_time() {
    let fake = two_events();
    fake.trigger("enable_event:kprobes:f:1").unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [INT3; 2]);
    let shown = || {
        fake.engine.drain();
        fake.engine.events().read(1, 100).events.len()
    };
    let found = || (fake.status("f").enabled, fake.status("f").triggers);
    assert_eq!((found(), shown()), ((false, 1), 0));
    // All of it is drained at once.
    let hits = [FAR_OFF, WORK, FAR_OFF, WORK, FAR_OFF];
    fake.run_all(&hits);
    assert_eq!((shown(), found()), (2, (true, 1)), "no hit of before, and none of `e`");
    let line = |event: &str| fake.engine.triggers("kprobes", event).unwrap().concat();
    assert_eq!((line("e"), line("f")), ("enable_event:kprobes:f:count=0".into(), String::new()));
    let refused = |command: &str| match fake.trigger(command) {
        Err(ProbeError::Trigger(error)) => error,
        other => panic!("{command}: {other:?}"),
    };
    assert_eq!(refused("disable_event:kprobes:f"), TriggerError::There("disable_event"));
    assert_eq!(refused("enable_event:kprobes:g"), TriggerError::NoEvent("kprobes:g".to_owned()));
    // As in the kernel, the event stays as it is then.
    fake.trigger("!enable_event:kprobes:f").unwrap();
    assert_eq!((found(), fake.byte(FAR_OFF), fake.byte(WORK)), ((true, 0), INT3, BODY[0]));
    fake.trigger("disable_event:kprobes:f").unwrap();
    fake.run_all(&hits);
    assert_eq!((shown(), found()), (3, (false, 1)));
    fake.trigger("!disable_event:kprobes:f").unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
    for event in ["e", "f"] {
        let found = fake.status(event);
        assert_eq!(found.hits, found.recorded + found.filtered + found.lost, "{found:?}");
    }
}

#[test]
fn a_hit_that_enables_its_own_event_is_shown() {
    let fake = two_events();
    fake.trigger("enable_event:kprobes:e if a == 0x123456").unwrap();
    fake.run(WORK);
    assert_eq!((fake.counted().0, fake.status("e").enabled), (0, false), "not this one");
    fake.trigger("!enable_event:kprobes:e").unwrap();
    fake.trigger("enable_event:kprobes:e").unwrap();
    fake.run(WORK);
    assert_eq!((fake.counted().0, fake.status("e").enabled), (1, true));
    fake.assert_balanced();
}

#[test]
fn histograms_of_an_event_are_switched_by_another() {
    let fake = two_events();
    let other = |command: &str| {
        fake.engine.set_trigger("kprobes", "f", parse_trigger(command).unwrap()).unwrap();
    };
    fake.trigger("hist:keys=a:pause").unwrap();
    other("enable_hist:kprobes:e");
    fake.run_all(&[WORK, FAR_OFF, WORK, WORK]);
    assert_eq!(fake.counted(), (0, 2));
    other("!enable_hist:kprobes:e");
    other("disable_hist:kprobes:e");
    fake.run_all(&[WORK, FAR_OFF, WORK]);
    assert_eq!(fake.counted(), (0, 3));
    assert!(fake.engine.triggers("kprobes", "e").unwrap().concat().ends_with("[paused]"));
}

#[test]
fn histograms_of_one_name_have_their_entries_together() {
    let fake = two_events();
    let set = |event: &str, command: &str| {
        fake.engine.set_trigger("kprobes", event, parse_trigger(command).unwrap())
    };
    let refused = |event: &str, command: &str| match set(event, command) {
        Err(ProbeError::Trigger(error)) => error,
        other => panic!("{command}: {other:?}"),
    };
    let hits = |event: &str| {
        fake.engine.drain();
        let found = fake.engine.histograms("kprobes", event).unwrap();
        found.iter().map(|hist| hist.hits).collect::<Vec<_>>()
    };
    let named = "hist:name=both:keys=a";
    set("e", &format!("{named}:size=128")).unwrap();
    set("f", named).unwrap();
    fake.run_all(&[WORK, FAR_OFF, WORK]);
    assert_eq!((hits("e"), hits("f")), (vec![3], vec![3]));
    let line = |event: &str| fake.engine.triggers("kprobes", event).unwrap().concat();
    assert_eq!(line("f"), "hist:name=both:keys=a:vals=hitcount:sort=hitcount:size=128 [active]");
    // Each event pauses for itself.
    set("f", &format!("{named}:pause")).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!(hits("f"), [4]);
    for other in ["keys=a.hex", "keys=common_pid", "keys=a:vals=a", "keys=a:sort=a"] {
        let error = refused("f", &format!("hist:name=both:{other}"));
        assert_eq!(error, TriggerError::OtherOfName("both".to_owned()), "{other}");
    }
    assert_eq!(refused("e", named), TriggerError::There("hist"));
    set("e", "hist:keys=a").unwrap();
    set("e", "!hist:keys=a").unwrap();
    // They stay with the last of them.
    set("e", &format!("!{named}")).unwrap();
    assert_eq!((hits("e"), hits("f")), (vec![], vec![4]));
    set("f", &format!("{named}:clear")).unwrap();
    assert_eq!(hits("f"), [0]);
    set("f", &format!("!{named}")).unwrap();
    set("e", "hist:name=both:keys=a.hex").unwrap();
    assert_eq!(hits("e"), [0], "a new one");
}

#[test]
fn switches_go_with_either_event() {
    let fake = two_events();
    fake.trigger("enable_event:kprobes:f").unwrap();
    fake.engine.unregister(Selection::event("kprobes", "e")).unwrap();
    assert_eq!((fake.byte(FAR_OFF), fake.status("f").triggers), (BODY[0], 0));
    fake.register("p:e work");
    fake.trigger("enable_event:kprobes:f").unwrap();
    fake.engine.unregister(Selection::event("kprobes", "f")).unwrap();
    assert_eq!(fake.engine.triggers("kprobes", "e").unwrap(), Vec::<String>::new());
    assert_eq!(fake.byte(WORK), INT3, "it is enabled");
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
}

#[test]
fn text_that_the_guest_rewrote_keeps_nobody_from_removing_a_trigger() {
    let fake = Fake::booted();
    fake.register("p:e work");
    fake.trigger("hist:keys=CPU").unwrap();
    fake.write(WORK, &[0x90]);
    fake.engine.patrol();
    assert_eq!(fake.flags("e"), [StatusFlag::Clobbered]);
    fake.trigger("traceoff").unwrap();
    fake.trigger("!traceoff").unwrap();
    fake.trigger("!hist:keys=CPU").unwrap();
    assert_eq!(fake.byte(WORK), 0x90);
}

#[test]
fn histograms_are_of_the_memory_for_probes() {
    // 131,072 entries of 592 bytes each: 20 in 1,536 MiB.
    const LARGE: &str = "hist:keys=comm,common_stacktrace,a:size=131072";
    const FIT: usize = 20;
    let fake = Fake::booted();
    let set = |n: usize, line: &str| {
        fake.engine.set_trigger("kprobes", &format!("e{n}"), parse_trigger(line).unwrap())
    };
    (0..=FIT).for_each(|n| fake.register(&format!("p:e{n} work a=%di")));
    (0..FIT).for_each(|n| set(n, LARGE).unwrap());
    let refused = set(FIT, LARGE).unwrap_err();
    assert!(matches!(refused, ProbeError::NoMemory { .. }), "{refused}");
    assert_eq!((refused.code(), fake.status("e20").triggers), ("ENOMEM", 0));
    set(FIT, "hist:keys=a").unwrap();
    set(0, &format!("!{LARGE}")).unwrap();
    set(FIT, LARGE).unwrap();
    assert!(set(0, LARGE).is_err());
    fake.engine.unregister(Selection::event("kprobes", "e1")).unwrap();
    set(0, LARGE).unwrap();
}

/// Sets a trigger of an event.
pub(super) fn set(fake: &Fake, event: &str, command: &str) -> Result<(), TriggerError> {
    match fake.engine.set_trigger("kprobes", event, parse_trigger(command).unwrap()) {
        Ok(()) => Ok(()),
        Err(ProbeError::Trigger(error)) => Err(error),
        Err(other) => panic!("{command}: {other:?}"),
    }
}

#[test]
fn the_time_between_two_events_is_a_variable() {
    let fake = two_events();
    set(&fake, "e", "hist:keys=a:ts0=common_timestamp").unwrap();
    set(&fake, "f", "hist:keys=a:lat=common_timestamp-$ts0").unwrap();
    set(&fake, "f", "hist:keys=a:vals=$lat,hitcount").unwrap();
    // A begin before each end counts, and each begin once.
    fake.run_all(&[FAR_OFF, WORK, FAR_OFF, FAR_OFF, WORK, WORK, FAR_OFF]);
    fake.engine.drain();
    let hists = fake.engine.histograms("kprobes", "f").unwrap();
    let hits: Vec<u64> = hists.iter().map(|hist| hist.hits).collect();
    // An alias of the latency is read at each hit after the first.
    assert_eq!(hits, [2, 3]);
    let lines = fake.engine.triggers("kprobes", "f").unwrap();
    assert_eq!(
        lines[0],
        "hist:keys=a:vals=hitcount:lat=common_timestamp-$ts0:sort=hitcount:size=2048:clock=global [active]"
    );
}

#[test]
fn histograms_may_differ_in_their_conditions_alone() {
    let fake = two_events();
    let conditions = [" if a < 5", " if a > 5", ""];
    for condition in conditions {
        set(&fake, "e", &format!("hist:keys=a{condition}")).unwrap();
        let again = set(&fake, "e", &format!("hist:keys=a{condition}"));
        assert_eq!(again.unwrap_err(), TriggerError::There("hist"));
    }
    set(&fake, "e", "hist:keys=a:pause if a > 5").unwrap();
    set(&fake, "e", "!hist:keys=a if a > 6").unwrap();
    let state = |line: &str| line.rsplit_once(' ').map(|(_, state)| state.to_owned());
    let states = || -> Vec<_> {
        fake.engine.triggers("kprobes", "e").unwrap().iter().filter_map(|l| state(l)).collect()
    };
    assert_eq!(states(), ["[active]", "[paused]", "[active]"]);
    set(&fake, "e", "!hist:keys=a if a > 5").unwrap();
    assert_eq!(states(), ["[active]", "[active]"]);
}

#[test]
fn a_histogram_whose_variables_others_read_stays() {
    let fake = two_events();
    let busy = |error: Result<(), ProbeError>| {
        let error = error.unwrap_err();
        assert_eq!(error.code(), "EBUSY");
        assert_eq!(error.to_string(), VariableError::Referenced("e".to_owned()).to_string());
    };
    let unregister = |event: &str| {
        let result = fake.engine.unregister(Selection::event("kprobes", event));
        result.map(drop).map_err(ProbeError::from)
    };
    set(&fake, "e", "hist:keys=a:x=a").unwrap();
    set(&fake, "e", "hist:keys=a").unwrap();
    set(&fake, "f", "hist:keys=a:y=a-$x").unwrap();
    busy(set(&fake, "e", "!hist:keys=a:x=a").map_err(ProbeError::from));
    busy(unregister("e"));
    set(&fake, "e", "enable_hist:kprobes:f").unwrap();
    fake.engine.remove_histograms("kprobes", "e").unwrap();
    assert_eq!(fake.engine.triggers("kprobes", "e").unwrap().len(), 2, "as in the kernel");
    set(&fake, "e", "!hist:keys=a").unwrap();
    set(&fake, "f", "!hist:keys=a:y=a-$x").unwrap();
    set(&fake, "e", "!hist:keys=a:x=a").unwrap();
    set(&fake, "e", "hist:keys=a:x=a").unwrap();
    set(&fake, "f", "hist:keys=a:y=a-$x").unwrap();
    fake.engine.unregister(Selection::all()).unwrap();
    assert!(fake.engine.traceless().is_some());
}

#[test]
fn a_variable_is_found_by_its_name_or_its_event() {
    let fake = two_events();
    let error = |event: &str, command: &str| set(&fake, event, command).unwrap_err().fault().0;
    set(&fake, "e", "hist:keys=a:x=a+5").unwrap();
    assert_eq!(error("e", "hist:keys=a.hex:x=1"), "DUPLICATE_VAR");
    assert_eq!(error("e", "hist:keys=a:x=a:pause"), "DUPLICATE_VAR", "as in the kernel");
    assert_eq!(error("f", "hist:keys=a:vals=$y"), "VAR_NOT_FOUND");
    assert_eq!(error("f", "hist:keys=a:vals=kprobes.f.$x"), "VAR_NOT_FOUND");
    assert_eq!(error("f", "hist:keys=a:vals=$x+1:y=$x+$y"), "VAR_NOT_FOUND");
    set(&fake, "f", "hist:keys=a:x=$x").unwrap();
    assert_eq!(error("f", "hist:keys=a:vals=$x"), "VAR_NOT_UNIQUE");
    set(&fake, "f", "hist:keys=a:vals=kprobes.f.$x,kprobes.e.$x").unwrap();
    set(&fake, "e", "hist:keys=a:vals=kprobes.e.$own:own=a").unwrap();
    let lines = fake.engine.triggers("kprobes", "e").unwrap();
    assert!(lines[1].starts_with("hist:keys=a:vals=hitcount,a:own=a:"), "{lines:?}");
    // Also of the same event, in the order in which they were set.
    set(&fake, "e", "hist:keys=a:vals=kprobes.e.$x").unwrap();
    fake.run_all(&[WORK, FAR_OFF, WORK]);
    fake.engine.drain();
    let last = |event: &str| {
        let hists = fake.engine.histograms("kprobes", event).unwrap();
        let last = hists.last().unwrap();
        (last.hits, last.values.clone(), last.entries[0].sums.clone())
    };
    let number = HistogramNumber::Unsigned;
    let values = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(last("e"), (2, values(&["kprobes.e.$x"]), vec![number(2 * 5)]));
    let expected = vec![number(5); 2];
    assert_eq!(last("f"), (1, values(&["kprobes.f.$x", "kprobes.e.$x"]), expected));
}

#[test]
fn histograms_of_one_name_share_their_variables() {
    let fake = two_events();
    set(&fake, "e", "hist:name=n:keys=a:x=a").unwrap();
    let other = TriggerError::OtherOfName("n".to_owned());
    assert_eq!(set(&fake, "f", "hist:name=n:keys=a"), Err(other.clone()));
    assert_eq!(set(&fake, "f", "hist:name=n:keys=a:x=1"), Err(other));
    set(&fake, "f", "hist:name=n:keys=a:x=a").unwrap();
    set(&fake, "f", "hist:keys=a:vals=$x").unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    fake.engine.drain();
    let hits = |event: &str| {
        let hists = fake.engine.histograms("kprobes", event).unwrap();
        hists.iter().map(|hist| hist.hits).collect::<Vec<_>>()
    };
    assert_eq!((hits("e"), hits("f")), (vec![2], vec![2, 1]));
}

#[test]
fn one_handler_at_a_time_takes_snapshots() {
    const SNAPSHOTS: &str = "hist:name=n:keys=a:x=a+1:onchange($x).snapshot()";
    let fake = two_events();
    let snapshot = || fake.engine.events().snapshot().map(|page| page.events());
    set(&fake, "e", SNAPSHOTS).unwrap();
    assert!(fake.engine.takes_snapshots());
    let busy = set(&fake, "f", "hist:keys=a:x=a:onmax($x).snapshot()").unwrap_err();
    assert_eq!((busy.code(), &busy), ("EBUSY", &TriggerError::TakesSnapshots));
    // Histograms of one name are one.
    set(&fake, "f", SNAPSHOTS).unwrap();
    fake.engine.set_enabled(Selection::event("kprobes", "f"), true).unwrap();
    fake.run_all(&[FAR_OFF, WORK, FAR_OFF]);
    fake.engine.drain();
    assert_eq!(snapshot(), Some(1), "with the first hit, as all have one value");
    set(&fake, "e", &format!("!{SNAPSHOTS}")).unwrap();
    assert!(fake.engine.takes_snapshots());
    set(&fake, "f", &format!("!{SNAPSHOTS}")).unwrap();
    assert!(!fake.engine.takes_snapshots());
    let two = "hist:keys=a:x=a:onmax($x).snapshot():onchange($x).snapshot()";
    assert_eq!(set(&fake, "f", two), Err(TriggerError::TakesSnapshots));
}
