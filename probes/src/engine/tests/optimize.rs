//! When a jmp goes in, and when it comes out.

use super::*;
use crate::{Action, ProbeDefinition, Selection};

/// A booted guest that has freed its init text, with a probe at `far_off` that could be optimized.
fn ready() -> Fake {
    let fake = Fake::booted();
    fake.register("p:far far_off %di");
    fake.run(FREE_INITMEM);
    fake
}

fn is_optimized(fake: &Fake) -> bool {
    fake.flags("far") == [StatusFlag::Optimized]
}

fn bytes(fake: &Fake) -> [u8; 5] {
    std::array::from_fn(|offset| fake.byte(FAR_OFF.wrapping_add(offset as u64)))
}

/// Where the jmp at `far_off` leads.
fn jmp_target(fake: &Fake) -> Gva {
    let distance = i32::from_le_bytes(bytes(fake)[1..].try_into().unwrap());
    Gva(FAR_OFF.0 + 5).wrapping_add(i64::from(distance).cast_unsigned())
}

#[test]
fn a_jmp_into_hidden_memory_takes_the_int3s_place_until_something_changes() {
    let fake = ready();
    assert_eq!(bytes(&fake)[0], INT3);
    assert_eq!(fake.engine.optimize().optimized, 1);
    let jmp = bytes(&fake);
    let to = jmp_target(&fake);
    let window = fake.guest.hidden.detour_window().unwrap();
    assert!(jmp[0] == 0xe9 && (window.gva.0..window.gva.0 + window.len).contains(&to.0), "{to}");
    assert!(is_optimized(&fake));
    assert_eq!(fake.engine.optimize().optimized, 0, "once");
    fake.engine.patrol();
    assert!(is_optimized(&fake), "a patrol leaves it");
    fake.register("p:inside far_off+1");
    assert_eq!(bytes(&fake), [INT3, INT3, BODY[2], BODY[3], BODY[4]]);
    fake.engine.optimize();
    assert!(fake.status("far").unoptimized_reason.unwrap().starts_with("other-probe: "));
    fake.engine.unregister(Selection::kprobe("kprobes", "inside")).unwrap();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), false).unwrap();
    assert_eq!(bytes(&fake), BODY[..5]);
    fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), true).unwrap();
    assert_eq!(fake.run(FAR_OFF), 1, "by its int3");
    assert_eq!(fake.engine.optimize().total, 1);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(bytes(&fake), BODY[..5]);
    assert!(fake.engine.traceless().is_some());
}

#[test]
fn a_reason_goes_with_what_it_was_for() {
    let fake = ready();
    fake.register("p:inside far_off+1");
    assert_eq!(fake.status("far").state, ProbeState::Armed);
    assert_eq!(fake.status("far").unoptimized_reason, None, "no pass was made");
    fake.engine.optimize();
    let status = fake.status("far");
    assert!(status.unoptimized_reason.unwrap().starts_with("other-probe: "));
    assert_eq!((status.state, status.reason), (ProbeState::Armed, None));
    fake.engine.unregister(Selection::all()).unwrap();
    fake.register("p:far far_off");
    assert_eq!(fake.status("far").unoptimized_reason, None, "it is not that of another probe");
    assert_eq!(fake.engine.optimize().optimized, 1);
    assert_eq!(fake.status("far").state, ProbeState::Optimized);
    fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), false).unwrap();
    fake.engine.optimize();
    let status = fake.status("far");
    assert_eq!((status.state, status.unoptimized_reason), (ProbeState::Disabled, None));
    fake.engine.set_enabled(Selection::kprobe("kprobes", "far"), true).unwrap();
    fake.engine.switch(false).unwrap();
    assert_eq!(fake.status("far").state, ProbeState::Off);
    fake.engine.switch(true).unwrap();
    assert_eq!(fake.status("far").state, ProbeState::Armed);
}

