//! Triggers of events in trace instances.

use super::*;
use crate::Selection;
use crate::engine::tests::triggers::{set, two_events};
use crate::error::ProbeError;
use crate::events::TraceInstance;
use crate::synthetic::{SYNTHETIC_GROUP, SyntheticCommand, parse_synthetic};
use crate::trigger::{TriggerError, VariableError, parse_trigger};

const BYTES: usize = 1 << 20;

impl Fake {
    fn new_instance(&self) -> Arc<TraceInstance> {
        self.engine.add_instance(BYTES).unwrap()
    }

    fn set_in(
        &self,
        of: &Arc<TraceInstance>,
        event: &str,
        command: &str,
    ) -> Result<(), TriggerError> {
        let command = parse_trigger(command).unwrap();
        match self.engine.set_trigger_at(Some(of), ("kprobes", event), command) {
            Ok(()) => Ok(()),
            Err(ProbeError::Trigger(error)) => Err(error),
            Err(other) => panic!("{event}: {other:?}"),
        }
    }

    fn on_in(&self, of: &Arc<TraceInstance>, event: &str, on: bool) {
        self.engine.set_enabled_in(of, &[("kprobes".into(), event.into())], on).unwrap();
    }

    /// Whether an event is enabled in an instance, and how many triggers it has there.
    fn state_in(&self, of: &TraceInstance, event: &str) -> (bool, usize) {
        let status = self.engine.status_in(of, ("kprobes", event)).unwrap();
        (status.enabled, status.triggers)
    }

    /// Number of events in a store.
    fn kept(&self, store: &crate::EventStore) -> usize {
        self.engine.drain();
        store.read(1, 1000).events.len()
    }

    /// Number of events in the trace of a store.
    fn in_trace(&self, store: &crate::EventStore) -> u64 {
        self.engine.drain();
        store.open_trace().events
    }

    /// Hits of each histogram of an event in an instance.
    fn hits_in(&self, of: &Arc<TraceInstance>, event: &str) -> Vec<u64> {
        let tables = self.engine.histogram_tables_at(Some(of), ("kprobes", event)).unwrap();
        tables.iter().map(|table| table.hits).collect()
    }
}

#[test]
fn each_instance_counts_in_histograms_of_its_own() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    fake.set_in(&foo, "e", "hist:keys=a").unwrap();
    assert_eq!((fake.byte(WORK), fake.state_in(&foo, "e")), (INT3, (false, 1)), "it is armed");
    assert_eq!((fake.status("e").enabled, fake.status("e").triggers), (false, 0));
    fake.set_in(&bar, "e", "hist:keys=a if a == 1").unwrap();
    set(&fake, "e", "hist:keys=a").unwrap();
    fake.run_all(&[WORK, WORK]);
    fake.set_in(&foo, "e", "hist:keys=a:pause").unwrap();
    fake.run(WORK);
    assert_eq!((fake.hits_in(&foo, "e"), fake.hits_in(&bar, "e")), (vec![2], vec![0]));
    assert_eq!(fake.engine.histograms("kprobes", "e").unwrap()[0].hits, 3);
    fake.set_in(&foo, "e", "hist:keys=a:clear").unwrap();
    fake.set_in(&foo, "e", "hist:keys=a:continue").unwrap();
    fake.run(WORK);
    assert_eq!(fake.hits_in(&foo, "e"), [1]);
    assert_eq!(fake.set_in(&foo, "e", "hist:keys=a"), Err(TriggerError::There("hist")));
    assert_eq!([foo.events(), bar.events()].map(|store| fake.kept(store)), [0; 2]);
    assert_eq!(fake.kept(fake.engine.events()), 0, "none is enabled");
    fake.assert_balanced();
    set(&fake, "e", "!hist:keys=a").unwrap();
    fake.engine.remove_histograms_at(Some(&foo), ("kprobes", "e")).unwrap();
    assert_eq!(fake.byte(WORK), INT3, "`bar` has one still");
    fake.engine.remove_instance(&bar).unwrap();
    assert_eq!(fake.byte(WORK), BODY[0]);
    let gone =
        fake.engine.set_trigger_at(Some(&bar), ("kprobes", "e"), parse_trigger("traceon").unwrap());
    assert!(matches!(gone, Err(ProbeError::NoInstance)), "{gone:?}");
}

