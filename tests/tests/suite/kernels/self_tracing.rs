//! A guest that traces itself, by the kprobes, the function tracer and the BPF programs of its own
//! kernel, at the places of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use exoprobe_probes::Guest;
use exoprobe_tests::TestGuest;

mod live_patch;
mod ours;
mod own;

pub(super) use live_patch::a_live_patch_comes_and_goes;
use ours::{Function, GETPID, MMAP, MUNMAP, OurProbe, Ours, WAIT, wait};
use own::{Own, TRACER, Theirs, put, type_number};

/// Both at one place, in every order of coming and going.
pub(super) fn both_count_at_one_place(guest: &TestGuest) {
    assert_eq!(guest.work(&format!("mount tracefs {TRACER}")), 1);
    let _ticks = Ticks::start(guest);
    // Each first on a function of its own: what a breakpoint of the guest's leaves on its stack
    // looks like a task in the function for a while, and keeps ours from its detour.
    nothing_is_left(guest, GETPID, || beside_ours(guest, GETPID));
    passed("kprobe on another instruction that our jmp covers", Ours::Detour);
    at_one_place(guest, Ours::Detour, [MMAP, MUNMAP]);
    at_one_place(guest, Ours::Breakpoint, [GETPID; 2]);
    at_one_place(guest, Ours::Post, [GETPID; 2]);
    for ours in [Ours::Breakpoint, Ours::Detour, Ours::Post, Ours::Return] {
        nothing_is_left(guest, GETPID, || comes_and_goes_under_load(guest, ours, GETPID));
        passed("kprobe on the same instruction, coming and going under load", ours);
    }
    for ours in [Ours::Detour, Ours::Post] {
        nothing_is_left(guest, GETPID, || ours_comes_and_goes_under_load(guest, ours, GETPID));
        passed("kprobe on the same instruction; ours comes and goes under load", ours);
    }
}

fn at_one_place(guest: &TestGuest, ours: Ours, [first, second]: [Function; 2]) {
    nothing_is_left(guest, first, || ours_comes_first(guest, ours, first));
    for settled in [false, true] {
        nothing_is_left(guest, second, || theirs_comes_first(guest, ours, second, settled));
    }
    passed("kprobe on the same instruction", ours);
}

/// Prints a row of the table of docs/kernels.md.
fn passed(own: &str, ours: Ours) {
    println!("| {own} | {ours:?} |");
}

/// Beside each tracer that a distribution's kernel has, in every order.
pub(super) fn both_count_beside_its_tracers(guest: &TestGuest) {
    let _ticks = Ticks::start(guest);
    for own in [Own::Kretprobe, Own::Function] {
        for ours in [Ours::Breakpoint, Ours::Return] {
            nothing_is_left(guest, GETPID, || in_turn(guest, own, ours, GETPID));
            passed(&own.title(), ours);
        }
    }
}

/// Beside BPF programs at the function's entry and return, in every order, and under load.
pub(super) fn both_count_beside_bpf_programs(guest: &TestGuest) {
    let _ticks = Ticks::start(guest);
    for own in [Own::Fentry, Own::Fexit] {
        for ours in [Ours::Breakpoint, Ours::Offset, Ours::Detour, Ours::Return, Ours::Site] {
            nothing_is_left(guest, GETPID, || in_turn(guest, own, ours, GETPID));
            passed(&own.title(), ours);
        }
    }
    for ours in [Ours::Return, Ours::Site] {
        nothing_is_left(guest, WAIT, || is_attached_under_load(guest, Own::Fexit, ours));
        passed(&format!("{}, coming and going under load", Own::Fexit.title()), ours);
    }
}

/// The guest's own and ours of all kinds at one function. In each round another one comes first,
/// and goes first.
pub(super) fn all_count_at_once(guest: &TestGuest) {
    let _ticks = Ticks::start(guest);
    let own = [Own::Kprobe(0), Own::Kretprobe, Own::Function, Own::Fentry, Own::Fexit];
    let ours = [Ours::Breakpoint, Ours::Return, Ours::Site];
    let all = [&ours.map(Tracer::Ours)[..], &own.map(Tracer::Own)].concat();
    nothing_is_left(guest, GETPID, || {
        for first in 0..all.len() {
            let mut present = Vec::new();
            let in_order = all.iter().cycle().skip(first).take(all.len());
            for next in in_order {
                present.push(Present::come(guest, *next, GETPID));
                all_count(guest, &mut present, &format!("{next:?} came"));
            }
            while !present.is_empty() {
                let gone = present.remove(0).go();
                present.iter_mut().for_each(Present::count_anew);
                all_count(guest, &mut present, &format!("{gone:?} went"));
            }
        }
    });
    println!("| all of these at once, on the function's entry | Breakpoint, Return, Site |");
}

