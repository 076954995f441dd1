//! Tests of synthetic events.

use super::*;
use crate::Batch;
use crate::engine::Selection;
use crate::engine::tests::triggers::{set, two_events};
use crate::error::ProbeError;
use crate::events::Event;
use crate::synthetic::{SYNTHETIC_GROUP, SyntheticCommand, SyntheticError, parse_synthetic};
use crate::trigger::{TriggerError, parse_trigger};

fn define(fake: &Fake, line: &str) -> Result<(), ProbeError> {
    let Ok(SyntheticCommand::Define(definition)) = parse_synthetic(line) else { panic!("{line}") };
    fake.engine.define_synthetic(definition)
}

fn trigger(fake: &Fake, command: &str) -> Result<(), ProbeError> {
    fake.engine.set_trigger(SYNTHETIC_GROUP, "pair", parse_trigger(command).unwrap())
}

/// Events `e` and `f`, and a synthetic event `pair` for each `e` with an `f` after it.
fn pairs() -> Fake {
    let fake = two_events();
    define(&fake, "pair u64 lat; char who[4]; u64 val").unwrap();
    set(&fake, "e", "hist:keys=CPU:ts0=common_timestamp").unwrap();
    let command = "hist:keys=CPU:lat=common_timestamp-$ts0:onmatch(kprobes.e).pair($lat,comm,common_timestamp)";
    set(&fake, "f", command).unwrap();
    fake
}

fn shown(fake: &Fake) -> Vec<Arc<Event>> {
    fake.engine.drain();
    fake.engine.events().read(1, 1000).events
}

fn busy(result: Result<(), ProbeError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, ProbeError::Synthetic(SyntheticError::Busy(_))), "{error}");
    assert_eq!(error.code(), "EBUSY");
}

#[test]
fn a_pair_of_hits_makes_an_event_of_the_second_ones_time() {
    let fake = pairs();
    fake.run_all(&[WORK, FAR_OFF]);
    assert!(shown(&fake).is_empty(), "it is not enabled");
    fake.engine.enable_synthetic("pair", true).unwrap();
    fake.engine.set_enabled(Selection::event("kprobes", "f"), true).unwrap();
    // Each variable is read once.
    fake.run_all(&[FAR_OFF, WORK, FAR_OFF, FAR_OFF, WORK, WORK, FAR_OFF]);
    let events = shown(&fake);
    let names: Vec<&str> = events.iter().map(|event| &*event.event).collect();
    assert_eq!(names, ["f", "f", "pair", "f", "f", "pair"]);
    for pair in events.windows(2).filter(|pair| &*pair[1].event == "pair") {
        let (cause, made) = (&pair[0], &pair[1]);
        assert_eq!((made.time, made.pid, made.vcpu), (cause.time, cause.pid, cause.vcpu));
        assert_eq!((&*made.group, &made.symbol_name), (SYNTHETIC_GROUP, &None));
    }
    let filter =
        |text: &str| fake.engine.set_filter(SYNTHETIC_GROUP, "pair", Some(text.parse().unwrap()));
    assert!(matches!(filter("other == 1"), Err(ProbeError::Filter { .. })));
    assert!(filter("lat.ustring == \"x\"").is_err(), "no memory is recorded");
    filter("lat < 0").unwrap();
    assert_eq!(fake.engine.synthetics()[0].filter.as_deref(), Some("lat < 0"));
    fake.run_all(&[WORK, FAR_OFF]);
    assert_eq!(shown(&fake).len(), names.len() + 1, "its filter refuses it");
    fake.assert_balanced();
}

#[test]
fn a_synthetic_event_has_triggers_like_others() {
    let fake = pairs();
    trigger(&fake, "hist:keys=who:vals=val if lat >= 0").unwrap();
    trigger(&fake, "enable_event:kprobes:f:1").unwrap();
    let error = trigger(&fake, "stacktrace").unwrap_err();
    assert!(matches!(error, ProbeError::Trigger(TriggerError::NoStack)), "{error}");
    assert!(trigger(&fake, "hist:keys=common_stacktrace").is_err());
    assert!(trigger(&fake, "hist:keys=common_latency").is_err(), "it is no return");
    fake.run_all(&[WORK, FAR_OFF, FAR_OFF, WORK, FAR_OFF]);
    let hists = fake.engine.histograms(SYNTHETIC_GROUP, "pair").unwrap();
    assert_eq!((hists[0].hits, hists[0].entries.len()), (2, 1));
    let names: Vec<String> = shown(&fake).iter().map(|event| event.event.to_string()).collect();
    assert_eq!(names, ["f", "f"], "from the hit after the first pair on");
    busy(fake.engine.delete_synthetic("pair"));
    trigger(&fake, "!enable_event:kprobes:f").unwrap();
    assert_eq!(fake.engine.triggers(SYNTHETIC_GROUP, "pair").unwrap().len(), 1);
    fake.engine.remove_histograms(SYNTHETIC_GROUP, "pair").unwrap();
    assert!(fake.engine.triggers(SYNTHETIC_GROUP, "pair").unwrap().is_empty());
    trigger(&fake, "enable_event:kprobes:f").unwrap();
    fake.engine.unregister(Selection::all()).unwrap();
    let left = fake.engine.triggers(SYNTHETIC_GROUP, "pair").unwrap();
    assert!(left.is_empty(), "the switch goes with its event");
}

