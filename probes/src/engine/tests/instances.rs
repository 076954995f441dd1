//! Trace instances: which hits are events of which.

use super::*;
use crate::definition::Action;
use crate::engine::tests::triggers::two_events;
use crate::error::ProbeError;
use crate::events::TraceInstance;
use crate::synthetic::{SYNTHETIC_GROUP, SyntheticCommand, parse_synthetic};
use crate::trigger::{TriggerError, parse_trigger};
use crate::{Batch, Selection};

const BYTES: usize = 1 << 20;

impl Fake {
    fn instance(&self) -> Arc<TraceInstance> {
        self.engine.add_instance(BYTES).unwrap()
    }

    fn enable_in(&self, of: &Arc<TraceInstance>, event: &str, on: bool) -> Result<(), ProbeError> {
        self.engine.set_enabled_in(of, &[("kprobes".into(), event.into())], on)
    }

    fn filter_in(&self, of: &Arc<TraceInstance>, filter: Option<&str>) -> Result<(), ProbeError> {
        let filter = filter.map(|text| text.parse().unwrap());
        self.engine.set_filter_in(of, ("kprobes", "e"), filter)
    }

    fn set_top(&self, event: &str, on: bool) {
        self.engine.set_enabled(Selection::event("kprobes", event), on).unwrap();
    }

    /// Number of events of the engine's own, and of an instance.
    fn events_of(&self, of: &TraceInstance) -> (usize, usize) {
        self.engine.drain();
        let count = |store: &crate::EventStore| store.read(1, 1000).events.len();
        (count(self.engine.events()), count(of.events()))
    }
}

#[test]
fn each_has_the_hits_of_the_events_that_are_enabled_in_it() {
    let fake = two_events();
    let (foo, bar) = (fake.instance(), fake.instance());
    fake.enable_in(&foo, "e", true).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [INT3, BODY[0]]);
    assert!(fake.flags("e").is_empty() && !fake.status("e").enabled, "armed, not at the top");
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!((fake.events_of(&foo), fake.events_of(&bar)), ((0, 1), (0, 0)));
    fake.set_top("e", true);
    fake.enable_in(&bar, "f", true).unwrap();
    fake.run_all(&[WORK, FAR_OFF, FAR_OFF]);
    assert_eq!((fake.events_of(&foo), fake.events_of(&bar)), ((1, 2), (1, 2)));
    fake.enable_in(&foo, "e", false).unwrap();
    fake.run_all(&[WORK]);
    assert_eq!(fake.events_of(&foo), (2, 2), "the top has it still");
    fake.enable_in(&foo, "e", true).unwrap();
    fake.set_top("e", false);
    fake.run_all(&[WORK]);
    assert_eq!((fake.events_of(&foo), fake.byte(WORK)), ((2, 3), INT3));
    let status = fake.status("e");
    assert_eq!((status.hits, status.recorded), (4, 4));
    fake.enable_in(&foo, "e", false).unwrap();
    fake.enable_in(&bar, "f", false).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
    fake.assert_balanced();
}

#[test]
fn each_has_filters_of_its_own() {
    let fake = two_events();
    let foo = fake.instance();
    fake.enable_in(&foo, "e", true).unwrap();
    fake.set_top("e", true);
    // The hits have 0.
    fake.engine.set_filter("kprobes", "e", Some("a == 1".parse().unwrap())).unwrap();
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (0, 1), "the top's filter is for the top");
    fake.engine.set_filter("kprobes", "e", None).unwrap();
    fake.filter_in(&foo, Some("a == 1")).unwrap();
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (1, 1));
    fake.filter_in(&foo, Some("a == 0")).unwrap();
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (2, 2));
    let status = fake.engine.status_in(&foo, ("kprobes", "e")).unwrap();
    assert_eq!((status.enabled, status.filter.as_deref()), (true, Some("a == 0")));
    assert_eq!(fake.status("e").filter, None);
    assert!(matches!(fake.filter_in(&foo, Some("b == 1")), Err(ProbeError::Filter { .. })));
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (3, 3), "the one of before stays");
    // The last one that the instance's filter refuses leaves none at the top either.
    fake.filter_in(&foo, Some("a == 1")).unwrap();
    fake.set_top("e", false);
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (3, 3));
    let status = fake.status("e");
    assert_eq!((status.hits, status.recorded, status.filtered), (5, 4, 1));
    fake.assert_balanced();
}

