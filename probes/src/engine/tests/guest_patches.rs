//! A guest whose kernel reads and writes its own text at the places of probes.

use super::*;
use crate::Selection;

pub(super) const SYMBOLS: &str = "\
ffffffff81001a00 T recover_probed_instruction
ffffffff81001b00 t __text_poke
ffffffff81001c00 t text_poke_memcpy
ffffffff81001d00 t can_optimize
ffffffff8111c000 b kprobe_table
";
const RECOVER: Gva = Gva(0xffff_ffff_8100_1a00);
const POKE: Gva = Gva(0xffff_ffff_8100_1b00);
const COPY: Gva = Gva(0xffff_ffff_8100_1c00);
const CAN_OPTIMIZE: Gva = Gva(0xffff_ffff_8100_1d00);
pub(super) const TABLE: Gva = Gva(0xffff_ffff_8111_c000);
pub(super) const KPROBE: Gva = Gva(0xffff_ffff_8111_d000);
const SOURCE: Gva = Gva(0xffff_ffff_8111_e000);
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

impl Fake {
    /// Registers a probe of `far_off` and removes it again. Its int3 was at this offset.
    fn assert_placed(&self, line: &str, offset: u64) {
        let function = || self.text()[0x2000..0x2020].to_vec();
        let (text, at) = (function(), FAR_OFF.wrapping_add(offset));
        self.register(line);
        assert_eq!((self.byte(at), self.run(at)), (INT3, 1), "{line}: {text:x?}");
        self.engine.unregister(Selection::all()).unwrap();
        assert_eq!(function(), text);
    }
}

/// Bytes at an address of the kernel or of hidden memory.
pub(super) fn bytes(fake: &Fake, at: Gva, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let window = fake.guest.hidden.code_window().unwrap();
    match at.0.checked_sub(window.gva.0).filter(|inside| *inside < window.len) {
        Some(inside) => fake.guest.hidden.read(window.offset + inside, &mut bytes),
        None => fake.guest.ram.read(gpa(at), &mut bytes).unwrap(),
    }
    bytes
}

/// The kernel's __text_poke(): the breakpoint at its entry, then what it does. Returns false, and
/// has written nothing, while the engine is not ready.
fn try_poke(fake: &Fake, at: Gva, new: &[u8]) -> bool {
    let Some(written) = begin_poke(fake, at, new) else { return false };
    fake.write(at, &written);
    end_poke(fake);
    assert_eq!(bytes(fake, SOURCE, new.len()), new, "the guest's own copy stays");
    true
}

/// The beginning of it: the bytes that it is about to write.
fn begin_poke(fake: &Fake, at: Gva, new: &[u8]) -> Option<Vec<u8>> {
    fake.write(SOURCE, new);
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    let regs = kvm_regs {
        rip: POKE.0,
        rsp: STACK.0,
        rdi: COPY.0,
        rsi: at.0,
        rdx: SOURCE.0,
        rcx: new.len() as u64,
        rflags: 2,
        ..kvm_regs::default()
    };
    let (action, regs) = fake.breakpoint_of(regs);
    assert_eq!(action, BreakpointAction::Resume);
    (regs.rip != POKE.0).then(|| bytes(fake, Gva(regs.rdx), new.len()))
}

/// It returns.
fn end_poke(fake: &Fake) {
    let mut word = [0; 8];
    fake.guest.ram.read(gpa(STACK), &mut word).unwrap();
    fake.return_to(Gva(u64::from_le_bytes(word)), STACK);
}

pub(super) fn poke(fake: &Fake, at: Gva, new: &[u8]) {
    assert!(try_poke(fake, at, new));
}

/// The kernel's text_poke_bp(). Calls `between` after each step.
pub(super) fn poke_with_breakpoint(fake: &Fake, at: Gva, new: &[u8], mut between: impl FnMut()) {
    poke(fake, at, &[INT3]);
    between();
    poke(fake, at.wrapping_add(1), &new[1..]);
    between();
    poke(fake, at, &new[..1]);
    between();
}

/// The bytes that the kernel reads for the instruction at `at`, called by the function at `caller`.
fn recovered(fake: &Fake, at: Gva, caller: Gva) -> Vec<u8> {
    fake.store_u64(gpa(STACK), caller.0 + 4);
    let regs =
        kvm_regs { rip: RECOVER.0, rsp: STACK.0, rsi: at.0, rflags: 2, ..kvm_regs::default() };
    let (action, regs) = fake.breakpoint_of(regs);
    assert_eq!(action, BreakpointAction::Resume);
    bytes(fake, Gva(regs.rsi), 11)
}