#[test]
fn what_a_trigger_does_is_of_its_instance() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    for instance in [&foo, &bar] {
        fake.on_in(instance, "e", true);
    }
    fake.engine.set_enabled(Selection::event("kprobes", "e"), true).unwrap();
    fake.set_in(&foo, "e", "traceoff:1").unwrap();
    fake.set_in(&bar, "e", "snapshot:1").unwrap();
    let stores = [fake.engine.events(), foo.events(), bar.events()];
    let tracing = || stores.map(crate::EventStore::is_tracing);
    fake.run_all(&[WORK, WORK]);
    assert_eq!(stores.map(|store| fake.in_trace(store)), [2, 1, 2]);
    assert_eq!(tracing(), [true, false, true]);
    assert_eq!(stores.map(|store| store.snapshot().is_some()), [false, false, true]);
    fake.set_in(&foo, "f", "traceon").unwrap();
    fake.run_all(&[FAR_OFF, WORK]);
    assert_eq!((stores.map(|store| fake.in_trace(store)), tracing()), ([3, 2, 3], [true; 3]));
    // A back-trace is in the trace of that instance alone, also where the event is not enabled.
    fake.on_in(&foo, "e", false);
    fake.set_in(&foo, "e", "stacktrace").unwrap();
    fake.run(WORK);
    fake.engine.drain();
    let stacks = stores.map(|store| {
        let last = store.read(1, 1000).events.pop().unwrap();
        last.stack.as_ref().map_or(0, Vec::len)
    });
    assert_eq!((stacks[0], stacks[2]), (0, 0));
    assert!(stacks[1] > 0, "{stacks:?}");
    assert_eq!(stores.map(|store| fake.in_trace(store)), [4, 3, 4]);
    fake.assert_balanced();
}

#[test]
fn events_are_switched_within_the_instance() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    fake.set_in(&foo, "e", "enable_event:kprobes:f:1").unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [INT3; 2]);
    assert_eq!((fake.state_in(&foo, "f"), fake.state_in(&bar, "f")), ((false, 1), (false, 0)));
    assert_eq!(fake.status("f").triggers, 0);
    let hits = [FAR_OFF, WORK, FAR_OFF, WORK, FAR_OFF];
    fake.run_all(&hits);
    assert_eq!((fake.kept(foo.events()), fake.kept(bar.events())), (2, 0));
    assert_eq!(fake.kept(fake.engine.events()), 0);
    assert_eq!(fake.state_in(&foo, "f"), (true, 1));
    assert!(!fake.status("f").enabled, "at the top it is as it was");
    assert_eq!(
        fake.engine.triggers_at(Some(&foo), ("kprobes", "e")).unwrap(),
        ["enable_event:kprobes:f:count=0"]
    );
    // As at the top, the event stays as it is.
    fake.set_in(&foo, "e", "!enable_event:kprobes:f").unwrap();
    assert_eq!((fake.state_in(&foo, "f"), fake.byte(WORK)), ((true, 0), BODY[0]));
    fake.set_in(&foo, "e", "disable_event:kprobes:f").unwrap();
    fake.run_all(&hits);
    assert_eq!((fake.kept(foo.events()), fake.state_in(&foo, "f")), (3, (false, 1)));
    // Histograms of an event are switched in the instance, too.
    fake.set_in(&foo, "f", "hist:keys=a").unwrap();
    fake.set_in(&bar, "f", "hist:keys=a").unwrap();
    fake.set_in(&foo, "e", "disable_hist:kprobes:f").unwrap();
    fake.run_all(&hits);
    assert_eq!((fake.hits_in(&foo, "f"), fake.hits_in(&bar, "f")), (vec![1], vec![3]));
    assert_eq!(
        fake.set_in(&foo, "e", "enable_event:kprobes:g"),
        Err(TriggerError::NoEvent("kprobes:g".to_owned()))
    );
    fake.engine.remove_instance(&foo).unwrap();
    fake.set_in(&bar, "f", "!hist:keys=a").unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
    for event in ["e", "f"] {
        let found = fake.status(event);
        assert_eq!(found.hits, found.recorded + found.filtered + found.lost, "{found:?}");
    }
}

#[test]
fn switches_in_instances_go_with_either_event() {
    let fake = two_events();
    let foo = fake.new_instance();
    fake.set_in(&foo, "e", "enable_event:kprobes:f").unwrap();
    fake.engine.unregister(Selection::event("kprobes", "e")).unwrap();
    assert_eq!((fake.byte(FAR_OFF), fake.state_in(&foo, "f")), (BODY[0], (false, 0)));
    fake.register("p:e work a=%di");
    assert_eq!(fake.state_in(&foo, "e"), (false, 0), "a new one has none");
    fake.set_in(&foo, "e", "enable_event:kprobes:f").unwrap();
    fake.set_in(&foo, "e", "traceoff").unwrap();
    fake.engine.unregister(Selection::event("kprobes", "f")).unwrap();
    let left = fake.engine.triggers_at(Some(&foo), ("kprobes", "e")).unwrap();
    assert_eq!(left, ["traceoff:unlimited"]);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!([WORK, FAR_OFF].map(|at| fake.byte(at)), [BODY[0]; 2]);
}

