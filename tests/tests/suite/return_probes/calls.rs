//! Calls that return probes follow for long: tasks that sleep in them, migrate, or never come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_probes::{EntryVerdict, Kretprobe, Selection};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};

use crate::support::returned::{ALL, By, MODES, follow, in_mode};

pub(crate) const CASES: &[Case] = cases![
    tasks_that_sleep_in_the_function_use_an_instance_each(vcpus),
    a_call_may_return_on_another_vcpu needs [Kvm, Smp],
    tasks_that_end_inside_give_their_instances_back(vcpus) needs [Kvm, QuickKernel],
    an_entry_handler_is_asked_about_calls_that_are_followed_alone(vcpus),
    functions_that_switch_tasks_can_be_followed(vcpus) needs [Kvm, QuickKernel],
    calls_under_way_outlive_their_probe_unseen(vcpus),
    a_probe_is_dropped_with_its_last_call(vcpus),
    calls_under_way_are_let_go_when_a_probe_is_disabled(vcpus),
    calls_under_way_are_let_go_by_the_global_switch(vcpus),
];

/// Tasks that are in hrtimer_nanosleep, all at the same time.
struct Sleepers {
    from: u64,
    command: String,
    /// None is awake before.
    asleep_until: Instant,
}

/// Registers by `register` and sends tasks to sleep, for so long that all have entered before the
/// first leaves, and at least for `millis`.
fn put_to_sleep(
    guest: &TestGuest,
    tasks: u64,
    mut millis: u64,
    register: impl Fn(&TestGuest),
) -> Sleepers {
    loop {
        register(guest);
        guest.probe("p:entered hrtimer_nanosleep");
        // It does not touch the stack, so that it is no part of what is tested.
        follow(guest, "r:left hrtimer_nanosleep", By::Site);
        let command = match tasks {
            // Init itself, which lives on.
            1 => format!("sleep {millis}"),
            _ => format!("par {tasks} sleep {millis}"),
        };
        let asleep_until = Instant::now() + Duration::from_millis(millis);
        let from = guest.send(&command);
        guest.wait_until("all have entered", |g| g.hits("entered") == tasks);
        if guest.hits("left") == 0 {
            return Sleepers { from, command, asleep_until };
        }
        // The guest is slow: the first woke up before the last slept.
        guest.answer(from, &command);
        unregister_all(guest);
        millis *= 4;
    }
}

impl Sleepers {
    fn awake(self, guest: &TestGuest) {
        guest.answer(self.from, &self.command);
    }
}

/// Puts tasks to sleep as [`put_to_sleep`], does `look` while all of them sleep, and wakes them.
/// On a guest so slow that one may be awake by then, it is undone by `undo`, and done again.
fn while_asleep<T>(
    guest: &TestGuest,
    tasks: u64,
    register: impl Fn(&TestGuest),
    look: impl Fn(&TestGuest) -> T,
    undo: impl Fn(&TestGuest),
) -> T {
    let mut millis = 500;
    loop {
        let sleepers = put_to_sleep(guest, tasks, millis, &register);
        let found = look(guest);
        // The workload is no witness: it answers when the last is awake.
        let were_asleep = Instant::now() < sleepers.asleep_until;
        sleepers.awake(guest);
        if were_asleep {
            return found;
        }
        undo(guest);
        millis *= 4;
    }
}

fn unregister_all(guest: &TestGuest) {
    guest.engine.unregister(Selection::all()).unwrap();
}

fn tasks_that_sleep_in_the_function_use_an_instance_each(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let register = |guest: &TestGuest| {
            follow(guest, "r2:two hrtimer_nanosleep $retval", mode);
            follow(guest, "r:all hrtimer_nanosleep $retval", mode);
        };
        let look = |guest: &TestGuest| (guest.status("two").active, guest.status("all").active);
        let active = while_asleep(&guest, 4, register, look, unregister_all);
        assert_eq!(active, (Some(2), Some(4)));
        assert_eq!(guest.status("all").maxactive, Some(10));
        let (two, all) = (guest.status("two"), guest.status("all"));
        assert_eq!((two.hits, two.nmissed, two.active), (2, 2, Some(0)), "{mode:?}");
        assert_eq!((all.hits, all.nmissed, all.active), (4, 0, Some(0)), "{mode:?}");
        assert_eq!(guest.hits("left"), 4);
        // What was missed is not held against the next.
        assert!(guest.work("sleep 1") >= 1);
        assert_eq!((guest.status("two").hits, guest.status("two").nmissed), (3, 2));
        unregister_all(&guest);
        guest.assert_unharmed();
    }
}