#[test]
fn the_guests_own_breakpoint_is_hit_as_long_as_it_is_there() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:far far_off");
    for calls in [1, 3] {
        poke(&fake, FAR_OFF, &[INT3]);
        let (action, regs) = fake.breakpoint(FAR_OFF, STACK);
        assert_eq!((action, regs.rip), (BreakpointAction::PassToGuest, FAR_OFF.0));
        poke(&fake, FAR_OFF, &BODY[..1]);
        assert_eq!(fake.byte(FAR_OFF), INT3, "ours stays");
        assert_eq!(fake.run(FAR_OFF), 1);
        assert_eq!((fake.hits("far"), fake.flags("far")), (calls + 1, vec![]));
    }
    poke(&fake, FAR_OFF, &[INT3]);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.byte(FAR_OFF), INT3, "the guest's stays");
    assert_eq!(fake.breakpoint(FAR_OFF, STACK).0, BreakpointAction::PassToGuest);
    assert!(fake.engine.traceless().is_some());
    fake.write(FAR_OFF, &BODY[..1]);
    assert_eq!(fake.text()[0x2000..0x200b], BODY);
}

#[test]
fn each_step_of_a_change_with_a_breakpoint_keeps_ours_and_loses_no_hit() {
    const JMP: [u8; 5] = [0xe9, 0xfb, 0x0f, 0x00, 0x00];
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:nop far_off+4");
    let nop = FAR_OFF.wrapping_add(4);
    let hits = std::cell::Cell::new(0);
    for (new, passed) in [(&JMP[..], nop.0 + 5 + 0xffb), (&BODY[4..9], nop.0 + 5)] {
        let count = std::cell::Cell::new(0);
        poke_with_breakpoint(&fake, nop, new, || {
            count.set(count.get() + 1);
            hits.set(hits.get() + 1);
            assert_eq!(fake.byte(nop), INT3);
            let (action, regs) = fake.breakpoint(nop, STACK);
            assert_eq!(fake.hits("nop"), hits.get());
            if count.get() < 3 {
                assert_eq!(action, BreakpointAction::PassToGuest);
            } else if new == JMP {
                assert_eq!((action, regs.rip), (BreakpointAction::Resume, passed));
            } else {
                assert_eq!(action, BreakpointAction::Resume);
            }
        });
        fake.engine.patrol();
        assert_eq!((fake.flags("nop"), fake.byte(nop)), (vec![], INT3));
    }
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.text()[0x2000..0x200b], BODY);
}

/// It is part of the guest's jmp then, and never runs.
#[test]
fn a_place_within_a_jmp_of_the_guests_own_is_left_to_it() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:inside far_off+1");
    let jmp = [0xe9, 0x11, 0x22, 0x33, 0x44];
    poke_with_breakpoint(&fake, FAR_OFF, &jmp, || ());
    assert_eq!(bytes(&fake, FAR_OFF, 5), jmp, "whole");
    assert_eq!(fake.flags("inside"), [StatusFlag::Clobbered]);
    poke_with_breakpoint(&fake, FAR_OFF, &BODY[..5], || ());
    fake.engine.patrol();
    assert_eq!((fake.flags("inside"), fake.byte(FAR_OFF.wrapping_add(1))), (vec![], INT3));
}

#[test]
fn the_guest_reads_its_own_instructions_and_optimizes_none_beside_ours() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:far far_off");
    fake.register("p:next far_off+1");
    for offset in [0, 1] {
        let at = FAR_OFF.wrapping_add(offset as u64);
        assert_eq!(recovered(&fake, at, WORK)[..3], BODY[offset..][..3]);
        assert_eq!(recovered(&fake, at, CAN_OPTIMIZE)[0], INT3);
    }
    let elsewhere = FAR_OFF.wrapping_add(4);
    assert_eq!(recovered(&fake, elsewhere, CAN_OPTIMIZE)[..5], BODY[4..9]);
    poke(&fake, FAR_OFF, &[INT3]);
    assert_eq!(recovered(&fake, FAR_OFF, WORK)[0], INT3, "its own, which it knows");
    let many: Vec<u8> =
        (0..40).map(|_| recovered(&fake, FAR_OFF.wrapping_add(1), WORK)[0]).collect();
    assert_eq!(many, [BODY[1]; 40]);
}

#[test]
fn a_jmp_is_taken_out_before_the_guest_writes_over_it() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:far far_off");
    fake.run(FREE_INITMEM);
    assert_eq!(fake.engine.optimize().optimized, 1);
    let second = FAR_OFF.wrapping_add(1);
    assert_eq!(recovered(&fake, second, WORK)[..3], BODY[1..4], "without the jmp");
    assert!(!try_poke(&fake, second, &[INT3]), "it waits for the jmp");
    fake.engine.patrol();
    poke(&fake, second, &[INT3]);
    assert_eq!(bytes(&fake, FAR_OFF, 5), [INT3, INT3, BODY[2], BODY[3], BODY[4]]);
    assert_eq!(fake.engine.optimize().optimized, 0);
    let passed = fake.breakpoint(second, STACK).0;
    assert_eq!((fake.run(FAR_OFF), passed), (1, BreakpointAction::PassToGuest));
    poke(&fake, second, &BODY[1..2]);
    let optimized = (0..20).any(|_| fake.engine.optimize().optimized == 1);
    assert!(optimized, "it comes back");
}