#[test]
fn a_histogram_that_makes_its_own_event_ends() {
    let fake = pairs();
    trigger(&fake, "hist:keys=who:onmatch(synthetic.pair).pair(lat,who,val)").unwrap();
    trigger(&fake, "hist:keys=val:onmatch(synthetic.pair).pair(val,who,lat)").unwrap();
    let [shows, other] = [(); 2].map(|()| fake.engine.add_instance(1 << 20).unwrap());
    let pair = [(SYNTHETIC_GROUP.into(), "pair".into())];
    fake.engine.set_enabled_in(&shows, &pair, true).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let hists = fake.engine.histograms(SYNTHETIC_GROUP, "pair").unwrap();
    assert_eq!(hists.iter().map(|hist| hist.hits).collect::<Vec<_>>(), [64, 64]);
    let unmade = || fake.engine.events().cpu_statistics(0).unmade;
    assert_eq!(unmade(), 65, "each of 64 makes two, of which 63 are made");
    let unmade_in = [&shows, &other].map(|of| of.events().cpu_statistics(0).unmade);
    assert_eq!(unmade_in, [65, 0], "it is enabled in the one alone");
    fake.engine.events().set_tracing(false);
    fake.run_all(&[WORK, FAR_OFF]);
    fake.engine.drain();
    assert_eq!(unmade(), 65, "nothing is kept");
    fake.engine.events().set_tracing(true);
    busy(fake.engine.delete_synthetics());
    fake.engine.remove_histograms(SYNTHETIC_GROUP, "pair").unwrap();
}

#[test]
fn a_synthetic_event_in_use_stays() {
    let fake = pairs();
    busy(fake.engine.delete_synthetic("pair"));
    busy(fake.engine.delete_synthetics());
    let twice = define(&fake, "pair u64 other").unwrap_err();
    assert!(matches!(twice, ProbeError::Synthetic(SyntheticError::Exists(_))), "{twice}");
    assert_eq!((twice.code(), fake.engine.synthetics().len()), ("EEXIST", 1));
    let taken = fake.engine.register(parse_line("p:synthetic/pair work").unwrap()).unwrap_err();
    assert!(matches!(taken.error, ProbeError::NameTaken(_)), "{taken}");
    let joined = parse_line("p:synthetic/pair work").unwrap();
    let joined = fake.engine.register(Batch::from(vec![joined]).joining()).unwrap_err();
    assert_eq!(joined.code(), "EEXIST");
    fake.register("p:synthetic/other work");
    let other = define(&fake, "other u64 lat").unwrap_err();
    assert_eq!((other.code(), fake.engine.synthetics().len()), ("EEXIST", 1));
    // The histogram that makes it goes with its probe.
    fake.engine.unregister(Selection::all()).unwrap();
    fake.engine.enable_synthetic("pair", true).unwrap();
    busy(fake.engine.delete_synthetic("pair"));
    fake.engine.enable_synthetic("pair", false).unwrap();
    fake.register("p:e work");
    set(&fake, "e", "enable_event:synthetic:pair").unwrap();
    busy(fake.engine.delete_synthetic("pair"));
    fake.run(WORK);
    fake.engine.drain();
    assert!(fake.engine.synthetics()[0].enabled);
    set(&fake, "e", "!enable_event:synthetic:pair").unwrap();
    fake.engine.enable_synthetic("pair", false).unwrap();
    fake.engine.delete_synthetic("pair").unwrap();
    for result in [fake.engine.delete_synthetic("pair"), fake.engine.enable_synthetic("pair", true)]
    {
        assert_eq!(result.unwrap_err().code(), "ENOENT");
    }
    assert!(!fake.engine.has_event(SYNTHETIC_GROUP, None));
}

#[test]
fn synthetic_events_are_of_the_memory_for_probes() {
    // 1,536 MiB, of which histograms leave 19 MiB.
    let fake = Fake::booted();
    for n in 0..21 {
        let size = if n < 20 { 131_072 } else { 65_536 };
        let large = format!("hist:keys=comm,common_stacktrace,a:size={size}");
        fake.register(&format!("p:e{n} work a=%di"));
        fake.engine
            .set_trigger("kprobes", &format!("e{n}"), parse_trigger(&large).unwrap())
            .unwrap();
    }
    let fields = "u64 aa;".repeat(64);
    let defined = || (0..2000).find_map(|n| define(&fake, &format!("e{n} {fields}")).err());
    assert_eq!(defined().map(|error| error.code()), Some("ENOMEM"));
    let fit = fake.engine.synthetics().len();
    assert!((1..2000).contains(&fit), "{fit}");
    fake.engine.delete_synthetics().unwrap();
    assert_eq!(defined().map(|error| error.code()), Some("ENOMEM"));
    assert_eq!(fake.engine.synthetics().len(), fit, "their memory was given back");
}

