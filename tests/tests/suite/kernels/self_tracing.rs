//! A guest that traces itself, by the kprobes of its own kernel, at the places of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use exoprobe_probes::{Action, Selection, StatusFlag};
use exoprobe_tests::TestGuest;

use crate::support::frames::register;

/// The tracer's files in the guest.
const TRACER: &str = "/sys/kernel/tracing";
/// As kernels with the function tracer begin their functions: a landing pad, then a nop for its
/// call.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Long enough for the kernel to optimize a kprobe (OPTIMIZE_DELAY: 5 jiffies).
const UNTIL_OPTIMIZED: &str = "sleep 200";

/// Of a function, at a time.
const CALLS: u64 = 20;

/// A function, and the work that calls it so many times.
#[derive(Clone, Copy)]
struct Function {
    name: &'static str,
    work: &'static str,
}

const GETPID: Function = Function { name: "__x64_sys_getpid", work: "getpid" };
const MMAP: Function = Function { name: "__x64_sys_mmap", work: "mmap" };
const MUNMAP: Function = Function { name: "__x64_sys_munmap", work: "mmap" };

/// How ours is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    Breakpoint,
    Detour,
    /// A return probe.
    Return,
}

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
    for ours in [Ours::Breakpoint, Ours::Detour, Ours::Return] {
        nothing_is_left(guest, GETPID, || comes_and_goes_under_load(guest, ours, GETPID));
        passed("kprobe on the same instruction, coming and going under load", ours);
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
            passed(&format!("{own:?}, on the function's entry"), ours);
        }
    }
}

fn in_turn(guest: &TestGuest, own: Own, ours: Ours, function: Function) {
    let mut our = OurProbe::alone(guest, ours, function);
    our.assert_more(call(guest, function), "alone");
    let mut their = Theirs::come(guest, own, function);
    both_count(&mut our, &mut their, "the guest's came second");
    their.go();
    our.assert_more(call(guest, function), "the guest's went first");
    let mut their = Theirs::come(guest, own, function);
    our.go();
    their.assert_more(call(guest, function), "ours went first");
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came second");
    their.go();
    our.assert_more(call(guest, function), "the guest's went first");
    our.go();
}

/// Where a probe of the function is: after the call of the function tracer.
fn offset_of_ours(guest: &TestGuest, function: Function) -> u64 {
    let at = guest.engine.address_of(function.name).unwrap();
    let mut bytes = [0; 16];
    guest.engine.read_without_probes(at, &mut bytes).unwrap();
    let pad = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    match bytes[pad..].starts_with(&FTRACE_NOP) {
        true => (pad + FTRACE_NOP.len()) as u64,
        false => 0,
    }
}

/// A tracer of the guest's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// An event on an instruction of the function.
    Kprobe(u64),
    /// An event on the function's return.
    Kretprobe,
    /// The function tracer, which calls out of the function's first instruction.
    Function,
}

/// One of these, counted.
struct Theirs<'a> {
    guest: &'a TestGuest,
    own: Own,
    function: Function,
    hits: u64,
}

impl<'a> Theirs<'a> {
    fn come(guest: &'a TestGuest, own: Own, function: Function) -> Self {
        let name = function.name;
        match own {
            Own::Kprobe(offset) => put(guest, "kprobe_events", &format!("p:own {name}+{offset}")),
            Own::Kretprobe => put(guest, "kprobe_events", &format!("r:own {name}")),
            Own::Function => put(guest, "set_ftrace_filter", &any_alias(name)),
        }
        match own {
            Own::Function => put(guest, "current_tracer", "function"),
            Own::Kprobe(_) | Own::Kretprobe => put(guest, "events/kprobes/own/enable", "1"),
        }
        let mut new = Self { guest, own, function, hits: 0 };
        new.hits = new.count();
        new
    }

    fn count(&self) -> u64 {
        let (file, word) = match self.own {
            Own::Function => ("per_cpu/cpu0/stats", "entries:"),
            Own::Kprobe(_) | Own::Kretprobe => ("kprobe_profile", "own"),
        };
        self.guest.work(&format!("number {TRACER}/{file} {word}"))
    }

    /// So many calls more have been counted.
    fn assert_more(&mut self, calls: u64, when: &str) {
        let now = self.count();
        assert_eq!(now - self.hits, calls, "{when}: the guest's own {:?}", self.own);
        self.hits = now;
    }

    fn go(self) {
        match self.own {
            Own::Function => {
                put(self.guest, "current_tracer", "nop");
                put(
                    self.guest,
                    "set_ftrace_filter",
                    &format!("!{}", any_alias(self.function.name)),
                );
            }
            Own::Kprobe(_) | Own::Kretprobe => {
                put(self.guest, "events/kprobes/own/enable", "0");
                put(self.guest, "kprobe_events", "-:own");
            }
        }
    }
}

/// The guest's own comes and goes while the function is called, also on another vCPU.
fn comes_and_goes_under_load(guest: &TestGuest, ours: Ours, function: Function) {
    const TIMES: u32 = 8;
    const UNDER_LOAD: u64 = 600;
    let offset = offset_of_ours(guest, function);
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

/// A pattern for a system call's function, by whichever of its names the function tracer calls it.
fn any_alias(name: &str) -> String {
    name.replacen("__x64", "*", 1)
}

fn put(guest: &TestGuest, file: &str, text: &str) {
    assert_eq!(guest.work(&format!("put {TRACER}/{file} {text}")), 1);
}

/// Ours, counted beside the guest's calls.
struct OurProbe<'a> {
    guest: &'a TestGuest,
    ours: Ours,
    hits: u64,
}

