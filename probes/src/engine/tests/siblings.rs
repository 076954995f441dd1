//! Events of several probes.

use crate::{Batch, Selection};
use exoprobe_introspect::btf::NoTypes;
use exoprobe_introspect::btf::sample::Sample;

use super::*;
use crate::definition::{RefusedFilter, WrittenFilter};
use crate::error::ProbeError;
use crate::trigger::parse_trigger;

impl Fake {
    fn try_define(&self, line: &str) -> Result<(), ProbeError> {
        let probes = vec![parse_line(line).unwrap()];
        self.engine.register(Batch::from(probes).joining()).map(drop).map_err(|batch| batch.error)
    }

    fn define(&self, line: &str) {
        self.try_define(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    /// Hits and flags of all probes.
    fn all(&self) -> Vec<(u64, Vec<StatusFlag>)> {
        self.engine.list().into_iter().map(|probe| (probe.hits, probe.flags)).collect()
    }

    /// What is at the two functions.
    fn two(&self) -> [u8; 2] {
        [WORK, FAR_OFF].map(|at| self.byte(at))
    }

    fn set_filter(&self, filter: Option<&str>) -> Result<(), ProbeError> {
        self.engine.set_filter("kprobes", "e", filter.map(|text| text.parse().unwrap()))
    }
}

/// The index of the argument that is refused.
fn index(refused: Result<(), ProbeError>) -> usize {
    match refused {
        Err(ProbeError::OtherArgument { index, .. }) => index,
        other => panic!("{other:?}"),
    }
}

const ARMED: [u8; 2] = [INT3, INT3];
const BARE: [u8; 2] = [BODY[0], BODY[0]];

#[test]
fn a_name_leads_to_all_probes_of_its_event() {
    let fake = Fake::booted();
    let text = fake.text();
    fake.define("p:e work a=%di");
    fake.define("p:e far_off a=%si");
    fake.define("p:other far_off");
    assert_eq!((fake.two(), fake.run(WORK) + fake.run(FAR_OFF)), (ARMED, 2));
    fake.run(FAR_OFF);
    assert_eq!(fake.all().iter().map(|(hits, _)| *hits).collect::<Vec<_>>(), [1, 2, 2]);
    let sites: Vec<u32> = fake.engine.list().iter().map(|probe| probe.sites).collect();
    assert_eq!((sites, fake.status("e").id), (vec![2, 2, 1], 1));
    fake.engine.drain();
    let events = fake.engine.events().read(1, 100).events;
    let place = |event: &Arc<crate::Event>| format!("{} {}", event.event, event.addr);
    let told: Vec<String> = events.iter().map(place).collect();
    let expected =
        [("e", WORK), ("e", FAR_OFF), ("other", FAR_OFF)].map(|(e, at)| format!("{e} {at}"));
    assert_eq!((&told[..3], &told[3..]), (&expected[..], &expected[1..]));

    fake.engine.set_enabled(Selection::kprobe("kprobes", "e"), false).unwrap();
    assert_eq!(fake.two(), [BODY[0], INT3], "the other one's");
    fake.engine.set_enabled(Selection::event("kprobes", "e"), true).unwrap();
    fake.engine.set_enabled(Selection::event("kprobes", "other"), false).unwrap();
    assert_eq!(fake.two(), ARMED);

    assert!(fake.engine.unregister(Selection::kretprobe("kprobes", "e")).is_err());
    let registrations = fake.engine.registrations(Selection::event("kprobes", "e")).unwrap();
    assert_eq!(registrations.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 2]);
    fake.engine.unregister(&registrations[..1]).unwrap();
    assert_eq!(fake.two(), [BODY[0], INT3]);
    assert_eq!((fake.status("e").id, fake.status("e").sites), (2, 1));
    fake.define("p:e work a=%dx");
    assert_eq!(fake.two(), ARMED);
    fake.engine.unregister(Selection::event("kprobes", "e")).unwrap();
    assert!(fake.engine.registrations(Selection::event("kprobes", "e")).is_err());
    assert_eq!((fake.text(), fake.all().len()), (text, 1));
}

#[test]
fn a_probe_that_joins_is_as_its_event_is() {
    let fake = Fake::booted();
    fake.define("p:e work a=%di");
    fake.engine.set_enabled(Selection::event("kprobes", "e"), false).unwrap();
    fake.define("p:e far_off a=%di");
    assert_eq!(fake.two(), BARE, "the event is disabled");
    fake.set_filter(Some("a == 0x7")).unwrap();
    fake.define("p:e far_off+1 a=%di");
    let filters: Vec<_> = fake.engine.list().into_iter().map(|probe| probe.filter).collect();
    assert_eq!(filters, vec![Some("a == 0x7".to_owned()); 3]);
    fake.engine.set_enabled(Selection::event("kprobes", "e"), true).unwrap();
    let hit = |at: Gva, rdi| {
        let (rip, rsp) = (at.0, STACK.0);
        fake.breakpoint_of(kvm_regs { rip, rsp, rdi, rflags: 2, ..kvm_regs::default() });
    };
    for at in [WORK, FAR_OFF, FAR_OFF.wrapping_add(1)] {
        (7..10).for_each(|rdi| hit(at, rdi));
    }
    let books: Vec<_> = fake.engine.list().iter().map(|p| (p.recorded, p.filtered)).collect();
    assert_eq!(books, [(1, 2); 3]);
    let refused = fake.set_filter(Some("b == 1")).unwrap_err();
    assert!(matches!(refused, ProbeError::Filter { .. }), "{refused}");
    fake.set_filter(None).unwrap();
    assert!(fake.engine.list().iter().all(|probe| probe.filter.is_none()));

    let definition = parse_line("p:e patched a=%di").unwrap();
    let refused = fake.engine.register(definition).unwrap_err();
    assert!(matches!(refused.error, ProbeError::NameTaken(_)), "{refused}");
    for (other_fault, code) in [("p:e no_such_function", "ENOENT"), ("p:e work+99999", "EINVAL")] {
        let refused = fake.engine.register(parse_line(other_fault).unwrap()).unwrap_err();
        assert_eq!(refused.code(), code, "{other_fault}: EEXIST would hide it: {refused}");
    }
    let batch = ["p:new work", "p:new far_off"].map(|line| parse_line(line).unwrap());
    let refused = fake.engine.register(batch).unwrap_err();
    assert_eq!((refused.index, refused.error.code()), (1, "EEXIST"));
    assert!(fake.engine.registrations(Selection::event("kprobes", "new")).is_err());
}

#[test]
fn a_refused_filter_leaves_none_until_the_next_is_set() {
    let fake = Fake::booted();
    fake.define("p:e work a=%di");
    fake.define("p:e far_off a=%di");
    fake.set_filter(Some("a == 0x7")).unwrap();
    let fields = fake.engine.field_kinds("kprobes", "e").unwrap();
    let refuse = |text: &str| {
        let error = WrittenFilter::parse(text, &fields).unwrap_err();
        let refused = RefusedFilter { text: text.into(), error };
        fake.engine.refuse_filter("kprobes", "e", refused).unwrap();
    };
    let shown = || fake.engine.refused_filter("kprobes", "e").map(|refused| refused.text.clone());
    refuse("b == 1");
    fake.define("p:e far_off+1 a=%di");
    assert!(fake.engine.list().iter().all(|probe| probe.filter.is_none()));
    for at in [WORK, FAR_OFF, FAR_OFF.wrapping_add(1)] {
        fake.run(at);
    }
    assert!(fake.engine.list().iter().all(|probe| (probe.recorded, probe.filtered) == (1, 0)));
    assert_eq!(shown().as_deref(), Some("b == 1"));
    fake.engine
        .unregister(&fake.engine.registrations(Selection::event("kprobes", "e")).unwrap()[..2])
        .unwrap();
    assert_eq!(shown().as_deref(), Some("b == 1"), "that of the probe that joined");
    fake.set_filter(Some("a == 0x7")).unwrap();
    assert_eq!(shown(), None);
    refuse("a ==");
    assert_eq!(shown().as_deref(), Some("a =="));
    fake.set_filter(None).unwrap();
    assert_eq!(shown(), None);
}

#[test]
fn filters_and_conditions_tell_the_places_of_an_event_apart() {
    let fake = Fake::booted();
    fake.define("p:e work a=%di");
    fake.define("p:e far_off a=%di");
    let hit_both = || [WORK, FAR_OFF].map(|at| fake.run(at));
    fake.set_filter(Some(&format!("__probe_ip == {FAR_OFF}"))).unwrap();
    hit_both();
    let books: Vec<_> = fake.engine.list().iter().map(|p| (p.recorded, p.filtered)).collect();
    assert_eq!(books, [(0, 1), (1, 0)]);
    let counted = parse_trigger(&format!("hist:keys=a if __probe_ip == {FAR_OFF}")).unwrap();
    fake.engine.set_trigger("kprobes", "e", counted).unwrap();
    hit_both();
    hit_both();
    assert_eq!(fake.engine.histograms("kprobes", "e").unwrap()[0].hits, 2);
}

#[test]
fn what_does_not_go_with_an_event_is_refused() {
    let fake = Fake::booted();
    fake.define("p:e work a=%di b=+8(%si):string[2]");
    let refused = fake.try_define("r:e work").unwrap_err();
    assert!(matches!(refused, ProbeError::OtherKind(_)) && refused.code() == "EEXIST");
    for (args, wrong) in [
        ("", 0),
        ("a=%di", 1),
        ("a=%di b=+8(%si):string[2] c=%di", 2),
        ("c=%di b=+8(%si):string[2]", 0),
        ("a=%di:x32 b=+8(%si):string[2]", 0),
        ("a=%di b=+8(%si):string", 1),
        ("a=%di b=+8(%si):string[3]", 1),
        ("a=%di b=+8(%si):ustring[2]", 1),
    ] {
        assert_eq!(index(fake.try_define(&format!("p:e far_off {args}"))), wrong, "{args}");
    }
    let same = fake.try_define("p:e work a=%di b=+8(%si):string[2]").unwrap_err();
    assert!(matches!(same, ProbeError::SameProbe(_)) && same.code() == "EEXIST", "{same}");
    assert!(fake.try_define("p:e far_off+2 a=%di b=+8(%si):string[2]").is_err(), "no instruction");
    let batch = ["p:e far_off a=%si b=+8(%di):string[2]", "p:e far_off a=%di"];
    let batch = batch.map(|line| parse_line(line).unwrap());
    assert_eq!(fake.engine.register(Batch::from(batch).joining()).unwrap_err().index, 1);
    assert_eq!((fake.all().len(), fake.status("e").sites, fake.two()), (1, 1, [INT3, BODY[0]]));
    // The type that it has anyhow; other values; a place again, with another value.
    fake.define("p:e far_off a=%si:x64 b=+8(%si):string[2]");
    fake.define("p:e work a=%di b=+16(%si):string[2]");
    assert_eq!(fake.status("e").sites, 3);
}

#[test]
fn an_event_is_armed_whole_or_not_at_all() {
    let fake = Fake::booted();
    fake.define("p:e work");
    fake.define("p:there far_off");
    fake.engine.set_enabled(Selection::event("kprobes", "there"), false).unwrap();
    fake.write(FAR_OFF, &[0x90]);
    let refused = fake.try_define("p:e far_off").unwrap_err();
    assert!(matches!(refused, ProbeError::Clobbered { .. }), "{refused}");
    assert_eq!((fake.status("e").sites, fake.flags("e")), (1, Vec::new()));
    assert_eq!((fake.two(), fake.run(WORK)), ([INT3, 0x90], 1));

    fake.engine.set_enabled(Selection::event("kprobes", "e"), false).unwrap();
    fake.write(FAR_OFF, &BODY[..1]);
    fake.define("p:e far_off");
    fake.write(FAR_OFF, &[0x90]);
    assert!(fake.engine.set_enabled(Selection::event("kprobes", "e"), true).is_err());
    assert_eq!(fake.two(), [BODY[0], 0x90]);
    assert!(fake.all().iter().all(|(_, flags)| flags.contains(&StatusFlag::Disabled)));
    fake.write(FAR_OFF, &BODY[..1]);
    fake.engine.patrol();
    fake.engine.set_enabled(Selection::event("kprobes", "e"), true).unwrap();
    assert_eq!(fake.two(), ARMED);
}

#[test]
fn return_probes_are_of_one_event_and_follow_calls_of_each_function() {
    let fake = Fake::booted();
    fake.define("r3:e work v=$retval");
    fake.define("r:e far_off v=$retval");
    fake.call_work(STACK);
    fake.call_work(STACK);
    let calls: Vec<_> = fake.engine.list().iter().map(|p| (p.hits, p.maxactive)).collect();
    assert_eq!(calls, [(2, Some(3)), (0, Some(10))]);
    let same = fake.try_define("r7:e work v=$retval").unwrap_err();
    assert!(matches!(same, ProbeError::SameProbe(_)), "{same}");
    fake.set_filter(Some("v == 0x1")).unwrap();
    fake.call_work(STACK);
    assert_eq!((fake.status("e").hits, fake.status("e").filtered), (3, 1));
    fake.engine.unregister(Selection::kretprobe("kprobes", "e")).unwrap();
    assert!(fake.engine.traceless().is_some());
}

#[test]
fn types_that_are_known_late_are_compared_late() {
    let mut sample = Sample::default();
    let [int, long] = [("int", 4), ("long", 8)].map(|(name, size)| sample.int(name, size, true));
    sample.function("work", int, &[("fd", int)]);
    sample.function("far_off", int, &[("fd", long)]);
    sample.function("once", int, &[("fd", int)]);
    let fake = Fake::with(ROOT, "", Some(sample.btf()));
    fake.load_kernel();
    for function in ["work", "far_off", "once"] {
        fake.define(&format!("p:e {function} fd"));
    }
    fake.define("p:all work $arg*");
    fake.define("p:all far_off $arg*");
    assert_eq!(index(fake.try_define("p:e patched fd b=%si")), 1, "names are known");
    assert!(fake.begin());
    let waits = |event: &str| {
        let of_event = fake.engine.list().into_iter().filter(|probe| probe.event == event);
        of_event.map(|probe| probe.reason.unwrap_or_default()).collect::<Vec<_>>()
    };
    let [one, two, three] = waits("e").try_into().unwrap();
    assert!(one.is_empty() && three.is_empty(), "{one} {three}");
    assert!(two.contains("other than the event `kprobes/e` has it") && two.contains("fd:s32"));
    assert!(waits("all")[0].is_empty() && waits("all")[1].contains("fd:s32"));
    assert_eq!(fake.two(), [INT3, BODY[0]]);
    fake.finish_text();
    assert_eq!(index(fake.try_define("p:all work $arg* x=%si")), 1);
}

#[test]
fn types_near_the_kernel_are_used_where_they_are_its_own() {
    let of = |functions: &[&str]| {
        let mut sample = Sample::default();
        let int = sample.int("int", 4, true);
        for function in functions {
            sample.function(function, int, &[("fd", int)]);
        }
        FoundTypes { types: Arc::new(sample.btf()), file: "/k/vmlinux.btf".into() }
    };
    let answer = |found, given: Option<Btf>| {
        let fake = Fake::with_types(ROOT, "", given, Some(found));
        fake.load_kernel();
        assert!(fake.begin());
        let types = fake.engine.types().map(|types| types.len());
        (fake.try_define("p:e work fd").is_ok(), types.map_err(|error| error.to_string()))
    };
    assert_eq!(answer(of(&["work", "once"]), None), (true, Ok(5)));
    let none = Err(NoTypes::None.to_string());
    assert_eq!(answer(of(&["work", "other_kernels"]), None), (false, none));
    let mut given = Sample::default();
    let int = given.int("int", 4, true);
    given.function("work", int, &[("fd", int), ("more", int)]);
    assert_eq!(answer(of(&["work", "once"]), Some(given.btf())), (true, Ok(3)));
}