fn a_call_may_return_on_another_vcpu() {
    const ROUNDS: u64 = 10;
    for mode in MODES {
        let guest = TestGuest::restored(2);
        let migrated = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&migrated);
        let probe = Kretprobe {
            definition: in_mode("r:pin __x64_sys_sched_setaffinity $retval", mode),
            data_size: 1,
            entry_handler: Some(Box::new(|instance, hit| {
                instance.data[0] = hit.vcpu();
                EntryVerdict::Follow
            })),
            handler: Some(Box::new(move |instance, hit| {
                assert!(instance.entered < hit.time());
                if instance.data[0] != hit.vcpu() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            })),
            ..Kretprobe::default()
        };
        guest.engine.register(probe).unwrap();
        follow(&guest, "r:inner sched_setaffinity", mode);
        guest.work("cpu 0");
        for _ in 0..ROUNDS {
            assert_eq!(guest.work("cpu 1"), 1);
            assert_eq!(guest.work("cpu 0"), 0);
        }
        for event in ["pin", "inner"] {
            let status = guest.status(event);
            assert_eq!((status.hits, status.nmissed), (1 + 2 * ROUNDS, 0), "{event} {mode:?}");
        }
        let migrated = migrated.load(Ordering::SeqCst);
        assert!(
            (2 * ROUNDS..=2 * ROUNDS + 1).contains(&migrated),
            "each but the first: {migrated}"
        );
        guest.assert_unharmed();
    }
}

fn tasks_that_end_inside_give_their_instances_back(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let functions = ["do_exit", "do_group_exit", "__x64_sys_exit_group", "do_task_dead"];
        for function in functions {
            follow(&guest, &format!("r4:{function} {function}"), mode);
            guest.probe(&format!("p:p_{function} {function}"));
        }
        assert_eq!(guest.work("fork 10"), 10);
        assert_eq!(guest.work("par 4 getpid 3"), 12);
        // The last of them may still be about to leave its stack.
        guest.wait_until("all have died", |g| g.hits("p_do_task_dead") == 14);
        for function in functions {
            guest.wait_until("all is given back", |g| g.status(function).active == Some(0));
            let status = guest.status(function);
            assert_eq!(status.hits, 0, "{function} {mode:?}");
            assert_eq!(status.nmissed, 0, "{mode:?}");
        }
        assert_eq!(guest.engine.calls_followed(), 0);
        guest.assert_unharmed();
        unregister_all(&guest);
        guest.assert_unharmed();
    }
}

/// In the mode `site`, which cannot watch for the end of every call.
fn an_entry_handler_is_asked_about_calls_that_are_followed_alone(vcpus: u8) {
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let probe = Kretprobe {
            definition: in_mode("r:end do_group_exit", mode),
            entry_handler: Some(Box::new(move |_, _| {
                count.fetch_add(1, Ordering::SeqCst);
                EntryVerdict::Follow
            })),
            ..Kretprobe::default()
        };
        guest.engine.register(probe).unwrap();
        assert_eq!(guest.work("fork 8"), 8);
        guest.engine.set_enabled(Selection::kretprobe("kprobes", "end"), false).unwrap();
        let status = guest.status("end");
        assert_eq!(asked.load(Ordering::SeqCst) + status.nmissed, 8, "{mode:?}");
        assert_eq!(status.nmissed, 0, "{mode:?}");
        guest.assert_unharmed();
    }
}

// A task that dies leaves the last two for good.
const SWITCHING: [(&str, u64); 7] = [
    ("schedule", 0),
    ("schedule_idle", 0),
    ("__switch_to", 0),
    ("do_idle", 0),
    ("schedule_tail", 0),
    ("__schedule", DEATHS),
    ("__switch_to_asm", DEATHS),
];
const DEATHS: u64 = 20 + 4 + 2 + 2;

/// The functions of which some call is not known: it has neither returned nor ended with its task,
/// nor is it followed. The guest is paused meanwhile.
fn with_unknown_calls(guest: &TestGuest) -> Vec<String> {
    guest.vm.pause().unwrap();
    let mut found = Vec::new();
    for (function, died) in SWITCHING {
        let entered = guest.hits(&format!("p_{function}"));
        let status = guest.status(&format!("r_{function}"));
        if status.hits + u64::from(status.active.unwrap()) + died != entered {
            found.push(format!("{function}: {entered} entered, {died} died: {status:?}"));
        }
    }
    guest.vm.resume().unwrap();
    found
}

