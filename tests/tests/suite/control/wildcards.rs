//! Probes of all functions that a pattern matches, as one change of the guest.

use std::collections::HashMap;

use exoprobe_probes::{
    Action, Admission, Batch, ExpandedDefinition, Expansion, ProbeDefinition, ProbeStatus,
    Selection,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition};

pub(crate) const CASES: &[Case] = cases![
    a_wildcard_of_hundreds_counts_exactly(vcpus),
    more_probes_than_the_first_window_holds_are_optimized needs [Kvm, Repeat],
];

const GROUP: &str = "all";
const CALLS: u64 = 300;
/// More than have counters before the extension of hidden memory.
const MANY: usize = 5500;
const FIRST: usize = 4096;

/// The definitions of a pattern's functions, which only count.
fn expand(guest: &TestGuest, line: &str) -> Expansion {
    let counting = ProbeDefinition { actions: vec![Action::Count], ..definition(line) };
    guest.engine.expand(vec![counting], usize::MAX).expect("functions match")
}

fn all() -> Selection {
    Selection::matching(GROUP, "*")
}

fn list(guest: &TestGuest) -> Vec<ProbeStatus> {
    guest.engine.list_of(all()).expect("a pattern may stand for none")
}

fn hits(guest: &TestGuest) -> HashMap<String, u64> {
    list(guest).into_iter().map(|probe| (probe.event, probe.hits)).collect()
}

fn stops(guest: &TestGuest) -> u64 {
    guest.engine.stop_statistics().stops
}

/// Optimizes all that can be. Returns the number of passes that stopped the guest.
fn optimize(guest: &TestGuest) -> u64 {
    let before = stops(guest);
    guest.wait_until("all are optimized that may be", |guest| guest.engine.optimize().waiting == 0);
    stops(guest) - before
}

fn a_wildcard_of_hundreds_counts_exactly(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let text = guest.kernel_text();
    let expansion = expand(&guest, &format!("p:{GROUP}/* __x64_sys_*"));
    let matched = expansion.definitions.len();
    assert!(matched > 200, "{matched} functions");
    let rehearsal = guest.engine.rehearse(expansion.clone()).unwrap();
    assert_eq!((guest.kernel_text() == text, list(&guest).len()), (true, 0));
    let Admission { registered, refused } = guest.engine.admit(expansion).unwrap();
    assert_eq!(registered.len() + refused.len(), matched);
    assert_eq!(
        (rehearsal.accepted.len(), rehearsal.refused.len()),
        (registered.len(), refused.len())
    );
    assert!(refused.iter().all(|one| one.error.rule() == "ambiguous"), "{refused:?}");
    assert_eq!(stops(&guest), 0, "int3s come without a stop");
    let count = |optimized: bool| {
        let before = hits(&guest);
        assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
        assert_eq!(guest.work("open /init 7"), 7);
        let now = hits(&guest);
        let since = |event: &str| now[event] - before[event];
        assert_eq!(since("__x64_sys_getpid"), CALLS, "optimized: {optimized}");
        let opens = since("__x64_sys_open") + since("__x64_sys_openat");
        assert_eq!((opens, since("__x64_sys_close")), (7, 7), "optimized: {optimized}");
        assert_eq!(since("__x64_sys_getppid"), 0);
    };
    count(false);
    let passes = optimize(&guest);
    let optimized = list(&guest).iter().filter(|probe| probe.optimized).count();
    assert!(optimized > registered.len() / 2, "{optimized} of {}", registered.len());
    assert!(passes < 8, "{passes} stops for {optimized} probes");
    count(true);
    let before = (stops(&guest), hits(&guest));
    guest.engine.set_enabled(all(), false).unwrap();
    // Of either kind at most three: one puts the int3s back, the others look for tasks in detours.
    let disabled = stops(&guest) - before.0;
    assert!((2..=6).contains(&disabled), "{disabled} stops for {optimized} probes");
    assert_eq!(guest.work("getpid 5"), 5);
    let getpid = |hits: &HashMap<String, u64>| hits["__x64_sys_getpid"];
    assert_eq!(getpid(&hits(&guest)), getpid(&before.1));
    guest.engine.set_enabled(all(), true).unwrap();
    count(false);
    assert_eq!(guest.engine.unregister(all()).unwrap().len(), registered.len());
    guest.assert_text(&text);
    guest.assert_unharmed();
}

fn more_probes_than_the_first_window_holds_are_optimized() {
    let guest = TestGuest::restored(1);
    let text = guest.kernel_text();
    let getpid = expand(&guest, &format!("p:{GROUP}/* __x64_sys_getpi?"));
    let mut some = expand(&guest, &format!("p:{GROUP}/* *"));
    let is_new = |one: &ExpandedDefinition| {
        getpid.definitions.iter().all(|other| other.definition != one.definition)
    };
    some.definitions.retain(is_new);
    some.definitions.truncate(MANY);
    // They take the last places.
    some.definitions.extend(getpid.definitions.iter().cloned());
    let admitted = guest.engine.admit(Batch::from(some)).unwrap();
    assert!(admitted.registered.len() > FIRST + 500, "{} probes", admitted.registered.len());
    optimize(&guest);
    let before = list(&guest);
    let optimized: Vec<_> = before.iter().filter(|probe| probe.optimized).collect();
    assert!(optimized.len() > FIRST + 200, "{} are optimized", optimized.len());
    let no_room = before.iter().filter_map(|probe| probe.unoptimized_reason.as_deref());
    assert_eq!(no_room.filter(|reason| reason.starts_with("no-room")).count(), 0);
    assert!(optimized.iter().any(|probe| probe.event == "__x64_sys_getpid"));
    let of_getpid = || hits(&guest)["__x64_sys_getpid"];
    let hits_before = of_getpid();
    assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
    assert_eq!(of_getpid(), hits_before + CALLS);
    guest.engine.unregister(all()).unwrap();
    guest.assert_text(&text);
    // Their memory is free again: nothing of it is in a snapshot.
    guest.wait_until("all tasks have left the detours", |guest| guest.engine.traceless().is_some());
    guest.assert_unharmed();
}