#[test]
fn a_synthetic_event_is_made_also_after_a_reboot() {
    let fake = pairs();
    fake.engine.enable_synthetic("pair", true).unwrap();
    trigger(&fake, "hist:keys=who").unwrap();
    let filter = Some("lat >= 0".parse().unwrap());
    fake.engine.set_filter(SYNTHETIC_GROUP, "pair", filter).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let before = fake.engine.synthetics();
    fake.hook.reset();
    assert_eq!(fake.engine.synthetics(), before);
    fake.load_kernel();
    assert!(fake.begin());
    fake.finish_text();
    fake.store_u64(SYSTEM_STATE, 3);
    fake.run_all(&[FAR_OFF, WORK, FAR_OFF]);
    let hists = fake.engine.histograms(SYNTHETIC_GROUP, "pair").unwrap();
    assert_eq!((shown(&fake).len(), hists[0].hits), (2, 2));
    assert_eq!(fake.engine.synthetics(), before);
    fake.assert_balanced();
}

/// The lines of an event's triggers.
fn lines(fake: &Fake, event: &str) -> Vec<String> {
    fake.engine.triggers("kprobes", event).unwrap()
}

#[test]
fn a_field_of_the_event_of_onmatch_is_a_variable_of_it_as_long_as_it_is_read() {
    const PAIR: &str =
        "hist:keys=common_pid.execname:onmatch(kprobes.e).pair(a_e,a_f,kprobes.e.a_e)";
    const ALIKE: &str =
        "hist:keys=common_pid:vals=hitcount:sort=hitcount:size=2048 if a_e >= 0 [active]";
    const MADE: &str = "hist:keys=common_pid:vals=hitcount:synthetic_a_e=a_e:sort=hitcount:size=2048 if a_e >= 0 [active]";
    let fake = Fake::booted();
    fake.register("p:e work a_e=%di");
    fake.register("p:f far_off a_f=%si");
    fake.engine.set_enabled(Selection::all(), false).unwrap();
    define(&fake, "pair u64 first; u64 second; u64 again").unwrap();
    let refused = |command: &str| set(&fake, "f", command).unwrap_err().fault().0;
    assert_eq!(refused(PAIR), "HIST_NOT_FOUND");
    set(&fake, "e", "hist:keys=a_e").unwrap();
    assert_eq!(refused(PAIR), "HIST_NOT_FOUND", "its keys have another type");
    set(&fake, "e", "hist:keys=common_pid if a_e >= 0").unwrap();
    let of = |params: &str| format!("hist:keys=common_pid:onmatch(kprobes.e).pair({params})");
    assert_eq!(refused(&of("none,a_f,a_f")), "FIELD_NOT_FOUND");
    assert_eq!(refused(&of("kprobes.g.a_e,a_f,a_f")), "EVENT_FILE_NOT_FOUND");
    assert_eq!(refused(&of("a_e,a_f,common_pid")), "SYNTH_TYPE_MISMATCH");
    assert_eq!(refused(&of("kprobes.f.a_e,a_f,a_f")), "FIELD_NOT_FOUND");
    assert_eq!(lines(&fake, "e").len(), 2, "what is refused leaves nothing");
    assert_eq!(lines(&fake, "e")[1], ALIKE);

    set(&fake, "f", PAIR).unwrap();
    assert_eq!(lines(&fake, "e")[2..], [MADE]);
    let line = &lines(&fake, "f")[0];
    assert!(line.contains(":onmatch(kprobes.e).pair(a_e,a_f,kprobes.e.a_e) [active]"), "{line}");
    let removal = "!hist:keys=common_pid:synthetic_a_e=a_e if a_e >= 0";
    assert_eq!(set(&fake, "e", removal).unwrap_err().code(), "EBUSY");
    // A second one reads the same variable.
    set(&fake, "f", &of("a_f,a_f,kprobes.f.a_f")).unwrap();
    set(&fake, "f", &of("a_e,a_f,a_f")).unwrap();
    assert_eq!(lines(&fake, "e").len(), 3);
    set(&fake, "f", &format!("!{}", of("a_e,a_f,a_f"))).unwrap();
    set(&fake, "f", &format!("!{}", of("a_f,a_f,kprobes.f.a_f"))).unwrap();
    fake.engine.enable_synthetic("pair", true).unwrap();
    fake.run_all(&[WORK, FAR_OFF]);
    let made = shown(&fake);
    let args: Vec<String> = made.iter().map(|made| made.args["first"].to_string()).collect();
    let again: Vec<String> = made.iter().map(|made| made.args["again"].to_string()).collect();
    assert_eq!((args.len(), &args), (1, &again));
    set(&fake, "f", &format!("!{PAIR}")).unwrap();
    assert_eq!(lines(&fake, "e").len(), 2, "it goes with the last that reads it");
    set(&fake, "f", PAIR).unwrap();
    fake.engine.remove_histograms("kprobes", "f").unwrap();
    assert_eq!(lines(&fake, "e").len(), 2);
    set(&fake, "f", PAIR).unwrap();
    fake.engine.unregister(Selection::event("kprobes", "f")).unwrap();
    assert_eq!(lines(&fake, "e").len(), 2, "and with its event");
}
