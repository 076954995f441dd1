//! Text that goes, comes back, or is rewritten.

use super::*;
use crate::Selection;

#[test]
fn rewritten_text_is_left_alone_and_taken_back_when_it_is_as_it_was() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    assert_eq!(fake.run(FAR_OFF), 1);
    for other in [[0x90, 0x48], [0x0f, 0x0b]] {
        fake.write(FAR_OFF, &other);
        fake.engine.patrol();
        assert_eq!(fake.flags("far"), [StatusFlag::Clobbered], "{other:?}");
        assert_eq!([fake.byte(FAR_OFF), fake.byte(FAR_OFF.wrapping_add(1))], other);
        let passed = fake.breakpoint(FAR_OFF, STACK).0;
        assert_eq!(passed, BreakpointAction::PassToGuest, "an int3 there is the guest's own");
        fake.write(FAR_OFF, &BODY);
        let hits = fake.hits("far");
        fake.engine.patrol();
        assert_eq!((fake.flags("far"), fake.byte(FAR_OFF)), (vec![], INT3));
        assert_eq!((fake.run(FAR_OFF), fake.hits("far")), (1, hits + 1));
    }
}

/// The whole instruction counts: mov rbp, rsp. The int3 in front of what changed is the engine's
/// still.
#[test]
fn a_changed_tail_is_a_rewritten_instruction() {
    let fake = Fake::booted();
    fake.register("p:far far_off+1");
    let at = FAR_OFF.wrapping_add(1);
    fake.write(at, &[INT3, 0x8b]);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Clobbered]);
    assert_eq!(fake.breakpoint(at, STACK).0, BreakpointAction::Resume);
    fake.write(at, &BODY[1..]);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.byte(at)), (vec![], INT3));
    fake.write(at, &[INT3, 0x8b]);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Clobbered]);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.byte(at), BODY[1], "nobody would answer it");
}

#[test]
fn an_original_that_the_guest_put_over_the_breakpoint_is_armed_again() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    fake.write(FAR_OFF, &BODY);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.byte(FAR_OFF)), (vec![], INT3));
    assert_eq!(fake.run(FAR_OFF), 1);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
}

#[test]
fn a_probe_on_rewritten_text_can_be_disabled_and_removed() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    fake.write(FAR_OFF, &[0x90]);
    fake.engine.patrol();
    fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), false).unwrap();
    let error = fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), true).unwrap_err();
    assert_eq!(error.code(), "ETXTBSY");
    assert!(fake.flags("far").contains(&StatusFlag::Clobbered));
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.byte(FAR_OFF), 0x90);
    let again = fake.engine.register(parse_line("p:again far_off").unwrap());
    again.expect("what is there now is an instruction as well");
    assert_eq!(fake.byte(FAR_OFF), INT3);
}

#[test]
fn unmapped_text_is_gone_and_armed_again_when_it_is_back() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    fake.register("p:work work");
    assert_eq!(fake.run(FAR_OFF), 1);
    fake.unmap(FAR_OFF);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.flags("work")), (vec![StatusFlag::Gone], vec![]));
    assert_eq!(fake.hits("far"), 1);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Gone]);
    // What the guest puts there is its own, also the page of before with our int3 in it.
    fake.write(FAR_OFF, &BODY);
    fake.map(FAR_OFF);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.byte(FAR_OFF)), (vec![], INT3));
    assert_eq!((fake.run(FAR_OFF), fake.hits("far")), (1, 2));
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
}

#[test]
fn text_that_moved_to_another_page_is_armed_there() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    let elsewhere = IMAGE.wrapping_add(0xc000);
    fake.write(elsewhere, &BODY);
    fake.store_u64(page_entry(FAR_OFF), gpa(elsewhere).0 | PTE_PRESENT);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), fake.byte(elsewhere)), (vec![], INT3));
}

#[test]
fn text_that_may_not_be_executed_any_more_is_gone() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    let entry = gpa(FAR_OFF).0 | PTE_PRESENT | exoprobe_guest::paging::PTE_NO_EXECUTE;
    fake.store_u64(page_entry(FAR_OFF), entry);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Gone]);
}

#[test]
fn nothing_is_looked_at_or_written_in_a_guest_that_has_stopped() {
    let fake = Fake::booted();
    fake.register("p:far far_off");
    fake.guest.stopped.store(true, Ordering::SeqCst);
    fake.write(FAR_OFF, &BODY);
    fake.engine.patrol();
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
    let late = fake.engine.register(parse_line("p:late work").unwrap());
    assert_eq!(late.unwrap_err().code(), "ESHUTDOWN");
}
