//! Probes of ours, counted beside the guest's own, and the functions that both are at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::Gva;
use exoprobe_probes::{
    Action, Hit, Kprobe, NewProbe, PostHandler, ProbeDefinition, ReturnMode, Selection, StatusFlag,
};
use exoprobe_tests::{TestGuest, definition};

/// As kernels with the function tracer begin their functions: a landing pad, then a nop for its
/// call.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Long enough for the kernel to optimize a kprobe (OPTIMIZE_DELAY: 5 jiffies).
const UNTIL_OPTIMIZED: &str = "sleep 200";

/// Bytes of the longest instruction.
const INSTRUCTION_MAX: u64 = 15;
/// Of a function, at a time.
const CALLS: u64 = 20;

/// A function, and the work that calls it so many times.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) work: &'static str,
}

pub(super) const GETPID: Function = Function { name: "__x64_sys_getpid", work: "getpid" };
pub(super) const MMAP: Function = Function { name: "__x64_sys_mmap", work: "mmap" };
/// Calls of it sleep.
pub(super) const WAIT: Function = Function { name: "__x64_sys_wait4", work: "fork" };
pub(super) const MUNMAP: Function = Function { name: "__x64_sys_munmap", work: "mmap" };

impl Function {
    /// Calls it [`CALLS`] times.
    pub(super) fn call(self, guest: &TestGuest) -> u64 {
        assert_eq!(guest.work(&format!("{} {CALLS}", self.work)), CALLS);
        CALLS
    }

    /// Its bytes, as they are in the guest.
    pub(super) fn text(self, guest: &TestGuest) -> Vec<u8> {
        guest.bytes(guest.engine.address_of(self.name).unwrap(), 64)
    }

    /// Where a probe of it is: after the call of the function tracer.
    pub(super) fn offset_of_ours(self, guest: &TestGuest) -> u64 {
        let at = guest.engine.address_of(self.name).unwrap();
        let mut bytes = [0; 16];
        guest.engine.read_without_probes(at, &mut bytes).unwrap();
        let pad = if bytes.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
        match bytes[pad..].starts_with(&FTRACE_NOP) {
            true => (pad + FTRACE_NOP.len()) as u64,
            false => 0,
        }
    }

    /// The offset of the instruction after the one at `offset`.
    pub(super) fn next(self, guest: &TestGuest, offset: u64) -> u64 {
        let start = guest.engine.address_of(self.name).unwrap();
        let (lines, at) = (guest.engine.disassemble(start).unwrap(), start.wrapping_add(offset));
        let line = lines.iter().position(|line| line.at == at).expect("an instruction is there");
        lines[line + 1].at.0 - start.0
    }
}

/// How ours is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    Breakpoint,
    /// A breakpoint on the second instruction after the function tracer's call.
    Offset,
    Detour,
    /// A breakpoint with a post-handler.
    Post,
    /// A return probe.
    Return,
    /// A return probe in the mode `site`.
    Site,
}

/// Ours, counted beside the guest's calls.
pub(super) struct OurProbe<'a> {
    guest: &'a TestGuest,
    ours: Ours,
    /// The name of the probe.
    event: String,
    hits: u64,
    /// Calls of its post-handler, if it has one.
    steps: Option<Arc<AtomicU64>>,
}

impl<'a> OurProbe<'a> {
    pub(super) fn come(guest: &'a TestGuest, ours: Ours, function: Function) -> Self {
        guest.engine.allow_optimization(ours == Ours::Detour);
        let kind = if matches!(ours, Ours::Return | Ours::Site) { 'r' } else { 'p' };
        let offset = match ours {
            Ours::Offset => format!("+{}", function.next(guest, function.offset_of_ours(guest))),
            _ => String::new(),
        };
        let return_mode = match ours {
            Ours::Site => ReturnMode::Site,
            _ => ReturnMode::Trampoline,
        };
        let event = format!("{ours:?}_{}", function.name.replace(':', "_"));
        let line = format!("{kind}:{event} {}{offset}", function.name);
        let actions = vec![Action::Count];
        let definition = ProbeDefinition { actions, return_mode, ..definition(&line) };
        let steps = (ours == Ours::Post).then(Arc::default);
        let probe: NewProbe = match &steps {
            Some(steps) => {
                let start = guest.engine.address_of(function.name).unwrap();
                let at = start.wrapping_add(function.offset_of_ours(guest));
                let post_handler = Some(counts_steps(at, Arc::clone(steps)));
                Kprobe { definition, post_handler, ..Kprobe::default() }.into()
            }
            None => definition.into(),
        };
        guest.engine.register([probe]).unwrap_or_else(|e| panic!("{line}: {e}"));
        Self { guest, ours, event, hits: 0, steps }
    }

    pub(super) fn alone(guest: &'a TestGuest, ours: Ours, function: Function) -> Self {
        let probe = Self::come(guest, ours, function);
        probe.settle();
        probe
    }

    /// Gives it the time to be optimized. What the guest's own breakpoint left on a stack looks
    /// like a task in the function for a while, so it may not be.
    pub(super) fn settle(&self) {
        const TRIES: u32 = 5;
        for _ in 0..TRIES {
            if self.ours != Ours::Detour || self.is_optimized() {
                return;
            }
            wait(self.guest);
        }
        println!("not optimized: {:?}", self.guest.status(&self.event).unoptimized_reason);
    }

    pub(super) fn optimize(&self) {
        self.guest.optimize(&self.event);
    }

    pub(super) fn is_optimized(&self) -> bool {
        self.guest.status(&self.event).flags.contains(&StatusFlag::Optimized)
    }

    pub(super) fn assert_more(&mut self, calls: u64, when: &str) {
        let status = self.guest.status(&self.event);
        assert_eq!(status.hits - self.hits, calls, "{when}: ours, {:?}: {status:?}", self.ours);
        assert!(!status.flags.contains(&StatusFlag::Clobbered), "{when}: {status:?}");
        assert_eq!(status.nmissed, 0, "{when}");
        if let Some(steps) = &self.steps {
            assert_eq!(steps.swap(0, Ordering::SeqCst), calls, "{when}: post-handlers");
        }
        self.hits = status.hits;
    }

    pub(super) fn go(self) -> Ours {
        self.guest.engine.unregister(Selection::event("kprobes", &self.event)).unwrap();
        self.ours
    }
}

/// A post-handler that counts calls after the instruction at `at`.
fn counts_steps(at: Gva, steps: Arc<AtomicU64>) -> PostHandler {
    Box::new(move |hit: &mut Hit<'_>| {
        let passed = hit.regs.rip.wrapping_sub(at.0);
        if (1..=INSTRUCTION_MAX).contains(&passed) {
            steps.fetch_add(1, Ordering::SeqCst);
        }
    })
}

/// Gives the guest, and the engine, the time to optimize what is there.
pub(super) fn wait(guest: &TestGuest) {
    let _ = guest.work(UNTIL_OPTIMIZED);
}
