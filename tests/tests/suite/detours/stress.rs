//! Hundreds of probes of all kinds come and go at random while both vCPUs work; some are left alone
//! and must count each call. One number, the seed, determines all choices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_guest::Gva;
use exoprobe_probes::definition::Flag;
use exoprobe_probes::{
    Action, EntryVerdict, Kprobe, Kretprobe, NewProbe, ProbeDefinition, ProbeStatus, ReturnMode,
    Selection, StatusFlag, Verdict,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{
    Dice, PATIENCE, STRESS_SECONDS_ENV, TestGuest, cases, definition, function_size,
};
use exoprobe_vmm::VmState;

pub(crate) const CASES: &[Case] = cases![probes_of_all_kinds_come_and_go_and_those_left_alone_count_all needs [Kvm, Smp, ContendedLocks]];

/// Unless [`STRESS_SECONDS_ENV`] says otherwise.
const SECONDS: u64 = 20;
/// The number to start from, as an earlier run printed it.
const SEED_ENV: &str = "EXOPROBE_STRESS_SEED";
/// Probes at a time, besides those that are left alone.
const PROBES: usize = 200;
/// Changes that must fall into each phase, and of a run of a second, as the lab's.
const CHANGES: u32 = 30;
const FEW_CHANGES: u32 = 12;
/// How often a sign of life is printed.
const SIGN: Duration = Duration::from_secs(1);

/// Functions whose calls by [`WORK`] are known.
const COUNTED: [&str; 6] = [
    "__x64_sys_getpid",
    "__x64_sys_openat",
    "write_null",
    "__x64_sys_fork",
    "__x64_sys_munmap",
    "__x64_sys_nanosleep",
];

/// A command for both vCPUs.
struct Work {
    command: &'static str,
    /// Its answer; none where that is a time.
    answer: Option<u64>,
    /// Calls of each of [`COUNTED`]. `par 2` itself forks twice.
    calls: [u64; COUNTED.len()],
}

const fn work(command: &'static str, answer: Option<u64>, calls: [u64; COUNTED.len()]) -> Work {
    Work { command, answer, calls }
}

const WORK: [Work; 6] = [
    work("par 2 getpid 400", Some(800), [800, 0, 0, 2, 0, 0]),
    work("par 2 open /dev/null 25", Some(50), [0, 50, 0, 2, 0, 0]),
    work("par 2 write 100", Some(200), [0, 2, 200, 2, 0, 0]),
    work("par 2 fork 4", Some(8), [0, 0, 0, 10, 0, 0]),
    work("par 2 mmap 25", Some(50), [0, 0, 0, 2, 50, 0]),
    work("par 2 sleep 100", None, [0, 0, 0, 2, 0, 2]),
];

/// Where kprobes come and go: on the way of all that work, and of what happens beside it.
const PLACES: [&str; 26] = [
    "__x64_sys_getpid",
    "__x64_sys_openat",
    "__x64_sys_fork",
    "__x64_sys_munmap",
    "__x64_sys_nanosleep",
    "write_null",
    "__task_pid_nr_ns",
    "ksys_write",
    "vfs_write",
    "do_sys_openat2",
    "getname_flags",
    "strncpy_from_user",
    "path_openat",
    "filp_close",
    "kernel_clone",
    "copy_process",
    "handle_mm_fault",
    "exc_page_fault",
    "do_mmap",
    "hrtimer_nanosleep",
    "try_to_wake_up",
    "__schedule",
    "__switch_to",
    "do_exit",
    "do_syscall_64",
    "hrtimer_interrupt",
];
/// Where return probes do: functions that every call soon returns from, or that end with their
/// task.
const RETURNING: usize = 20;

/// A probe that comes and goes.
struct Guinea {
    event: String,
    enabled: bool,
    /// How often its own handler was called, where it has one.
    called: Option<Arc<AtomicU64>>,
}

struct Stress {
    guest: TestGuest,
    dice: Dice,
    probes: Vec<Guinea>,
    /// Sizes of the functions of [`PLACES`], in bytes.
    sizes: [u64; PLACES.len()],
    next: u64,
    /// Where a kprobe has been.
    seen: BTreeSet<Gva>,
    changes: u64,
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs())
}

fn probes_of_all_kinds_come_and_go_and_those_left_alone_count_all() {
    let seed = from_environment(SEED_ENV).unwrap_or_else(now);
    let seconds = from_environment(STRESS_SECONDS_ENV).unwrap_or(SECONDS);
    eprintln!("stress: {seconds} s, {SEED_ENV}={seed}");
    let mut stress = Stress::new(seed);
    let changes = if seconds > 1 { CHANGES } else { FEW_CHANGES };
    let text = stress.guest.kernel_text();
    let begun = Instant::now();
    let mut sign = begun;
    let mut phases = 0;
    while begun.elapsed() < Duration::from_secs(seconds) || phases < WORK.len() {
        stress.phase(&WORK[phases % WORK.len()], changes);
        phases += 1;
        if sign.elapsed() > SIGN {
            sign = Instant::now();
            let (changes, seconds) = (stress.changes, begun.elapsed().as_secs());
            eprintln!("stress: {phases} phases, {changes} changes in {seconds} s");
        }
    }
    eprintln!("stress: {phases} phases, {} changes, {SEED_ENV}={seed}", stress.changes);
    stress.check_end(&text);
}

