//! Post-handlers beside a kprobe of the guest's own, whose kernel runs the instruction.

use std::sync::Mutex;

use super::guest_patches::{KPROBE, SYMBOLS, TABLE, bytes, poke, poke_with_breakpoint};
use super::*;
use crate::{Kprobe, Selection};

const HANDLERS: &str = "\
ffffffff81001e00 T kprobe_int3_handler
ffffffff81001f00 T poke_int3_handler
";
const KPROBES: Gva = Gva(0xffff_ffff_8100_1e00);
const POKES: Gva = Gva(0xffff_ffff_8100_1f00);
/// struct pt_regs of the hit.
const REGS: Gva = Gva(0xffff_ffff_8111_f000);
/// The guest's copy of the instruction.
const COPY: Gva = Gva(0xffff_ffff_8111_f800);
/// The handler's stack.
const HANDLER_STACK: Gva = Gva(STACK.0 - 0x200);
const IP: u64 = 16 * 8;
const RAX: u64 = 10 * 8;
const JMP: [u8; 5] = [0xe9, 0xfb, 0x0f, 0x00, 0x00];

/// A guest with a probe at `far_off`, and what its post-handler saw: RIP and RAX.
struct Stepped {
    fake: Fake,
    seen: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Stepped {
    fn new() -> Self {
        let fake = Fake::booted_with(&(SYMBOLS.to_owned() + HANDLERS));
        fake.store_u64(gpa(TABLE), KPROBE.0);
        fake.store_u64(gpa(KPROBE.wrapping_add(40)), FAR_OFF.0);
        fake.write(KPROBE.wrapping_add(80), &BODY[..1]);
        Self { fake, seen: Arc::default() }
    }

    /// As [`Self::new`], with the probe.
    fn probed() -> Self {
        let new = Self::new();
        new.register();
        new
    }

    fn register(&self) {
        let seen = Arc::clone(&self.seen);
        let post_handler = move |hit: &mut crate::Hit<'_>| {
            seen.lock().unwrap().push((hit.regs.rip, hit.regs.rax));
            hit.regs.rax = 7;
        };
        let definition = parse_line("p:far far_off").unwrap();
        let post_handler = Some(Box::new(post_handler) as _);
        let probe = Kprobe { definition, post_handler, ..Kprobe::default() };
        self.fake.engine.register(probe).unwrap();
    }

    fn word(&self, at: Gva) -> u64 {
        let mut word = [0; 8];
        self.fake.guest.ram.read(gpa(at), &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    /// A hit that is passed on to the guest, up to its handler's first instruction. Gives the
    /// handler's return address.
    fn hit(&self) -> Gva {
        let (action, regs) = self.fake.breakpoint(FAR_OFF, STACK);
        assert_eq!((action, regs.rip), (BreakpointAction::PassToGuest, FAR_OFF.0));
        self.enter(FAR_OFF)
    }

    fn enter(&self, at: Gva) -> Gva {
        self.fake.store_u64(gpa(REGS.wrapping_add(IP)), at.0 + 1);
        self.fake.store_u64(gpa(HANDLER_STACK), RETURN_SITE.0);
        let (action, regs) = self.handler(KPROBES, HANDLER_STACK, 0);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, KPROBES.0 + 1));
        Gva(self.word(HANDLER_STACK))
    }

    fn handler(&self, rip: Gva, rsp: Gva, rax: u64) -> (BreakpointAction, kvm_regs) {
        let (rip, rsp, rdi) = (rip.0, rsp.0, REGS.0);
        self.fake.breakpoint_of(kvm_regs { rip, rsp, rdi, rax, ..kvm_regs::default() })
    }