/// A task that was interrupted behind the first instruction would go on in the middle of the jmp.
#[test]
fn nobody_may_be_within_what_the_jmp_covers() {
    let fake = ready();
    for inside in [Gva(FAR_OFF.0 + 1), Gva(FAR_OFF.0 + 4)] {
        fake.store_u64(gpa(STACK), inside.0);
        let mut passes = std::iter::repeat_with(|| fake.engine.optimize().waiting);
        assert!(passes.by_ref().take(20).any(|waiting| waiting == 1), "{inside}");
        assert!(fake.status("far").unoptimized_reason.unwrap().starts_with("busy: "));
        assert_eq!(bytes(&fake)[0], INT3);
    }
    // Where the jmp begins, and behind it, anybody may be.
    for outside in [FAR_OFF, Gva(FAR_OFF.0 + 9)] {
        fake.store_u64(gpa(STACK), outside.0);
        let mut passes = std::iter::repeat_with(|| fake.engine.optimize().total);
        assert!(passes.by_ref().take(20).any(|total| total == 1), "{outside}");
        fake.engine.allow_optimization(false);
        fake.engine.allow_optimization(true);
    }
}

#[test]
fn a_detour_that_somebody_is_in_stays_as_it_is() {
    let fake = ready();
    fake.engine.optimize();
    let window = fake.guest.hidden.detour_window().unwrap();
    fake.store_u64(gpa(STACK), window.gva.0 + 8);
    let mut before = [0; 64];
    fake.guest.hidden.read(window.offset, &mut before);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(bytes(&fake), BODY[..5]);
    fake.register("p:far far_off");
    assert_eq!(fake.engine.optimize().optimized, 1, "elsewhere");
    let mut after = [0; 64];
    fake.guest.hidden.read(window.offset, &mut after);
    assert_eq!(after, before);
    fake.engine.unregister(Selection::all()).unwrap();
    fake.store_u64(gpa(STACK), 0);
    assert!(fake.engine.traceless().is_some());
    fake.guest.hidden.read(window.offset, &mut after);
    assert_eq!(after, [0; 64], "its memory was given back");
}

#[test]
fn a_jmp_that_the_guest_wrote_over_is_clobbered() {
    let fake = ready();
    fake.engine.optimize();
    fake.write(FAR_OFF, &[0x0f, 0x0b]);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Clobbered]);
    assert_eq!(bytes(&fake)[..2], [0x0f, 0x0b], "left alone");
    fake.engine.optimize();
    let status = fake.status("far");
    assert_eq!((status.state, status.unoptimized_reason), (ProbeState::Clobbered, None));
    fake.write(FAR_OFF, &BODY);
    fake.engine.patrol();
    assert_eq!((fake.flags("far"), bytes(&fake)[0]), (vec![], INT3));
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.write(FAR_OFF, &[0x0f, 0x0b]);
    let error = fake.engine.unregister(Selection::kprobe("kprobes", "far"));
    assert!(error.is_ok() || error.unwrap_err().code() == "ETXTBSY");
    assert_eq!(bytes(&fake)[..2], [0x0f, 0x0b], "never overwritten blindly");
}

/// The jmp covers five bytes of nine: a nop's rest stays in the text.
#[test]
fn what_changes_behind_the_jmp_takes_it_out() {
    let fake = ready();
    fake.engine.optimize();
    assert!(is_optimized(&fake));
    fake.write(Gva(FAR_OFF.0 + 8), &[0x7f]);
    fake.engine.patrol();
    assert_eq!(fake.flags("far"), [StatusFlag::Clobbered]);
    assert_eq!(bytes(&fake), [INT3, BODY[1], BODY[2], BODY[3], BODY[4]], "as it was armed");
    fake.engine.optimize();
    let status = fake.status("far");
    assert_eq!((status.state, status.unoptimized_reason), (ProbeState::Clobbered, None));
}

#[test]
fn a_reboot_forgets_detours_and_a_guest_that_has_not_booted_has_none() {
    let fake = Fake::begun();
    fake.register("p:far far_off");
    assert_eq!(fake.engine.optimize().total, 0, "its text is not final");
    let fake = ready();
    fake.engine.optimize();
    fake.hook.reset();
    assert_eq!(fake.flags("far"), [StatusFlag::Pending]);
    assert_eq!(fake.engine.optimize().total, 0);
}