/// Calls the function of all, which count each call.
fn all_count(guest: &TestGuest, present: &mut [Present<'_>], when: &str) {
    let calls = GETPID.call(guest);
    let entries = 1 + present.iter().filter(|one| one.has_event()).count() as u64;
    for one in present {
        match one {
            Present::Ours(our) => our.assert_more(calls, when),
            // It counts entries of a buffer that events write to as well.
            Present::Own(their) if their.own() == Own::Function => {
                their.assert_more(calls * entries, when);
            }
            Present::Own(their) => their.assert_more(calls, when),
        }
    }
}

/// One of those that come and go.
#[derive(Clone, Copy, Debug)]
enum Tracer {
    Own(Own),
    Ours(Ours),
}

/// One that has come.
enum Present<'a> {
    Own(Theirs<'a>),
    Ours(OurProbe<'a>),
}

impl<'a> Present<'a> {
    fn come(guest: &'a TestGuest, one: Tracer, function: Function) -> Self {
        match one {
            Tracer::Own(own) => Self::Own(Theirs::come(guest, own, function)),
            Tracer::Ours(ours) => Self::Ours(OurProbe::come(guest, ours, function)),
        }
    }

    fn has_event(&self) -> bool {
        matches!(self, Self::Own(their) if their.own().has_event())
    }

    fn count_anew(&mut self) {
        if let Self::Own(their) = self {
            their.count_anew();
        }
    }

    fn go(self) -> Tracer {
        match self {
            Self::Own(their) => Tracer::Own(their.go()),
            Self::Ours(our) => Tracer::Ours(our.go()),
        }
    }
}

fn in_turn(guest: &TestGuest, own: Own, ours: Ours, function: Function) {
    let mut our = OurProbe::alone(guest, ours, function);
    our.assert_more(function.call(guest), "alone");
    let was_optimized = our.is_optimized();
    let mut their = Theirs::come(guest, own, function);
    both_count(&mut our, &mut their, "the guest's came second");
    assert!(our.is_optimized() || !was_optimized, "the guest's is before our jmp");
    their.go();
    our.assert_more(function.call(guest), "the guest's went first");
    let mut their = Theirs::come(guest, own, function);
    our.go();
    their.assert_more(function.call(guest), "ours went first");
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came second");
    their.go();
    our.assert_more(function.call(guest), "the guest's went first");
    our.go();
}

/// The guest's own comes and goes while the function is called, also on another vCPU.
fn comes_and_goes_under_load(guest: &TestGuest, ours: Ours, function: Function) {
    const TIMES: u32 = 8;
    const UNDER_LOAD: u64 = 600;
    let offset = function.offset_of_ours(guest);
    let mut our = OurProbe::alone(guest, ours, function);
    let name = function.name;
    put(guest, "kprobe_events", &format!("p:own {name}+{offset}"));
    let toggled = format!("{TRACER}/events/kprobes/own/enable");
    let command = format!("toggle {toggled} {TIMES} {} {UNDER_LOAD}", function.work);
    assert_eq!(guest.work(&command), UNDER_LOAD);
    our.assert_more(UNDER_LOAD, "the guest's came and went");
    put(guest, "kprobe_events", "-:own");
    our.go();
}

/// Ours comes and goes while the function is called. The guest's own stays, and counts each call.
fn ours_comes_and_goes_under_load(guest: &TestGuest, ours: Ours, function: Function) {
    const UNDER_LOAD: u64 = 600;
    // Without it, a guest whose host has one CPU gets too little of it: its watchdog complains.
    let let_it_call = || std::thread::sleep(Duration::from_millis(1));
    let offset = function.offset_of_ours(guest);
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    let command = format!("spawn {} {} {UNDER_LOAD}", guest.vm.vcpus() - 1, function.work);
    let from = guest.send(&command);
    let mut times = 0;
    while guest.is_silent(from) {
        let our = OurProbe::come(guest, ours, function);
        let_it_call();
        our.go();
        let_it_call();
        times += 1;
    }
    assert_eq!(guest.answer(from, &command), UNDER_LOAD);
    println!("ours came and went {times} times");
    their.assert_more(UNDER_LOAD, "ours came and went");
    their.go();
}

/// A BPF program comes and goes while the function is called, by tasks that sleep in it when the
/// program's trampoline, to which they return, is about to be freed.
fn is_attached_under_load(guest: &TestGuest, own: Own, ours: Ours) {
    const TIMES: u32 = 4;
    const CHILDREN: u64 = 300;
    let mut our = OurProbe::come(guest, ours, WAIT);
    let (end, number) = (own.end(), type_number(guest, WAIT.name));
    let command = format!("reattach {end} {number} {TIMES} {} {CHILDREN}", WAIT.work);
    assert_eq!(guest.work(&command), CHILDREN);
    // Init waits for the child that does the work.
    our.assert_more(CHILDREN + 1, "the guest's came and went");
    our.go();
}

/// Calls the function of both, which count each call.
fn both_count(our: &mut OurProbe<'_>, their: &mut Theirs<'_>, when: &str) {
    let calls = their.call();
    our.assert_more(calls, when);
    their.assert_more(calls, when);
}

/// Lets both come and go. The function is then as it was before.
fn nothing_is_left(guest: &TestGuest, function: Function, come_and_go: impl FnOnce()) {
    let before = function.text(guest);
    come_and_go();
    wait(guest);
    assert_eq!(function.text(guest), before, "nothing is left");
}

fn ours_comes_first(guest: &TestGuest, ours: Ours, function: Function) {
    let offset = function.offset_of_ours(guest);
    let mut our = OurProbe::alone(guest, ours, function);
    our.assert_more(function.call(guest), "alone");
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    both_count(&mut our, &mut their, "the guest's came second");
    wait(guest);
    both_count(&mut our, &mut their, "and stayed");
    their.go();
    our.assert_more(function.call(guest), "the guest's went first");
    our.settle();
    our.assert_more(function.call(guest), "and ours settled");
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    our.go();
    their.assert_more(function.call(guest), "ours went first");
    wait(guest);
    their.assert_more(function.call(guest), "and the guest's settled");
    their.go();
}

/// With `settled`, the guest had the time to optimize its own before ours comes.
fn theirs_comes_first(guest: &TestGuest, ours: Ours, function: Function, settled: bool) {
    let offset = function.offset_of_ours(guest);
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    if settled {
        wait(guest);
    }
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came second");
    wait(guest);
    both_count(&mut our, &mut their, "and stayed");
    our.go();
    their.assert_more(function.call(guest), "ours went first");
    wait(guest);
    println!("alone, the guest's own has {:02x?}", &function.text(guest)[..16]);
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came again");
    their.go();
    our.assert_more(function.call(guest), "the guest's went first");
    our.settle();
    our.assert_more(function.call(guest), "and ours settled");
    our.go();
}

/// The guest's own is within the bytes of our jmp, then ours comes back before it.
fn beside_ours(guest: &TestGuest, function: Function) {
    let offset = function.offset_of_ours(guest);
    let next = function.next(guest, offset);
    let mut our = OurProbe::come(guest, Ours::Detour, function);
    our.optimize();
    let mut their = Theirs::come(guest, Own::Kprobe(next), function);
    both_count(&mut our, &mut their, "the guest's is after ours");
    wait(guest);
    both_count(&mut our, &mut their, "and stays");
    our.go();
    their.assert_more(function.call(guest), "ours went first");
    let mut our = OurProbe::come(guest, Ours::Detour, function);
    both_count(&mut our, &mut their, "ours came again");
    their.go();
    our.settle();
    our.assert_more(function.call(guest), "the guest's went first");
    our.go();
}

/// Calls the engine's regular work until it is dropped, as a service does.
struct Ticks {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticks {
    fn start(guest: &TestGuest) -> Self {
        let (engine, ended) = (Arc::clone(&guest.engine), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Acquire) {
                std::thread::sleep(engine.tick());
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}