/// Each task that enters has returned, is still inside, or has died there.
fn functions_that_switch_tasks_can_be_followed(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        guest.vm.pause().unwrap();
        guest.probe("p:dead do_task_dead");
        for (function, _) in SWITCHING {
            guest.probe(&format!("p:p_{function} {function}"));
            // More than there are tasks.
            follow(&guest, &format!("r200:r_{function} {function}"), mode);
        }
        guest.vm.resume().unwrap();
        assert_eq!(guest.work("fork 20"), 20);
        assert_eq!(guest.work("par 4 getpid 50"), 200);
        guest.work("par 2 sleep 20");
        assert_eq!(guest.work("par 2 open /dev/null 20"), 40);
        guest.wait_until("all have died", |g| g.hits("dead") == DEATHS);
        // A vCPU may be paused between the counts of the two probes at one place, and a task
        // between do_task_dead and __schedule. A call that is lost stays so at every look.
        let mut looks = 0;
        loop {
            let unknown = with_unknown_calls(&guest);
            if unknown.is_empty() {
                break;
            }
            looks += 1;
            assert!(looks < 20, "{mode:?}: {unknown:#?}");
            assert_eq!(guest.work("getpid 1"), 1);
        }
        for (function, _) in SWITCHING {
            let status = guest.status(&format!("r_{function}"));
            assert_eq!(status.nmissed, 0, "{mode:?}");
            // A slow guest is never idle.
            assert!(status.hits > 0 || function.contains("idle"), "{function} {mode:?}");
        }
        guest.assert_unharmed();
        unregister_all(&guest);
        guest.assert_unharmed();
    }
}

fn calls_under_way_outlive_their_probe_unseen(vcpus: u8) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let register = |guest: &TestGuest| follow(guest, "r:gone hrtimer_nanosleep", mode);
        let look = |guest: &TestGuest| {
            unregister_all(guest);
            (guest.engine.calls_followed(), guest.engine.traceless().is_some())
        };
        let found = while_asleep(&guest, 2, register, look, |_| ());
        match mode {
            By::Trampoline | By::Code => assert_eq!(found, (2, false)),
            By::Site => assert_eq!(found, (0, true)),
        }
        assert_eq!(guest.engine.calls_followed(), 0);
        assert!(guest.engine.traceless().is_some(), "no trace is left");
        guest.assert_unharmed();
        follow(&guest, "r:gone hrtimer_nanosleep", mode);
        assert!(guest.work("sleep 1") >= 1);
        assert_eq!(guest.hits("gone"), 1);
        guest.assert_unharmed();
    }
}

/// A closure's captures show when its probe has gone.
fn a_probe_is_dropped_with_its_last_call(vcpus: u8) {
    for mode in MODES {
        let guest = TestGuest::restored(vcpus);
        let token = Arc::new(());
        let sleepers = put_to_sleep(&guest, 2, 500, |guest| {
            let held = Arc::clone(&token);
            let probe = Kretprobe {
                definition: in_mode("r:held hrtimer_nanosleep", mode),
                handler: Some(Box::new(move |_, _| drop(Arc::clone(&held)))),
                ..Kretprobe::default()
            };
            guest.engine.register(probe).unwrap();
        });
        unregister_all(&guest);
        sleepers.awake(&guest);
        guest.assert_unharmed();
        assert_eq!(Arc::strong_count(&token), 1, "{mode:?}");
    }
}

/// One instance, in use when `off` is called: it is not counted, and free when the probe is on
/// again.
fn assert_let_go(vcpus: u8, off: impl Fn(&TestGuest), on: impl Fn(&TestGuest)) {
    for mode in ALL {
        let guest = TestGuest::restored(vcpus);
        let register = |guest: &TestGuest| follow(guest, "r1:one hrtimer_nanosleep", mode);
        let look = |guest: &TestGuest| {
            let active = guest.status("one").active;
            off(guest);
            active
        };
        let undo = |guest: &TestGuest| {
            on(guest);
            unregister_all(guest);
        };
        assert_eq!(while_asleep(&guest, 1, register, look, undo), Some(1));
        let one = guest.status("one");
        assert_eq!((one.hits, one.nmissed, one.active), (0, 0, Some(0)), "{mode:?}");
        on(&guest);
        assert!(guest.work("sleep 1") >= 1);
        let one = guest.status("one");
        assert_eq!((one.hits, one.nmissed, one.active), (1, 0, Some(0)), "{mode:?}");
        guest.assert_unharmed();
    }
}

fn calls_under_way_are_let_go_when_a_probe_is_disabled(vcpus: u8) {
    assert_let_go(
        vcpus,
        |guest| guest.engine.set_enabled(Selection::kretprobe("kprobes", "one"), false).unwrap(),
        |guest| guest.engine.set_enabled(Selection::kretprobe("kprobes", "one"), true).unwrap(),
    );
}

fn calls_under_way_are_let_go_by_the_global_switch(vcpus: u8) {
    assert_let_go(
        vcpus,
        |guest| guest.engine.switch(false).unwrap(),
        |guest| guest.engine.switch(true).unwrap(),
    );
}