impl Stress {
    fn new(seed: u64) -> Self {
        Self {
            guest: TestGuest::restored(2),
            dice: Dice(seed),
            probes: Vec::new(),
            sizes: PLACES.map(function_size),
            next: 0,
            seen: BTreeSet::new(),
            changes: 0,
        }
    }

    /// Probes that are left alone while everything else changes must count the calls. Ends after
    /// `enough` changes.
    fn phase(&mut self, work: &Work, enough: u32) {
        let steady = self.add_steady();
        let mut expected = [0; COUNTED.len()];
        let mut changes = 0;
        while changes < enough {
            let from = self.guest.send(work.command);
            let deadline = Instant::now() + PATIENCE;
            while self.guest.is_silent(from) {
                let alive = matches!(self.guest.vm.state(), VmState::Running);
                assert!(alive && Instant::now() < deadline, "{}", self.guest.console());
                let begun = Instant::now();
                self.change();
                changes += 1;
                // What stops the guest, as an optimization's end does, is not to be all that it
                // gets to do.
                std::thread::sleep(begun.elapsed());
            }
            let answer = self.guest.answer(from, work.command);
            assert!(
                work.answer.is_none_or(|expected| expected == answer),
                "{}: {answer}",
                work.command
            );
            for (expected, calls) in expected.iter_mut().zip(work.calls) {
                *expected += calls;
            }
        }
        self.changes += u64::from(changes);
        for (names, expected) in steady.iter().zip(expected) {
            for name in names {
                let status = self.guest.status(name);
                assert_eq!((status.hits, status.nmissed), (expected, 0), "{status:?}");
                self.guest.engine.unregister(Selection::event("kprobes", name)).unwrap();
            }
        }
        self.guest.engine.drain();
    }

    /// A kprobe and a return probe on each of [`COUNTED`]; gives their names.
    fn add_steady(&mut self) -> [[String; 2]; COUNTED.len()] {
        COUNTED.map(|counted| {
            ['p', 'r'].map(|kind| {
                let name = format!("steady_{kind}_{counted}");
                let mut definition = definition(&format!("{kind}:{name} {counted}"));
                if kind == 'r' {
                    definition.return_mode = self.mode();
                }
                self.guest.engine.register(definition).unwrap_or_else(|e| panic!("{name}: {e}"));
                name
            })
        })
    }

    fn mode(&mut self) -> ReturnMode {
        if self.dice.one_in(2) { ReturnMode::Site } else { ReturnMode::Trampoline }
    }

    fn change(&mut self) {
        match self.dice.below(10) {
            0..4 => self.add_some(),
            4..6 => self.remove_some(),
            6..9 => self.turn_one(),
            // Rarely: each stops the guest for a moment, and so does what ends an optimization.
            _ if self.dice.one_in(12) => _ = self.guest.engine.optimize(),
            _ => self.guest.engine.patrol(),
        }
    }

    fn add_some(&mut self) {
        let room = PROBES.saturating_sub(self.probes.len()).min(12);
        for _ in 0..room.min(1 + self.dice.below(12)) {
            let return_probe = self.dice.one_in(3);
            let (probe, guinea) = if return_probe { self.kretprobe() } else { self.kprobe() };
            match self.guest.engine.register(probe) {
                Ok(added) => {
                    if !return_probe {
                        self.seen.extend(added[0].addr);
                    }
                    self.probes.push(guinea);
                }
                // Inside an instruction, or one that must not be probed: most of the dice's.
                Err(error) => assert!(matches!(error.code(), "EILSEQ" | "EOPNOTSUPP"), "{error}"),
            }
        }
    }

    fn definition(&mut self, kind: char, place: &str) -> ProbeDefinition {
        self.next += 1;
        let mut line = format!("{kind}:g{} {place}", self.next);
        if self.dice.one_in(2) {
            line += " %di $stack1 +8(%sp)";
        }
        let mut definition = definition(&line);
        definition.actions = match self.dice.below(4) {
            0 => vec![Action::Count],
            1 => vec![Action::Stack],
            _ => vec![],
        };
        if self.dice.one_in(8) {
            definition.flags.push(Flag::Disabled);
        }
        definition
    }

    fn guinea(&self, definition: &ProbeDefinition, called: Option<Arc<AtomicU64>>) -> Guinea {
        Guinea { event: definition.event_name(), enabled: definition.flags.is_empty(), called }
    }