impl<'a> OurProbe<'a> {
    fn come(guest: &'a TestGuest, ours: Ours, function: Function) -> Self {
        guest.engine.allow_optimization(ours == Ours::Detour);
        let kind = if ours == Ours::Return { 'r' } else { 'p' };
        register(guest, &format!("{kind}:ours {}", function.name), &[Action::Count]);
        Self { guest, ours, hits: 0 }
    }

    fn alone(guest: &'a TestGuest, ours: Ours, function: Function) -> Self {
        let probe = Self::come(guest, ours, function);
        probe.settle();
        probe
    }

    /// Gives it the time to be optimized. What the guest's own breakpoint left on a stack looks
    /// like a task in the function for a while, so it may not be.
    fn settle(&self) {
        const TRIES: u32 = 5;
        for _ in 0..TRIES {
            if self.ours != Ours::Detour || self.is_optimized() {
                return;
            }
            wait(self.guest);
        }
        println!("not optimized: {:?}", self.guest.status("ours").unoptimized_reason);
    }

    fn is_optimized(&self) -> bool {
        self.guest.status("ours").flags.contains(&StatusFlag::Optimized)
    }

    fn assert_more(&mut self, calls: u64, when: &str) {
        let status = self.guest.status("ours");
        assert_eq!(status.hits - self.hits, calls, "{when}: ours, {:?}: {status:?}", self.ours);
        assert!(!status.flags.contains(&StatusFlag::Clobbered), "{when}: {status:?}");
        assert_eq!(status.nmissed, 0, "{when}");
        self.hits = status.hits;
    }

    fn go(self) {
        self.guest.engine.unregister(Selection::event("kprobes", "ours")).unwrap();
    }
}

/// Calls the function [`CALLS`] times.
fn call(guest: &TestGuest, function: Function) -> u64 {
    assert_eq!(guest.work(&format!("{} {CALLS}", function.work)), CALLS);
    CALLS
}

/// Calls the function of both, which count each call.
fn both_count(our: &mut OurProbe<'_>, their: &mut Theirs<'_>, when: &str) {
    let calls = call(their.guest, their.function);
    our.assert_more(calls, when);
    their.assert_more(calls, when);
}

/// Lets both come and go. The function is then as it was before.
fn nothing_is_left(guest: &TestGuest, function: Function, come_and_go: impl FnOnce()) {
    let before = text(guest, function);
    come_and_go();
    wait(guest);
    assert_eq!(text(guest, function), before, "nothing is left");
}

fn wait(guest: &TestGuest) {
    let _ = guest.work(UNTIL_OPTIMIZED);
}

fn ours_comes_first(guest: &TestGuest, ours: Ours, function: Function) {
    let offset = offset_of_ours(guest, function);
    let mut our = OurProbe::alone(guest, ours, function);
    our.assert_more(call(guest, function), "alone");
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    both_count(&mut our, &mut their, "the guest's came second");
    wait(guest);
    both_count(&mut our, &mut their, "and stayed");
    their.go();
    our.assert_more(call(guest, function), "the guest's went first");
    our.settle();
    our.assert_more(call(guest, function), "and ours settled");
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    our.go();
    their.assert_more(call(guest, function), "ours went first");
    wait(guest);
    their.assert_more(call(guest, function), "and the guest's settled");
    their.go();
}

/// With `settled`, the guest had the time to optimize its own before ours comes.
fn theirs_comes_first(guest: &TestGuest, ours: Ours, function: Function, settled: bool) {
    let offset = offset_of_ours(guest, function);
    let mut their = Theirs::come(guest, Own::Kprobe(offset), function);
    if settled {
        wait(guest);
    }
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came second");
    wait(guest);
    both_count(&mut our, &mut their, "and stayed");
    our.go();
    their.assert_more(call(guest, function), "ours went first");
    wait(guest);
    println!("alone, the guest's own has {:02x?}", &text(guest, function)[..16]);
    let mut our = OurProbe::come(guest, ours, function);
    both_count(&mut our, &mut their, "ours came again");
    their.go();
    our.assert_more(call(guest, function), "the guest's went first");
    our.settle();
    our.assert_more(call(guest, function), "and ours settled");
    our.go();
}

/// The guest's own is within the bytes of our jmp, then ours comes back before it.
fn beside_ours(guest: &TestGuest, function: Function) {
    let offset = offset_of_ours(guest, function);
    let next = offset + instruction_len(guest, function, offset);
    let mut our = OurProbe::come(guest, Ours::Detour, function);
    guest.optimize("ours");
    let mut their = Theirs::come(guest, Own::Kprobe(next), function);
    both_count(&mut our, &mut their, "the guest's is after ours");
    wait(guest);
    both_count(&mut our, &mut their, "and stays");
    our.go();
    their.assert_more(call(guest, function), "ours went first");
    let mut our = OurProbe::come(guest, Ours::Detour, function);
    both_count(&mut our, &mut their, "ours came again");
    their.go();
    our.settle();
    our.assert_more(call(guest, function), "the guest's went first");
    our.go();
}

fn instruction_len(guest: &TestGuest, function: Function, offset: u64) -> u64 {
    let start = guest.engine.address_of(function.name).unwrap();
    let (lines, at) = (guest.engine.disassemble(start).unwrap(), start.wrapping_add(offset));
    let line = lines.iter().position(|line| line.at == at).expect("an instruction is there");
    lines[line + 1].at.0 - at.0
}

/// The function's bytes, as they are in the guest.
fn text(guest: &TestGuest, function: Function) -> Vec<u8> {
    guest.bytes(guest.engine.address_of(function.name).unwrap(), 64)
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
