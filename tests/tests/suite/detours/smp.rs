//! Changes while both vCPUs run through the probes: what is left alone counts each call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_probes::{DisplacedBy, Kprobe, NewProbe, ReturnMode, Selection, Verdict};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition, function_size};

pub(crate) const CASES: &[Case] = cases![
    a_place_goes_from_boosted_to_stepped_and_back_under_load needs [Kvm, Smp, ContendedLocks],
    return_probes_come_and_go_under_load needs [Kvm, Smp, ContendedLocks],
    the_switch_is_turned_under_load needs [Kvm, Smp, ContendedLocks],
    a_probe_is_disabled_and_enabled_under_load_beside_a_steady_one needs [Kvm, Smp, ContendedLocks],
];

const GETPID: &str = "__x64_sys_getpid";
/// Both vCPUs call getpid.
const WORK: &str = "par 2 getpid 2000";
const ROUNDS: usize = 8;

/// An instruction of getpid that runs in a slot, by its offset.
fn boosted_place(guest: &TestGuest) -> u64 {
    let is_boosted = |offset: &u64| {
        let taken = guest.engine.register(definition(&format!("p:look {GETPID}+{offset}"))).is_ok();
        let boosted = taken && guest.status("look").displaced == Some(DisplacedBy::Boost);
        if taken {
            guest.engine.unregister(Selection::kprobe("kprobes", "look")).unwrap();
        }
        boosted
    };
    // Not the entry, which other tests have.
    let mut offsets = 1..function_size(GETPID);
    offsets.find(is_boosted).expect("some instruction of getpid runs in a slot")
}

fn a_place_goes_from_boosted_to_stepped_and_back_under_load() {
    let guest = TestGuest::restored(2);
    let offset = boosted_place(&guest);
    let place = format!("{GETPID}+{offset}");
    guest.probe(&format!("p:steady {place}"));
    guest.probe("p:entry __x64_sys_getpid");
    let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
    let mut rounds = 0;
    let calls = guest.work_during(WORK, ROUNDS, |_| {
        rounds += 1;
        let [before, after] = [Arc::clone(&counts), Arc::clone(&counts)];
        let post = Kprobe {
            definition: definition(&format!("p:post {place}")),
            pre_handler: Some(Box::new(move |_| {
                before[0].fetch_add(1, Ordering::SeqCst);
                Verdict::Continue
            })),
            post_handler: Some(Box::new(move |_| _ = after[1].fetch_add(1, Ordering::SeqCst))),
            ..Kprobe::default()
        };
        guest.engine.register(NewProbe::Kprobe(post)).unwrap();
        assert_eq!(guest.status("steady").displaced, Some(DisplacedBy::Step));
        std::thread::yield_now();
        guest.engine.unregister(Selection::kprobe("kprobes", "post")).unwrap();
        assert_eq!(guest.status("steady").displaced, Some(DisplacedBy::Boost));
    });
    assert_eq!((guest.hits("steady"), guest.hits("entry")), (calls, calls));
    let [before, after] = [0, 1].map(|at| counts[at].load(Ordering::SeqCst));
    // A probe that goes between its two handlers loses the second, and one that comes while the
    // place is stepped has only that: on each vCPU once a round.
    assert!(after > 0 && before.abs_diff(after) <= 2 * rounds, "{before} {after}");
    guest.assert_unharmed();
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn return_probe(event: &str, mode: ReturnMode) -> NewProbe {
    let mut definition = definition(&format!("r:{event} {GETPID}"));
    definition.return_mode = mode;
    NewProbe::Kretprobe(definition.into())
}

fn return_probes_come_and_go_under_load() {
    let guest = TestGuest::restored(2);
    let text = guest.kernel_text();
    for (event, mode) in [("site", ReturnMode::Site), ("trampoline", ReturnMode::Trampoline)] {
        guest.engine.register(return_probe(event, mode)).unwrap();
    }
    guest.probe("p:entry __x64_sys_getpid");
    let calls = guest.work_during(WORK, ROUNDS, |round| {
        let mode = if round % 2 == 0 { ReturnMode::Site } else { ReturnMode::Trampoline };
        guest.engine.register(return_probe("other", mode)).unwrap();
        guest.probe("r:inner __task_pid_nr_ns");
        guest.engine.set_enabled(Selection::kretprobe("kprobes", "other"), false).unwrap();
        guest.engine.set_enabled(Selection::kretprobe("kprobes", "other"), true).unwrap();
        guest.engine.unregister(Selection::kretprobe("kprobes", "inner")).unwrap();
        guest.engine.unregister(Selection::kretprobe("kprobes", "other")).unwrap();
    });
    for event in ["site", "trampoline"] {
        let status = guest.status(event);
        assert_eq!((status.hits, status.nmissed, status.active), (calls, 0, Some(0)), "{event}");
    }
    assert_eq!(guest.hits("entry"), calls);
    guest.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.engine.calls_followed(), 0);
    assert!(guest.engine.traceless().is_some());
    assert!(guest.kernel_text() == text, "not as it was");
    guest.assert_unharmed();
}

fn the_switch_is_turned_under_load() {
    let guest = TestGuest::restored(2);
    guest.probe("p:entry __x64_sys_getpid");
    for (event, mode) in [("site", ReturnMode::Site), ("trampoline", ReturnMode::Trampoline)] {
        guest.engine.register(return_probe(event, mode)).unwrap();
    }
    let all = ["entry", "site", "trampoline"];
    let calls = guest.work_during(WORK, ROUNDS, |_| {
        guest.engine.switch(false).unwrap();
        let off = all.map(|event| guest.hits(event));
        std::thread::yield_now();
        assert_eq!(all.map(|event| guest.hits(event)), off, "nothing is hit while it is off");
        guest.engine.switch(true).unwrap();
    });
    let before = all.map(|event| guest.hits(event));
    assert!(before.iter().all(|hits| *hits <= calls), "{before:?} of {calls}");
    assert_eq!(guest.work(WORK), 4000);
    assert_eq!(all.map(|event| guest.hits(event)), before.map(|hits| hits + 4000));
    for event in ["site", "trampoline"] {
        let status = guest.status(event);
        assert_eq!((status.nmissed, status.active), (0, Some(0)), "{event}");
    }
    guest.assert_unharmed();
}

fn a_probe_is_disabled_and_enabled_under_load_beside_a_steady_one() {
    let guest = TestGuest::restored(2);
    guest.probe("p:steady __x64_sys_getpid");
    guest.probe("p:other __x64_sys_getpid");
    guest.probe("p:alone __x64_sys_getpid+1");
    let calls = guest.work_during(WORK, ROUNDS, |_| {
        for event in ["other", "alone"] {
            guest.engine.set_enabled(Selection::kprobe("kprobes", event), false).unwrap();
            let off = guest.hits(event);
            std::thread::yield_now();
            assert_eq!(guest.hits(event), off, "no hit is counted after it was disabled");
            guest.engine.set_enabled(Selection::kprobe("kprobes", event), true).unwrap();
        }
    });
    assert_eq!(guest.hits("steady"), calls);
    let (other, alone) = (guest.hits("other"), guest.hits("alone"));
    assert_eq!(guest.work(WORK), 4000);
    assert_eq!((guest.hits("other"), guest.hits("alone")), (other + 4000, alone + 4000));
    guest.assert_unharmed();
}