/// The guest would write over its first byte.
#[test]
fn no_jmp_comes_while_the_guest_writes() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.run(FREE_INITMEM);
    fake.register("p:far far_off");
    poke(&fake, FAR_OFF, &[INT3]);
    let written = begin_poke(&fake, FAR_OFF, &BODY[..1]).unwrap();
    assert_eq!((0..20).map(|_| fake.engine.optimize().optimized).sum::<usize>(), 0);
    fake.write(FAR_OFF, &written);
    end_poke(&fake);
    assert!((0..20).any(|_| fake.engine.optimize().optimized == 1));
    assert_eq!(fake.flags("far"), [StatusFlag::Optimized]);
}

#[test]
fn a_probe_comes_to_a_breakpoint_of_the_guests_own() {
    let fake = Fake::booted_with(SYMBOLS);
    // struct kprobe in the 8th list, with a list that leads back to itself.
    fake.store_u64(gpa(TABLE.wrapping_add(7 * 8)), KPROBE.0);
    fake.store_u64(gpa(KPROBE), KPROBE.0);
    fake.store_u64(gpa(KPROBE.wrapping_add(40)), FAR_OFF.0);
    fake.write(KPROBE.wrapping_add(80), &BODY[..1]);
    fake.write(FAR_OFF, &[INT3]);
    for line in ["p:far far_off", "p:next far_off+1"] {
        fake.register(line);
    }
    assert_eq!(fake.breakpoint(FAR_OFF, STACK).0, BreakpointAction::PassToGuest);
    assert_eq!(fake.run(FAR_OFF.wrapping_add(1)), 1);
    fake.engine.patrol();
    assert_eq!((fake.hits("far"), fake.flags("far")), (1, vec![]));
    poke(&fake, FAR_OFF, &BODY[..1]);
    assert_eq!((fake.run(FAR_OFF), fake.hits("far")), (1, 2));
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.text()[0x2000..0x200b], BODY);
}

/// Without the mark, the patrol sees that the guest's own has gone.
#[test]
fn a_kernel_without_these_functions_is_looked_after_by_the_patrol() {
    let fake = Fake::booted_with("");
    fake.register("p:far far_off");
    fake.write(FAR_OFF, &BODY);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.byte(FAR_OFF)), (vec![], INT3));
}

#[test]
fn arguments_that_a_guest_makes_up_do_no_harm() {
    let fake = Fake::booted_with(SYMBOLS);
    fake.register("p:far far_off");
    for (at, source, len) in [
        (FAR_OFF.0, 0, 1),
        (FAR_OFF.0, u64::MAX, 64),
        (u64::MAX, SOURCE.0, 64),
        (FAR_OFF.0, SOURCE.0, 0),
        (FAR_OFF.0, SOURCE.0, u64::MAX),
        (u64::MAX - 3, u64::MAX, 5),
    ] {
        let regs = kvm_regs {
            rip: POKE.0,
            rsp: STACK.0,
            rdi: COPY.0,
            rsi: at,
            rdx: source,
            rcx: len,
            ..kvm_regs::default()
        };
        let (action, regs) = fake.breakpoint_of(regs);
        assert_eq!((action, regs.rdx), (BreakpointAction::Resume, source));
    }
    for rsi in [0, u64::MAX, FAR_OFF.0] {
        let regs = kvm_regs { rip: RECOVER.0, rsp: u64::MAX, rsi, ..kvm_regs::default() };
        assert_eq!(fake.breakpoint_of(regs).0, BreakpointAction::Resume);
    }
    assert_eq!(fake.run(FAR_OFF), 1);
}

#[test]
fn a_probe_is_placed_after_the_tracers_call_whatever_it_calls() {
    let fake =
        Fake::booted_with("ffffffff81001e00 T __fentry__\nffffffff81001f00 T ftrace_caller\n");
    let call_of = |target: u64| {
        let [a, b, c, d, ..] = target.wrapping_sub(FAR_OFF.0 + 5).to_le_bytes();
        [0xe8, a, b, c, d]
    };
    let trampoline = 0xffff_ffff_c029_8000;
    for (first, offset) in [
        (FTRACE_NOP, 5),
        (call_of(0xffff_ffff_8100_1e00), 5),
        (call_of(0xffff_ffff_8100_1f00), 5),
        (call_of(trampoline), 5),
        (call_of(WORK.0), 0),
    ] {
        fake.write(FAR_OFF, &[&first[..], &BODY].concat());
        fake.assert_placed("p:far far_off", offset);
    }
}

/// A kernel with CONFIG_X86_KERNEL_IBT looks at it to know where the tracer's call is, and, for a
/// BPF program at the function's return, what follows.
#[test]
fn an_endbr64_before_the_tracers_call_stays() {
    let with_tracer = Fake::booted_with("ffffffff81001e00 T __fentry__\n");
    for (fake, body, offset) in [
        (&with_tracer, &FTRACE_NOP[..], 9),
        (&with_tracer, &BODY[..], 0),
        (&Fake::booted(), &FTRACE_NOP[..], 0),
    ] {
        fake.write(FAR_OFF, &[&ENDBR64, body, &BODY].concat());
        fake.assert_placed("p:far far_off", offset);
        fake.assert_placed("r:far far_off", offset);
        fake.assert_placed("p:far far_off+4", offset.max(4));
    }
}
