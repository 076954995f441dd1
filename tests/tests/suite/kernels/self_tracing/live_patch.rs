//! A live patch of a function with probes of ours (tests/livepatch).

use exoprobe_tests::TestGuest;

use super::ours::{Function, GETPID, OurProbe, Ours, wait};
use super::{Ticks, passed};

/// The module.
const MODULE: &str = "exoprobe_live";
/// The function that its getpid() is.
const NEW: Function = Function { name: "exoprobe_live:live_getpid", work: "getpid" };
/// How often a change is looked for, which the kernel tries once a second for tasks that sleep.
const TRIES: u32 = 100;

/// While the patch is there, calls are of the new function, and hit probes of that one. Afterwards
/// ours count again.
pub(in super::super) fn a_live_patch_comes_and_goes(guest: &TestGuest) {
    let _ticks = Ticks::start(guest);
    for kinds in [&[Ours::Detour][..], &[Ours::Offset, Ours::Return, Ours::Site]] {
        comes_and_goes_beside(guest, kinds);
        kinds.iter().for_each(|ours| passed("live patch of the function", *ours));
    }
}

fn comes_and_goes_beside(guest: &TestGuest, kinds: &[Ours]) {
    let before = GETPID.text(guest);
    let mut all: Vec<_> = kinds.iter().map(|ours| OurProbe::alone(guest, *ours, GETPID)).collect();
    let count = |all: &mut Vec<OurProbe<'_>>, when: &str| {
        let calls = GETPID.call(guest);
        all.iter_mut().for_each(|our| our.assert_more(calls, when));
    };
    count(&mut all, "alone");
    let tracers_nop = usize::try_from(GETPID.offset_of_ours(guest)).unwrap();
    assert_eq!(guest.work(&format!("insmod {MODULE}")), 1);
    let mut new = OurProbe::come(guest, kinds[0], NEW);
    new.assert_more(GETPID.call(guest), "the patch is there");
    all.iter_mut().for_each(|our| our.assert_more(0, "the patch is there"));
    new.go();
    let switch = format!("/sys/kernel/livepatch/{MODULE}/enabled");
    assert_eq!(guest.work(&format!("put {switch} 0")), 1);
    count(&mut all, "the patch is going");
    let is_gone = (0..TRIES).any(|_| {
        wait(guest);
        GETPID.text(guest)[..tracers_nop] == before[..tracers_nop]
    });
    assert!(is_gone, "{:02x?}", GETPID.text(guest));
    // Its last user is a worker of the kernel's.
    wait(guest);
    assert_eq!(guest.work(&format!("rmmod {MODULE}")), 1);
    count(&mut all, "the patch has gone");
    all.into_iter().for_each(|our| _ = our.go());
    wait(guest);
    assert_eq!(GETPID.text(guest), before, "nothing is left");
}
