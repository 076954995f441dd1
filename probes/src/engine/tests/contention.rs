//! Hits while another thread holds the registry, perhaps waiting for this very vCPU.

use crate::Selection;
use std::thread::JoinHandle;

use super::*;

/// Registers a probe at `far_off` on a thread that then waits for the vCPUs, with the registry
/// held.
fn hold_registry(fake: &Fake) -> JoinHandle<()> {
    fake.guest.gate.close();
    let engine = Arc::clone(&fake.engine);
    let thread = std::thread::spawn(move || {
        engine.register(parse_line("p:holder far_off").unwrap()).unwrap();
    });
    fake.guest.gate.wait_for_visitor();
    thread
}

fn let_go(fake: &Fake, thread: JoinHandle<()>) {
    fake.guest.gate.open();
    thread.join().unwrap();
}

#[test]
fn a_hit_needs_no_lock_and_one_that_does_comes_back_uncounted() {
    let fake = Fake::booted();
    fake.register("p:work work");
    fake.register("p:before caller");
    let mut site = parse_line("r:site work").unwrap();
    site.return_mode = crate::ReturnMode::Site;
    fake.engine.set_enabled(Selection::kprobe("kprobes", "before"), false).unwrap();
    fake.engine.register(site).unwrap();
    let thread = hold_registry(&fake);
    // Where the call returns to is not watched yet, and to watch it takes the registry.
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    for _ in 0..3 {
        let (action, regs) = fake.breakpoint(WORK, STACK);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, WORK.0), "hit it again");
    }
    assert_eq!(fake.breakpoint(FAR_OFF, STACK).0, BreakpointAction::Resume, "armed already");
    let_go(&fake, thread);
    assert_eq!((fake.hits("work"), fake.hits("site"), fake.hits("holder")), (0, 0, 1));
    fake.call_work(STACK);
    assert_eq!((fake.hits("work"), fake.hits("site")), (1, 1));
    assert_eq!(fake.status("site").nmissed, 0);
}

#[test]
fn a_hit_of_a_plain_probe_goes_on_while_the_registry_is_held() {
    let fake = Fake::booted();
    fake.register("p:work work");
    fake.register("r:returns work");
    let thread = hold_registry(&fake);
    for _ in 0..10 {
        fake.call_work(STACK);
    }
    assert_eq!(fake.run(TASK_DEAD), 1, "the engine's mark there needs no lock");
    let_go(&fake, thread);
    assert_eq!((fake.hits("work"), fake.hits("returns")), (10, 10));
}

#[test]
fn the_kernels_beginning_is_to_be_told_again_while_the_registry_is_held() {
    let fake = Fake::new();
    fake.load_kernel();
    let thread = hold_registry(&fake);
    assert!(!fake.begin());
    let_go(&fake, thread);
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
    assert!(fake.begin());
    assert_eq!(fake.byte(FAR_OFF), INT3);
}

#[test]
fn marks_wait_for_the_registry_too() {
    let fake = Fake::begun();
    fake.register("p:patched patched+4");
    fake.register("p:once once");
    let thread = hold_registry(&fake);
    for mark in [REST_INIT, FREE_INITMEM] {
        let (action, regs) = fake.breakpoint(mark, STACK);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, mark.0));
    }
    let_go(&fake, thread);
    assert_eq!(fake.flags("patched"), [StatusFlag::Pending]);
    assert_eq!(fake.flags("once"), []);
    fake.finish_text();
    fake.run(FREE_INITMEM);
    assert_eq!(fake.flags("patched"), []);
    assert_eq!(fake.flags("once"), [StatusFlag::Gone]);
}