/// A task in a detour may be about to have its call return by way of each probe's code.
#[test]
fn what_follows_calls_stays_while_somebody_is_in_a_detour_that_leads_to_it() {
    for lines in [&["r:far far_off $retval"][..], &["r:far far_off $retval", "r:also far_off %di"]]
    {
        let fake = Fake::booted();
        lines.iter().for_each(|line| fake.register(line));
        fake.run(FREE_INITMEM);
        assert_eq!(fake.engine.optimize().optimized, 1);
        assert!(is_optimized(&fake));
        let detour = jmp_target(&fake);
        let window = fake.guest.hidden.detour_window().unwrap();
        let code = |from: Gva, len: usize| {
            let mut found = vec![0; len];
            fake.guest.hidden.read(window.offset + from.0 - window.gva.0, &mut found);
            found
        };
        // The code that calls return to was made first.
        let len = usize::try_from(detour.0 - window.gva.0).unwrap() & !63;
        let in_guest = code(window.gva, len);
        assert!(in_guest.iter().any(|byte| *byte != 0));
        fake.store_u64(gpa(STACK), detour.0 + 9);
        fake.engine.unregister(Selection::all()).unwrap();
        assert!(fake.engine.traceless().is_some());
        assert_eq!(code(window.gva, len), in_guest, "{lines:?}");
        fake.store_u64(gpa(STACK), 0);
        assert!(fake.engine.traceless().is_some());
        assert!(code(window.gva, len + 64).iter().all(|byte| *byte == 0), "all was given back");
    }
}

/// Instances of the VMM's and of the pool together must not exceed `maxactive`.
#[test]
fn a_call_of_one_probe_that_is_under_way_keeps_both_from_the_guest() {
    let fake = Fake::booted();
    fake.register("r2:far far_off $retval");
    fake.run(FREE_INITMEM);
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.register("r2:also far_off $retval");
    assert!(!is_optimized(&fake), "its detour knows one of them");
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    fake.run_on(FAR_OFF, STACK);
    let active = || ["far", "also"].map(|event| fake.status(event).active);
    assert_eq!(active(), [Some(1); 2]);
    for _ in 0..8 {
        fake.engine.optimize();
        assert!(!is_optimized(&fake));
    }
    fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
    assert_eq!(active(), [Some(0); 2]);
    fake.store_u64(gpa(STACK), 0);
    let optimized = (0..600).any(|_| {
        fake.engine.optimize();
        is_optimized(&fake)
    });
    assert!(optimized);
}

/// A call that the guest follows is the VMM's to finish where the guest cannot.
#[test]
fn calls_are_followed_by_the_vmm_from_the_same_instances() {
    let fake = Fake::booted();
    fake.register("r2:far far_off $retval");
    fake.run(FREE_INITMEM);
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.engine.allow_optimization(false);
    let window = fake.guest.hidden.detour_window().unwrap();
    let keys = [STACK, Gva(STACK.0 - 0x40), Gva(STACK.0 - 0x80)];
    for (key, active) in keys.into_iter().zip([1, 2, 2]) {
        fake.store_u64(gpa(key), RETURN_SITE.0);
        fake.run_on(FAR_OFF, key);
        assert_eq!(fake.status("far").active, Some(active));
    }
    assert_eq!(fake.status("far").nmissed, 1);
    let stub = |key: Gva| {
        let mut word = [0; 8];
        fake.guest.ram.read(gpa(key), &mut word).unwrap();
        u64::from_le_bytes(word)
    };
    for key in &keys[..2] {
        assert!((window.gva.0..window.gva.0 + window.len).contains(&stub(*key)));
    }
    assert_eq!(stub(keys[2]), RETURN_SITE.0, "the call that was missed");
    assert_eq!(fake.engine.calls_followed(), 2);
    // Their task ends.
    fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
    assert_eq!((fake.engine.calls_followed(), fake.status("far").active), (0, Some(0)));
}