    fn kprobe(&mut self) -> (NewProbe, Guinea) {
        let place = self.dice.below(PLACES.len());
        let reach = usize::try_from(self.sizes[place]).expect("a function").min(200);
        // The beginnings are where the most can go wrong: several probes at one place.
        let offset = if self.dice.one_in(3) { 0 } else { self.dice.below(reach) };
        let definition = self.definition('p', &format!("{}+{offset}", PLACES[place]));
        let mut probe = Kprobe::from(definition);
        let mut called = None;
        if self.dice.one_in(2) {
            let count = Arc::new(AtomicU64::new(0));
            called = Some(Arc::clone(&count));
            probe.pre_handler = Some(Box::new(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                Verdict::Continue
            }));
        }
        if self.dice.one_in(3) {
            probe.post_handler = Some(Box::new(|hit| {
                let sp = hit.regs.rsp;
                let _ = hit.read_u64(Gva(sp));
            }));
        }
        let guinea = self.guinea(&probe.definition, called);
        (NewProbe::Kprobe(probe), guinea)
    }

    fn kretprobe(&mut self) -> (NewProbe, Guinea) {
        let place = PLACES[self.dice.below(RETURNING)];
        let mut definition = self.definition('r', place);
        definition.return_mode = self.mode();
        definition.maxactive = [None, Some(1), Some(3), Some(64)][self.dice.below(4)];
        let mut probe = Kretprobe::from(definition);
        let mut called = None;
        if self.dice.one_in(2) {
            let count = Arc::new(AtomicU64::new(0));
            called = Some(Arc::clone(&count));
            probe.handler = Some(Box::new(move |_, _| _ = count.fetch_add(1, Ordering::SeqCst)));
        }
        if self.dice.one_in(2) {
            probe.data_size = 16;
            probe.entry_handler = Some(Box::new(|instance, hit| {
                instance.data[0] = hit.vcpu();
                let skip = hit.regs.rsp & 0x40 == 0;
                if skip { EntryVerdict::Skip } else { EntryVerdict::Follow }
            }));
        }
        let guinea = self.guinea(&probe.definition, called);
        (NewProbe::Kretprobe(probe), guinea)
    }

    fn turn_one(&mut self) {
        if self.probes.is_empty() {
            return;
        }
        let chosen = self.dice.below(self.probes.len());
        let on = !self.probes[chosen].enabled;
        let event = &self.probes[chosen].event;
        self.guest
            .engine
            .set_enabled(Selection::event("kprobes", event), on)
            .unwrap_or_else(|e| panic!("{e}"));
        self.probes[chosen].enabled = on;
        if !on {
            self.check_off(chosen);
        }
    }

    /// Counters of probes that are off add up, and handlers were called once a hit.
    fn check_off(&self, chosen: usize) {
        let Guinea { event, called, .. } = &self.probes[chosen];
        let status: ProbeStatus = self.guest.engine.show("kprobes", event).unwrap();
        assert_eq!(status.hits, status.recorded + status.filtered + status.lost, "{status:?}");
        if let Some(called) = called {
            assert_eq!(status.hits, called.load(Ordering::SeqCst), "{status:?}");
        }
    }

    fn remove_some(&mut self) {
        let some = 1 + self.dice.below(8);
        for _ in 0..some.min(self.probes.len()) {
            let chosen = self.dice.below(self.probes.len());
            let guinea = self.probes.swap_remove(chosen);
            let removed = self.guest.engine.unregister(Selection::event("kprobes", &guinea.event));
            removed.unwrap_or_else(|e| panic!("{}: {e}", guinea.event));
        }
    }

    /// Nothing is left of all that.
    fn check_end(mut self, text: &[u8]) {
        self.guest.assert_unharmed();
        // Calls that were under way end: the one that wrote the workload's answer, for one.
        let active = |status: &ProbeStatus| status.active.unwrap_or(0) > 0;
        self.guest.wait_until("no instance is lost", |guest| {
            guest.engine.calls_followed() == 0 && !guest.engine.list().iter().any(active)
        });
        for status in self.guest.engine.list() {
            let harmed = [StatusFlag::Gone, StatusFlag::Pending, StatusFlag::Clobbered];
            assert!(!status.flags.iter().any(|flag| harmed.contains(flag)), "{status:?}");
        }
        self.guest.engine.unregister(Selection::all()).unwrap();
        self.guest.assert_unharmed();
        assert!(self.guest.engine.traceless().is_some());
        self.guest.assert_text(&self.guest.with_turned_branches(text));
        self.check_slots();
        self.guest.assert_text(&self.guest.with_turned_branches(text));
    }

    /// The same places take no new slots.
    fn check_slots(&mut self) {
        let slots = self.guest.slots_in_use();
        let places = std::mem::take(&mut self.seen);
        assert!(places.len() > 20, "only {} places were probed", places.len());
        assert_eq!(self.guest.probes(places.iter().map(|at| format!("p {at}"))), places.len());
        self.guest.assert_unharmed();
        self.guest.engine.unregister(Selection::all()).unwrap();
        assert_eq!(self.guest.slots_in_use(), slots);
    }
}