#[test]
fn variables_are_those_of_the_instance_and_keep_its_histograms() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    let begin = "hist:keys=a:ts0=common_timestamp";
    let end = "hist:keys=a:lat=common_timestamp-$ts0";
    set(&fake, "e", begin).unwrap();
    let unknown = fake.set_in(&foo, "f", end);
    assert!(
        matches!(unknown, Err(TriggerError::Variable(VariableError::Unknown(_)))),
        "{unknown:?}"
    );
    for instance in [&foo, &bar] {
        fake.set_in(instance, "e", begin).unwrap();
        fake.set_in(instance, "f", end).unwrap();
    }
    fake.run_all(&[FAR_OFF, WORK, FAR_OFF, FAR_OFF]);
    assert_eq!((fake.hits_in(&foo, "f"), fake.hits_in(&bar, "f")), (vec![1], vec![1]));
    let kept = fake.set_in(&foo, "e", &format!("!{begin}"));
    let referenced = VariableError::Referenced("e".to_owned());
    assert_eq!(kept, Err(TriggerError::Variable(referenced)));
    let busy = fake.engine.unregister(Selection::event("kprobes", "e")).unwrap_err();
    assert!(busy.to_string().contains("refers to variables of `e`"), "{busy}");
    fake.engine.remove_instance(&foo).unwrap();
    fake.set_in(&bar, "f", &format!("!{end}")).unwrap();
    fake.engine.unregister(Selection::event("kprobes", "e")).unwrap();
}

#[test]
fn a_synthetic_event_that_an_instance_makes_is_wherever_it_is_enabled() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    let Ok(SyntheticCommand::Define(definition)) = parse_synthetic("pair u64 lat") else {
        panic!("it is one");
    };
    fake.engine.define_synthetic(definition).unwrap();
    fake.set_in(&foo, "e", "hist:keys=CPU:ts0=common_timestamp").unwrap();
    let made = "hist:keys=CPU:lat=common_timestamp-$ts0:onmatch(kprobes.e).pair($lat)";
    fake.set_in(&foo, "f", made).unwrap();
    assert_eq!(fake.engine.delete_synthetic("pair").unwrap_err().code(), "EBUSY");
    let pair: (Arc<str>, Arc<str>) = (SYNTHETIC_GROUP.into(), "pair".into());
    fake.engine.set_enabled_in(&bar, std::slice::from_ref(&pair), true).unwrap();
    fake.engine.enable_synthetic("pair", true).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let stores = [fake.engine.events(), foo.events(), bar.events()];
    assert_eq!(stores.map(|store| fake.in_trace(store)), [1, 0, 1]);
    // One of its own triggers in an instance.
    let trigger = |command: &str| {
        let command = parse_trigger(command).unwrap();
        fake.engine.set_trigger_at(Some(&foo), (SYNTHETIC_GROUP, "pair"), command)
    };
    assert!(trigger("stacktrace").is_err());
    trigger("hist:keys=lat").unwrap();
    trigger("traceoff").unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let tables = fake.engine.histogram_tables_at(Some(&foo), (SYNTHETIC_GROUP, "pair")).unwrap();
    assert_eq!(tables[0].hits, 1);
    assert_eq!(stores.map(|store| fake.in_trace(store)), [2, 0, 2]);
    assert_eq!(stores.map(crate::EventStore::is_tracing), [true, false, true]);
}

#[test]
fn one_handler_of_each_instance_takes_snapshots() {
    let fake = two_events();
    let (foo, bar) = (fake.new_instance(), fake.new_instance());
    let handler = "hist:keys=CPU:m=a:onchange($m).snapshot()";
    fake.set_in(&foo, "e", handler).unwrap();
    assert_eq!(fake.set_in(&foo, "f", handler), Err(TriggerError::TakesSnapshots));
    fake.set_in(&bar, "e", handler).unwrap();
    set(&fake, "f", handler).unwrap();
    assert!(fake.engine.takes_snapshots_at(Some(&foo)) && fake.engine.takes_snapshots());
    fake.set_in(&foo, "e", &format!("!{handler}")).unwrap();
    assert!(
        !fake.engine.takes_snapshots_at(Some(&foo)) && fake.engine.takes_snapshots_at(Some(&bar))
    );
}

#[test]
fn hits_before_a_trigger_of_an_instance_are_not_for_it() {
    let fake = two_events();
    let foo = fake.new_instance();
    fake.on_in(&foo, "e", true);
    fake.run(WORK);
    fake.set_in(&foo, "e", "hist:keys=a").unwrap();
    assert_eq!(fake.hits_in(&foo, "e"), [0]);
    fake.run(WORK);
    fake.set_in(&foo, "e", "traceoff").unwrap();
    assert!(foo.events().is_tracing());
    fake.run(WORK);
    fake.set_in(&foo, "e", "!traceoff").unwrap();
    assert_eq!((fake.kept(foo.events()), fake.hits_in(&foo, "e")), (3, vec![2]));
    assert!(!foo.events().is_tracing());
}