#[test]
fn hits_before_a_change_are_of_before() {
    let fake = two_events();
    let foo = fake.instance();
    fake.set_top("e", true);
    fake.engine.set_filter("kprobes", "e", Some("a == 0".parse().unwrap())).unwrap();
    fake.run(WORK);
    fake.enable_in(&foo, "e", true).unwrap();
    fake.run(WORK);
    fake.filter_in(&foo, Some("a == 1")).unwrap();
    fake.run(WORK);
    fake.filter_in(&foo, None).unwrap();
    fake.run(WORK);
    fake.engine.set_filter("kprobes", "e", Some("a == 1".parse().unwrap())).unwrap();
    fake.run(WORK);
    fake.enable_in(&foo, "e", false).unwrap();
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (4, 3));
    fake.assert_balanced();
}

#[test]
fn one_that_is_removed_enables_nothing() {
    let fake = two_events();
    let (foo, bar) = (fake.instance(), fake.instance());
    let both = [("kprobes".into(), "e".into()), ("kprobes".into(), "f".into())];
    fake.engine.set_enabled_in(&foo, &both, true).unwrap();
    fake.enable_in(&bar, "e", true).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let mut enabled = fake.engine.enabled_in(&foo);
    enabled.sort();
    assert_eq!(enabled, both);
    fake.engine.remove_instance(&foo).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [INT3, BODY[0]]);
    assert_eq!(fake.events_of(&foo), (0, 2), "what was hit before");
    fake.run(WORK);
    assert_eq!((fake.events_of(&foo), fake.events_of(&bar)), ((0, 2), (0, 2)));
    for refused in [
        fake.enable_in(&foo, "e", true),
        fake.filter_in(&foo, None),
        fake.engine.resize_instance(&foo, BYTES),
        fake.engine.remove_instance(&foo),
    ] {
        assert!(matches!(refused, Err(ProbeError::NoInstance)), "{refused:?}");
    }
    assert_eq!(ProbeError::NoInstance.code(), "ENODEV");
}

#[test]
fn an_event_that_goes_leaves_nothing_in_them() {
    let fake = two_events();
    let foo = fake.instance();
    let text = fake.text();
    fake.filter_in(&foo, Some("a == 0")).unwrap();
    assert_eq!(fake.text(), text, "a filter alone arms nothing");
    fake.enable_in(&foo, "e", true).unwrap();
    fake.run(WORK);
    fake.engine.unregister(Selection::event("kprobes", "e")).unwrap();
    assert_eq!((fake.events_of(&foo), fake.byte(WORK)), ((0, 1), BODY[0]));
    fake.register("p:e work a=%di");
    fake.set_top("e", false);
    let status = fake.engine.status_in(&foo, ("kprobes", "e")).unwrap();
    assert!(!status.enabled && status.filter.is_none(), "{status:?}");
    assert_eq!(fake.byte(WORK), BODY[0]);
    assert!(matches!(fake.enable_in(&foo, "g", true), Err(ProbeError::NoSuchProbe(_))));
}

#[test]
fn a_probe_that_joins_an_event_is_enabled_where_the_event_is() {
    let fake = Fake::booted();
    let foo = fake.instance();
    let define =
        |line: &str| fake.engine.register(Batch::from(parse_line(line).unwrap()).joining());
    define("p:e work a=%di").unwrap();
    fake.set_top("e", false);
    fake.enable_in(&foo, "e", true).unwrap();
    fake.filter_in(&foo, Some("a == 0")).unwrap();
    define("p:e far_off a=%di").unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!(fake.events_of(&foo), (0, 2));
}

#[test]
fn triggers_are_the_tops_and_see_what_instances_have() {
    let fake = two_events();
    let foo = fake.instance();
    fake.enable_in(&foo, "e", true).unwrap();
    let set = |command: &str| {
        fake.engine.set_trigger("kprobes", "e", parse_trigger(command).unwrap()).unwrap();
    };
    set("hist:keys=a");
    set("traceoff");
    set("enable_event:kprobes:f:1");
    fake.run_all(&[WORK, FAR_OFF, WORK]);
    assert_eq!(fake.events_of(&foo), (1, 2), "the `f` that `e` enables is the top's");
    assert!(!fake.engine.events().is_tracing() && foo.events().is_tracing());
    assert_eq!(fake.engine.histograms("kprobes", "e").unwrap()[0].hits, 2);
    for command in ["!hist:keys=a", "!traceoff", "!enable_event:kprobes:f"] {
        set(command);
    }
    assert_eq!(fake.byte(WORK), INT3, "the instance has it still");
    fake.run(WORK);
    assert_eq!(fake.events_of(&foo), (1, 3));
    fake.enable_in(&foo, "e", false).unwrap();
    assert_eq!(fake.byte(WORK), BODY[0]);
    fake.assert_balanced();
}

