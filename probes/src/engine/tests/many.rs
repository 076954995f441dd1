//! Very many probes at once. That each costs no more than the first is seen by how long these tests
//! take: what goes through all probes for each of them takes minutes here.

use super::*;
use crate::Selection;
use crate::definition::Flag;
use crate::error::BatchError;

const MANY: usize = 100_000;

/// A definition for each number, in place of `#`, that is not armed.
fn disabled(line: &str, numbers: std::ops::Range<usize>) -> Vec<super::super::NewProbe> {
    let define = |n: usize| {
        let mut definition = parse_line(&line.replace('#', &n.to_string())).unwrap();
        definition.flags = vec![Flag::Disabled];
        definition.into()
    };
    numbers.map(define).collect()
}

fn ids(fake: &Fake) -> Vec<u32> {
    fake.engine.list().iter().map(|probe| probe.id).collect()
}

#[test]
fn a_hundred_thousand_probes_of_one_place_come_and_go_together() {
    let fake = Fake::booted();
    fake.run(FREE_INITMEM);
    fake.register("p:first far_off");
    fake.engine.register(disabled("p:e# far_off", 0..MANY)).unwrap();
    assert_eq!((fake.engine.names().len(), fake.engine.list().len()), (MANY + 1, MANY + 1));
    assert!(fake.engine.has_event("kprobes", Some("e99999")));
    assert!(
        !fake.engine.has_event("kprobes", Some("e100000")) && !fake.engine.has_event("g", None)
    );
    fake.engine.patrol();
    assert_eq!(fake.run(FAR_OFF), 1);
    assert_eq!((fake.hits("first"), fake.hits("e0")), (1, 0));
    assert_eq!(fake.engine.optimize().total, 1);
    let mut half: Vec<_> = (0..MANY / 2)
        .flat_map(|n| {
            fake.engine.registrations(Selection::event("kprobes", &format!("e{n}"))).unwrap()
        })
        .collect();
    half.push(half[0]);
    let removed = fake.engine.unregister(&*half).unwrap();
    assert_eq!(removed, half[..MANY / 2], "each once");
    assert_eq!(fake.engine.names().len(), MANY / 2 + 1);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!((fake.engine.names().len(), fake.byte(FAR_OFF)), (0, BODY[0]));
}

#[test]
fn vcpus_are_waited_for_once_for_all_that_are_enabled() {
    let fake = Fake::booted();
    fake.engine.register(disabled("p:e# far_off", 0..MANY / 10)).unwrap();
    fake.register("p:work work");
    let all = ids(&fake);
    let before = fake.guest.syncs.load(Ordering::SeqCst);
    fake.engine.set_enabled(Selection::ids(all.clone()), true).unwrap();
    fake.engine.set_enabled(Selection::ids(all.clone()), true).unwrap();
    assert_eq!(fake.guest.syncs.load(Ordering::SeqCst), before + 1);
    assert_eq!(fake.run(FAR_OFF), 1);
    assert_eq!((fake.hits("e0"), fake.hits("e9999")), (1, 1));
    fake.engine.set_enabled(Selection::ids([u32::MAX, all[0]]), false).unwrap();
    assert_eq!(fake.flags("e0"), [StatusFlag::Disabled]);
    fake.engine.set_enabled(Selection::ids(all), false).unwrap();
    assert_eq!([fake.byte(FAR_OFF), fake.byte(WORK)], [BODY[0]; 2]);
}

#[test]
fn what_cannot_be_armed_stays_disabled_and_the_others_do_not() {
    let fake = Fake::booted();
    fake.engine.register(disabled("p:far# far_off", 0..2)).unwrap();
    fake.engine.register(disabled("p:work# work", 0..2)).unwrap();
    fake.write(FAR_OFF, &[0x90]);
    let error = fake.engine.set_enabled(Selection::ids(ids(&fake)), true).unwrap_err();
    assert_eq!(error.code(), "ETXTBSY");
    assert_eq!(fake.flags("far1"), [StatusFlag::Disabled, StatusFlag::Clobbered]);
    assert_eq!((fake.flags("work0"), fake.run(WORK)), (vec![], 1));
}

#[test]
fn probes_have_a_limit_in_memory() {
    /// Of a return probe with 4,096 instances, in bytes.
    const COST: usize = 4096 + 4096 * 352;
    let fake = Fake::booted();
    let full = (Limits::DEFAULT_MIB << 20) / COST;
    let refused = |line: &str, numbers| {
        let refused = fake.engine.register(disabled(line, numbers));
        let BatchError { index, error, .. } = refused.unwrap_err();
        (index, error.code(), error.to_string())
    };
    let (index, code, told) = refused("r4096:e# far_off", 0..full + 1);
    assert_eq!((index, code), (full, "ENOMEM"));
    let figures = ["may take 1412 KiB", "of the 1536 MiB", "--memory-limit", "maxactive"];
    assert!(figures.iter().all(|figure| told.contains(figure)), "{told}");
    assert!(fake.engine.names().is_empty(), "all or none");
    fake.engine.register(disabled("r4096:e# far_off", 0..full)).unwrap();
    assert_eq!(refused("r4096:more# far_off", 0..1).0, 0);
    fake.engine.register(disabled("p:entry# far_off", 0..1)).unwrap();
    fake.engine.unregister(Selection::event("kprobes", "e7")).unwrap();
    fake.engine.register(disabled("r4096:more# far_off", 0..1)).unwrap();
    assert_eq!(refused("r4096:again# far_off", 0..1).1, "ENOMEM");
}