/// Also where the same pass gives an older detour's memory back.
#[test]
fn doorbells_are_answered_for_as_long_as_they_can_be_rung() {
    let fake = Fake::booted();
    fake.register("r:far far_off $retval");
    fake.run(FREE_INITMEM);
    for _ in 0..3 {
        assert_eq!(fake.engine.optimize().total, 1);
        let entry = jmp_target(&fake);
        let window = fake.guest.hidden.detour_window().unwrap();
        let mut code = vec![0; 64];
        let offset = window.offset + entry.0 - window.gva.0;
        fake.guest.hidden.read(offset - 64, &mut code);
        // Behind the registers' being put back, before the entry.
        let end = code.windows(5).rposition(|bytes| bytes == [0x9d, 0x5a, 0x59, 0x58, INT3]);
        let bell = Gva(entry.0 - 64 + end.expect("it has one") as u64 + 4);
        fake.store_u64(gpa(STACK), RETURN_SITE.0);
        let ring = || fake.breakpoint(bell, STACK).0;
        assert_eq!(ring(), BreakpointAction::Resume);
        fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
        fake.engine.allow_optimization(false);
        fake.store_u64(gpa(STACK), RETURN_SITE.0);
        assert_eq!(ring(), BreakpointAction::Resume, "somebody may still be in it");
        fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
        fake.store_u64(gpa(STACK), 0);
        fake.engine.allow_optimization(true);
    }
    // One that is not known, as in a guest from a snapshot: what is behind it goes on.
    let window = fake.guest.hidden.detour_window().unwrap();
    let (action, regs) = fake.breakpoint(Gva(window.gva.0 + 0x4321), STACK);
    assert_eq!((action, regs.rip), (BreakpointAction::Resume, window.gva.0 + 0x4322));
}

/// Another return probe of the same call has put its trampoline over the stub, which no word of RAM
/// shows then.
#[test]
fn code_that_a_call_comes_back_to_by_way_of_another_stays() {
    let fake = Fake::booted();
    fake.register("r:far far_off");
    fake.run(FREE_INITMEM);
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.engine.allow_optimization(false);
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    fake.run_on(FAR_OFF, STACK);
    fake.store_u64(gpa(STACK), 0);
    fake.engine.unregister(Selection::all()).unwrap();
    for _ in 0..3 {
        assert!(fake.engine.traceless().is_none());
        assert_eq!(fake.engine.calls_followed(), 1);
    }
    let window = fake.guest.hidden.detour_window().unwrap();
    let is_empty = || {
        let mut code = [0; 256];
        fake.guest.hidden.read(window.offset, &mut code);
        code == [0; 256]
    };
    assert!(!is_empty());
    fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
    assert!(fake.engine.traceless().is_some() && is_empty());
}

#[test]
fn probes_beyond_the_first_counters_take_the_extension_while_it_is_the_engines() {
    const MANY: usize = 5000;
    let fake = Fake::booted();
    fake.run(FREE_INITMEM);
    let probes = || {
        let counting = |n| ProbeDefinition {
            actions: vec![Action::Count],
            ..parse_line(&format!("p:e{n} far_off")).unwrap()
        };
        fake.engine.register((0..MANY).map(counting).collect::<Vec<_>>()).unwrap();
    };
    fake.register("p:one work");
    assert_eq!(fake.engine.optimize().total, 1);
    assert_eq!(fake.guest.hidden.more_data_window(), None, "not needed yet");
    probes();
    assert_eq!(fake.engine.optimize().total, 2);
    let data = fake.guest.hidden.more_data_window().unwrap();
    // The guest's own count of a hit, in the first block beyond those of the 2 MiB.
    fake.guest.hidden.store_u64(data.offset, 7);
    let hits: u64 = fake.engine.list().iter().map(|probe| probe.hits).sum();
    assert_eq!(hits, 7);
    fake.engine.unregister(Selection::all()).unwrap();
    assert!(fake.engine.traceless().is_some());
    let entry = (data.gva.0 - KERNEL_IMAGE_BASE.0) >> 21;
    fake.store_u64(Gpa(DIRECTORY + entry * 8), 0);
    probes();
    assert_eq!(fake.engine.optimize().total, 0);
    let reason = fake.status("e0").unoptimized_reason.unwrap();
    assert!(reason.starts_with("not-mapped: the guest changed its page-table entry"), "{reason}");
    assert_eq!((fake.run(FAR_OFF), fake.hits("e4999")), (1, 1), "by its int3");
}