    /// The handler's return, after which the guest continues at `ip`, or at the address that this
    /// gives.
    fn handled(&self, at: Gva, ip: Gva, rax: u64) -> Gva {
        self.fake.store_u64(gpa(REGS.wrapping_add(IP)), ip.0);
        self.fake.store_u64(gpa(REGS.wrapping_add(RAX)), 5);
        let popped = HANDLER_STACK.wrapping_add(8);
        let tries = (0..3).map(|_| self.handler(at, popped, rax));
        let (action, regs) = tries.into_iter().find(|(_, regs)| regs.rip != at.0).expect("it ends");
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, RETURN_SITE.0));
        Gva(self.word(REGS.wrapping_add(IP)))
    }

    fn seen(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// The copy at [`COPY`] runs in a slot, and the guest continues after it.
    fn assert_steps(&self) {
        let slot = self.handled(self.hit(), COPY, 1);
        assert_ne!(slot, COPY);
        assert_eq!(bytes(&self.fake, slot, 2), [BODY[0], INT3]);
        assert_eq!(self.seen(), [], "it has not run yet");
        let (action, regs) = self.fake.breakpoint(slot.wrapping_add(1), STACK);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, COPY.0 + 1));
        assert_eq!((self.seen(), regs.rax), (vec![(FAR_OFF.0 + 1, 0)], 7));
    }
}

#[test]
fn it_runs_once_the_guest_has_emulated_the_instruction() {
    let guest = Stepped::probed();
    poke(&guest.fake, FAR_OFF, &[INT3]);
    let ip = guest.handled(guest.hit(), FAR_OFF.wrapping_add(1), 1);
    assert_eq!(ip, FAR_OFF.wrapping_add(1));
    assert_eq!(guest.seen(), [(FAR_OFF.0 + 1, 5)]);
    assert_eq!(guest.word(REGS.wrapping_add(RAX)), 7, "the guest has its register");
    // The guest's own has gone.
    poke(&guest.fake, FAR_OFF, &BODY[..1]);
    let (hits, slot) = guest.fake.run_on(FAR_OFF, STACK);
    guest.fake.breakpoint(slot.wrapping_add(1), STACK);
    assert_eq!((hits, guest.seen()), (1, vec![(FAR_OFF.0 + 1, 0)]));
    assert_eq!((guest.fake.hits("far"), guest.fake.status("far").nmissed), (2, 0));
}

#[test]
fn it_runs_after_the_guests_copy_of_the_instruction() {
    let guest = Stepped::probed();
    guest.fake.write(COPY, &[BODY[0], INT3]);
    poke(&guest.fake, FAR_OFF, &[INT3]);
    guest.assert_steps();
    guest.assert_steps();
    // The guest's int3 after its copy.
    let at = guest.enter(COPY.wrapping_add(1));
    assert_eq!(at, RETURN_SITE, "it is the guest's alone");
    guest.fake.engine.unregister(Selection::all()).unwrap();
    assert!(guest.fake.engine.traceless().is_some(), "no return is caught any more");
}

#[test]
fn it_does_not_run_where_a_handler_of_the_guests_goes_elsewhere_or_there_is_none() {
    let guest = Stepped::probed();
    poke(&guest.fake, FAR_OFF, &[INT3]);
    assert_eq!(guest.handled(guest.hit(), WORK, 1), WORK);
    let not_handled = FAR_OFF.wrapping_add(1);
    assert_eq!(guest.handled(guest.hit(), not_handled, 0), not_handled);
    let at = guest.hit();
    guest.fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(guest.handled(at, COPY, 1), COPY, "the probe has gone");
    assert_eq!(guest.seen(), []);
}

#[test]
fn a_copy_that_cannot_be_stepped_is_a_miss() {
    let guest = Stepped::probed();
    guest.fake.write(COPY, &[0xff, 0xe0]);
    poke(&guest.fake, FAR_OFF, &[INT3]);
    assert_eq!(guest.handled(guest.hit(), COPY, 1), COPY, "jmp rax");
    assert_eq!((guest.seen(), guest.fake.status("far").nmissed), (vec![], 1));
}