#[test]
fn probes_that_do_more_than_record_are_in_none() {
    let fake = Fake::booted();
    let foo = fake.instance();
    let mut definition = parse_line("p:e work").unwrap();
    definition.actions = vec![Action::Record, Action::Return(1)];
    fake.engine.register(definition).unwrap();
    fake.register("p:f far_off a=%di");
    let both = [("kprobes".into(), "f".into()), ("kprobes".into(), "e".into())];
    let refused = |event: &str| match fake.enable_in(&foo, event, true) {
        Err(ProbeError::Trigger(error)) => error,
        other => panic!("{event}: {other:?}"),
    };
    assert_eq!(refused("e"), TriggerError::NotOnlyRecords);
    assert!(fake.engine.set_enabled_in(&foo, &both, true).is_err());
    assert!(fake.engine.enabled_in(&foo).is_empty(), "all or none");
}

#[test]
fn before_the_kernel_has_begun_an_event_is_enabled_without_filters() {
    let fake = Fake::new();
    let foo = fake.instance();
    fake.register("p:e work a=%di");
    fake.set_top("e", false);
    let assert_waits = |refused: Result<(), ProbeError>| {
        let is_it = matches!(&refused, Err(ProbeError::Trigger(TriggerError::Pending)));
        assert!(is_it, "{refused:?}");
    };
    assert_waits(fake.filter_in(&foo, Some("a == 1")));
    fake.enable_in(&foo, "e", true).unwrap();
    let top = |filter: Option<&str>| {
        fake.engine.set_filter("kprobes", "e", filter.map(|text| text.parse().unwrap()))
    };
    assert_waits(top(Some("a == 1")));
    fake.enable_in(&foo, "e", false).unwrap();
    top(Some("a == 1")).unwrap();
    assert_waits(fake.enable_in(&foo, "e", true));
}

#[test]
fn a_synthetic_event_is_enabled_in_them_too() {
    let fake = two_events();
    let foo = fake.instance();
    let Ok(SyntheticCommand::Define(definition)) = parse_synthetic("pair u64 lat") else {
        panic!("it is one");
    };
    fake.engine.define_synthetic(definition).unwrap();
    let set = |event: &str, command: &str| {
        fake.engine.set_trigger("kprobes", event, parse_trigger(command).unwrap()).unwrap();
    };
    set("e", "hist:keys=CPU:ts0=common_timestamp");
    set("f", "hist:keys=CPU:lat=common_timestamp-$ts0:onmatch(kprobes.e).pair($lat)");
    let pair = [(SYNTHETIC_GROUP.into(), "pair".into())];
    fake.engine.set_enabled_in(&foo, &pair, true).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!(fake.events_of(&foo), (0, 1));
    assert_eq!(fake.engine.delete_synthetic("pair").unwrap_err().code(), "EBUSY");
    let filter = Some("lat < 0".parse().unwrap());
    fake.engine.set_filter_in(&foo, (SYNTHETIC_GROUP, "pair"), filter).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!(fake.events_of(&foo), (0, 1));
    fake.engine.remove_instance(&foo).unwrap();
    assert!(!fake.engine.synthetics()[0].enabled);
}

#[test]
fn their_memory_is_of_the_probes_budget() {
    let limits = Limits { memory: 6 << 20, ..Limits::default() };
    let guest = Arc::new(FakeGuest::new(MIB));
    let engine = Engine::new(guest, GuestClock::default(), KernelHints::default(), limits);
    let foo = engine.add_instance(2 << 20).unwrap();
    let refused = engine.add_instance(1 << 20).map(drop);
    assert!(matches!(refused, Err(ProbeError::NoMemory { .. })), "{refused:?}");
    assert!(engine.resize_instance(&foo, usize::MAX).is_err());
    assert!(engine.resize_instance(&foo, 3 << 20).is_err(), "with its own 4 KiB");
    assert_eq!(foo.events().memory(), 2 << 20);
    assert!(engine.add_instance(1 << 20).is_err(), "it has what it had");
    engine.resize_instance(&foo, 1 << 20).unwrap();
    assert_eq!(foo.events().memory(), 1 << 20);
    let bar = engine.add_instance(1 << 20).unwrap();
    engine.remove_instance(&bar).unwrap();
    assert!(engine.resize_instance(&foo, 2 << 20).is_err(), "a reader has it still");
    drop(bar);
    engine.resize_instance(&foo, 2 << 20).unwrap();
}