/// Also where ours comes while the guest's own is optimized already.
#[test]
fn it_runs_after_the_copy_in_the_code_that_the_guests_jmp_leads_to() {
    for ours_first in [true, false] {
        let guest = if ours_first { Stepped::probed() } else { Stepped::new() };
        guest.fake.write(COPY, &[&BODY[..4], &[0xe9]].concat());
        if ours_first {
            poke(&guest.fake, FAR_OFF, &[INT3]);
            poke_with_breakpoint(&guest.fake, FAR_OFF, &JMP, || ());
        } else {
            guest.fake.write(FAR_OFF, &JMP);
            guest.fake.register("p:other far_off");
            let (action, regs) = guest.fake.breakpoint(FAR_OFF, STACK);
            assert_eq!((action, regs.rip), (BreakpointAction::Resume, FAR_OFF.0 + 0x1000));
            guest.register();
        }
        guest.assert_steps();
        assert_eq!(guest.fake.status("far").hits, 1);
        for step in [&[INT3][..], &BODY[..1]] {
            poke(&guest.fake, FAR_OFF, step);
            guest.fake.write(FAR_OFF.wrapping_add(1), &BODY[1..5]);
        }
        assert_eq!(guest.fake.run(FAR_OFF), 1, "the guest's own has gone");
    }
}

/// It would go by the jmp that is being written.
#[test]
fn a_hit_while_the_guest_writes_its_text_is_handled_by_its_kprobes() {
    let guest = Stepped::probed();
    poke(&guest.fake, FAR_OFF, &[INT3]);
    let entered = |at: Gva| {
        guest.fake.store_u64(gpa(REGS.wrapping_add(IP)), at.0 + 1);
        guest.fake.store_u64(gpa(HANDLER_STACK), RETURN_SITE.0);
        let (action, regs) = guest.handler(POKES, HANDLER_STACK, 3);
        assert_eq!(action, BreakpointAction::Resume);
        (Gva(regs.rip), regs.rsp - HANDLER_STACK.0, regs.rax)
    };
    assert_eq!(entered(FAR_OFF), (RETURN_SITE, 8, 0));
    assert_eq!(entered(WORK), (POKES.wrapping_add(1), 0, 3));
}

/// Only probes with post-handlers need these breakpoints.
#[test]
fn other_probes_leave_the_guests_handlers_alone() {
    let fake = Fake::booted_with(&(SYMBOLS.to_owned() + HANDLERS));
    fake.register("p:far far_off");
    assert_eq!((fake.byte(KPROBES), fake.byte(POKES)), (0x90, 0x90));
    let guest = Stepped::probed();
    assert_eq!((guest.fake.byte(KPROBES), guest.fake.byte(POKES)), (INT3, INT3));
    guest.fake.engine.unregister(Selection::all()).unwrap();
    guest.fake.engine.patrol();
    assert_eq!((guest.fake.byte(KPROBES), guest.fake.byte(POKES)), (0x90, 0x90));
}

#[test]
fn registers_that_a_guest_makes_up_do_no_harm() {
    let guest = Stepped::probed();
    poke(&guest.fake, FAR_OFF, &[INT3]);
    for regs in [0, u64::MAX, 8, REGS.0 - 1, 0x7fff_ffff_f000] {
        for rsp in [HANDLER_STACK.0, 0, u64::MAX, STACK.0 + 1] {
            let at = kvm_regs { rip: KPROBES.0, rsp, rdi: regs, ..kvm_regs::default() };
            assert_eq!(guest.fake.breakpoint_of(at).0, BreakpointAction::Resume);
        }
    }
    // Handlers that never return.
    for depth in 0..20 {
        let stack = HANDLER_STACK.0 - depth * 64;
        guest.fake.store_u64(gpa(REGS.wrapping_add(IP)), FAR_OFF.0 + 1);
        let at = kvm_regs { rip: KPROBES.0, rsp: stack, rdi: REGS.0, ..kvm_regs::default() };
        assert_eq!(guest.fake.breakpoint_of(at).0, BreakpointAction::Resume);
    }
    assert_eq!(guest.seen(), []);
}
