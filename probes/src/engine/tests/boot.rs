//! From before the kernel's first instruction to the next boot.

use super::*;
use crate::Selection;
use crate::error::ProbeError;

const CLEAN: [StatusFlag; 0] = [];

#[test]
fn probes_follow_their_text_through_boot_and_into_the_next() {
    let fake = Fake::new();
    for line in ["p:work work", "p:once once", "p:patched patched+4", "p:inside work+2"] {
        fake.register(line);
    }
    fake.register("p:dead do_task_dead");
    fake.register("r:returns work");
    let all = ["work", "once", "patched", "inside", "dead", "returns"];
    for boot in 1..=2 {
        fake.load_kernel();
        let text = fake.text();
        for event in all {
            assert_eq!(fake.flags(event), [StatusFlag::Pending]);
            assert!(fake.status(event).reason.unwrap().contains("not begun"));
        }
        assert!(fake.begin());
        follow_boot(&fake, boot, &text);
        fake.hook.reset();
        assert_eq!(fake.breakpoint(WORK, STACK).0, BreakpointAction::PassToGuest);
    }
}

fn follow_boot(fake: &Fake, boot: u64, text: &[u8]) {
    assert_eq!([fake.byte(WORK), fake.byte(ONCE), fake.byte(PATCHED)], [INT3, INT3, BODY[0]]);
    assert_eq!(fake.byte(PATCHED.wrapping_add(4)), 0x0f);
    assert_eq!((fake.run(WORK), fake.run(ONCE)), (1, 1));
    for (event, pending) in [("patched", "while it boots"), ("inside", "inside")] {
        let status = fake.status(event);
        assert!(status.reason.as_ref().is_some_and(|r| r.contains(pending)), "{status:?}");
        assert_eq!(status.flags, [StatusFlag::Pending]);
    }
    fake.finish_text();
    assert_eq!(fake.byte(REST_INIT), BODY[0], "the engine's own mark has gone");
    assert_eq!(fake.byte(PATCHED.wrapping_add(4)), INT3);
    assert_eq!(fake.run(PATCHED.wrapping_add(4)), 1);
    assert_eq!(fake.flags("inside"), [StatusFlag::Pending]);
    assert_eq!(fake.run(TASK_DEAD), 1, "one hit for mark and probe");
    fake.store_u64(SYSTEM_STATE, 2);
    assert_eq!(fake.byte(FREE_INITMEM), INT3);
    assert_eq!(fake.run(FREE_INITMEM), 1);
    fake.store_u64(SYSTEM_STATE, 3);
    let init = usize::try_from(ONCE.0 - IMAGE.0).unwrap()..TEXT_LEN;
    assert_eq!(fake.text()[init.clone()], text[init], "init text is as it was");
    assert_eq!(fake.flags("once"), [StatusFlag::Gone]);
    fake.write(ONCE, &[INT3; 11]);
    fake.engine.patrol();
    assert_eq!(fake.breakpoint(ONCE, STACK).0, BreakpointAction::PassToGuest, "poison is its own");
    for (event, hits) in [("work", 1), ("once", 1), ("patched", 1), ("dead", 1), ("inside", 0)] {
        assert_eq!(fake.hits(event), boot * hits, "{event}");
    }
    assert_eq!((fake.flags("work"), fake.flags("patched")), (CLEAN.to_vec(), CLEAN.to_vec()));
}

#[test]
fn probes_of_a_guest_that_is_half_booted_wait_or_are_armed_as_their_text_allows() {
    let fake = Fake::begun();
    fake.register("p:work work");
    fake.register("p:patched patched+4");
    fake.register("p:first rest_init");
    assert_eq!(fake.run(WORK), 1);
    assert_eq!(fake.flags("patched"), [StatusFlag::Pending]);
    let inside = fake.engine.register(parse_line("p:inside work+2").unwrap());
    assert_eq!(inside.unwrap_err().code(), "EILSEQ");
    fake.finish_text();
    assert_eq!(fake.flags("patched"), CLEAN);
    assert_eq!(fake.hits("first"), 1, "beside the mark, once");
    assert_eq!(fake.byte(REST_INIT), INT3);
}

/// Everything that reads the guest.
fn ask_all(fake: &Fake) {
    let engine = &fake.engine;
    let mut bytes = [0; 8];
    let _ = (engine.symbols(), engine.address_of("work"), engine.types().map(|_| ()));
    let _ = (engine.read_memory(WORK, &mut bytes), engine.read_without_probes(WORK, &mut bytes));
    let _ = (engine.disassemble(WORK), engine.blacklist(), engine.processes(), engine.stack(0));
    let _ =
        (engine.modules(), engine.running_kernel(), engine.list(), engine.traceless().is_some());
    engine.patrol();
    engine.optimize();
}

#[test]
fn questions_change_nothing_in_a_guest_without_probes_at_any_moment() {
    let fake = Fake::new();
    let memory = || {
        let ram = &fake.guest.ram;
        let mut bytes = vec![0; usize::try_from(ram.size()).unwrap()];
        ram.read(Gpa(0), &mut bytes).unwrap();
        bytes
    };
    let ask = |moment: &str| {
        let before = memory();
        ask_all(&fake);
        assert!(memory() == before, "{moment}");
        assert_eq!(fake.guest.hidden.base(), None, "{moment}");
    };
    ask("before its kernel is there");
    fake.load_kernel();
    ask("before its kernel begins");
    assert!(fake.begin());
    ask("on its first tables");
    assert!(fake.engine.disassemble(WORK).is_ok(), "its kernel is known");
    fake.guest.root.store(ROOT, Ordering::SeqCst);
    fake.guest.lstar.store(ENTRY.0, Ordering::SeqCst);
    ask("on its own tables");
    fake.store_u64(SYSTEM_STATE, 1);
    ask("when its text is final");
    fake.store_u64(SYSTEM_STATE, 3);
    ask("when it has booted");
    fake.register("p:work work");
    assert_eq!(fake.run(WORK), 1, "and a probe finds it ready");
    assert!(fake.guest.hidden.base().is_some());
    let refused = fake.engine.register(parse_line("p:once once").unwrap());
    assert!(refused.is_err(), "init text has gone, though no mark told so");
}

#[test]
fn a_kernel_that_was_asked_about_early_is_made_ready_for_the_first_probe() {
    let fake = Fake::begun();
    ask_all(&fake);
    fake.register("p:work work");
    fake.register("p:patched patched+4");
    assert_eq!(fake.run(WORK), 1);
    assert_eq!(fake.flags("patched"), [StatusFlag::Pending]);
    fake.finish_text();
    assert_eq!(fake.flags("patched"), CLEAN);
    assert_eq!(fake.run(PATCHED.wrapping_add(4)), 1);
}

#[test]
fn a_mark_that_came_too_late_is_made_up_for_by_the_patrol() {
    let fake = Fake::begun();
    fake.guest.root.store(ROOT, Ordering::SeqCst);
    fake.register("p:patched patched+4");
    fake.register("p:once once");
    // Nobody came by rest_init since.
    fake.engine.patrol();
    assert_eq!(fake.flags("patched"), [StatusFlag::Pending], "its text may not be final");
    fake.store_u64(SYSTEM_STATE, 1);
    fake.engine.patrol();
    assert_eq!(fake.flags("patched"), CLEAN);
    assert_eq!(fake.byte(REST_INIT), BODY[0]);
    fake.run(FREE_INITMEM);
    assert_eq!(fake.flags("once"), [StatusFlag::Gone]);
}

#[test]
fn a_guest_that_spoils_hidden_memory_gets_past_the_engines_marks_all_the_same() {
    let fake = Fake::begun();
    fake.register("p:work work");
    for entry in 0..512 {
        fake.store_u64(Gpa(FIXMAP + entry * 8), 0);
    }
    fake.finish_text();
    assert_eq!(fake.byte(REST_INIT), BODY[0]);
    let refused = fake.engine.register(parse_line("p:more far_off").unwrap());
    assert_eq!(refused.unwrap_err().code(), "ENXIO");
    assert_eq!(fake.byte(FAR_OFF), BODY[0]);
}

#[test]
fn a_batch_is_undone_whole_when_its_last_cannot_be_armed() {
    let fake = Fake::booted();
    fake.register("p:sleeps far_off");
    fake.engine.set_enabled(Selection::kprobe("kprobes", "sleeps"), false).unwrap();
    fake.write(FAR_OFF, &[0x90]);
    let text = fake.text();
    let lines = ["p:one work", "r:two patched", "p:three far_off"];
    let batch: Vec<_> = lines.iter().map(|line| parse_line(line).unwrap()).collect();
    let refused = fake.engine.register(batch).unwrap_err();
    assert_eq!((refused.index, refused.name.as_str()), (2, "three"));
    assert!(matches!(refused.error, ProbeError::Clobbered { found: 0x90, .. }));
    assert_eq!(fake.text(), text, "marks and all");
    assert_eq!(fake.engine.list().len(), 1);
    assert_eq!(fake.breakpoint(WORK, STACK).0, BreakpointAction::PassToGuest);
    fake.engine.unregister(Selection::all()).unwrap();
    assert_eq!(fake.text(), text);
}

#[test]
fn what_is_refused_by_name_is_listed_and_what_is_listed_is_refused() {
    let fake = Fake::booted();
    let list = fake.engine.blacklist().unwrap();
    assert!(list.iter().any(|entry| entry.symbol == "startup_64"));
    assert!(list.iter().any(|entry| entry.symbol == "(init text)" || entry.start == ONCE));
    for entry in list {
        let definition = parse_line(&format!("p:listed {}", entry.start)).unwrap();
        let refused = fake.engine.register(definition).unwrap_err();
        let same = matches!(refused.error, ProbeError::Reserved { reserved, .. } if reserved == entry.reason);
        assert!(same, "{entry:?}: {refused}");
    }
}

#[test]
fn the_entry_is_probed_where_user_mode_runs_on_the_kernels_tables() {
    let probe_entry = |fake: &Fake| {
        let probed = fake.engine.register(parse_line("p:entry entry_SYSCALL_64").unwrap());
        probed.map(|_| fake.byte(ENTRY))
    };
    assert_eq!(probe_entry(&Fake::booted()).unwrap(), INT3);
    for isolated in [false, true] {
        let fake = Fake::with_root(PAIRED_ROOT);
        fake.load_kernel();
        if isolated {
            fake.store_u64(Gpa(PAIRED_ROOT + PAGE_SIZE + 511 * 8), UPPER | PTE_PRESENT);
        }
        fake.guest.root.store(PAIRED_ROOT, Ordering::SeqCst);
        fake.guest.lstar.store(ENTRY.0, Ordering::SeqCst);
        fake.store_u64(SYSTEM_STATE, 3);
        match (isolated, probe_entry(&fake)) {
            (false, taken) => assert_eq!(taken.unwrap(), INT3),
            (true, refused) => assert_eq!(refused.unwrap_err().code(), "EOPNOTSUPP"),
        }
    }
}

/// A kernel with CONFIG_X86_KERNEL_IBT writes over each endbr64 that no indirect call needs, and
/// checks it before: the int3 is at the next instruction that stays.
#[test]
fn a_function_whose_endbr64_is_sealed_is_probed_from_the_first_call() {
    const SEAL: Gva = Gva(0xffff_ffff_8111_c000);
    let nop = &BODY[4..9];
    for (tracer, offset) in [("", 4), ("ffffffff81001b00 T __fentry__\n", 9)] {
        let table =
            "ffffffff8111c000 r __ibt_endbr_seal\nffffffff8111c004 r __ibt_endbr_seal_end\n";
        let fake = Fake::with(ROOT, &format!("{table}{tracer}"), None);
        fake.load_kernel();
        fake.write(FAR_OFF, &[&ENDBR64, nop, &BODY].concat());
        let place = i32::try_from(FAR_OFF.0.wrapping_sub(SEAL.0).cast_signed()).unwrap();
        fake.write(SEAL, &place.to_le_bytes());
        fake.register("p:sealed far_off");
        assert!(fake.begin());
        assert_eq!(fake.flags("sealed"), CLEAN, "{:?}", fake.status("sealed"));
        let at = FAR_OFF.wrapping_add(offset);
        assert_eq!((fake.byte(FAR_OFF), fake.byte(at)), (ENDBR64[0], INT3), "{offset}");
        assert_eq!(fake.run(at), 1);
        fake.finish_text();
        assert_eq!((fake.run(at), fake.hits("sealed")), (1, 2));
        assert_eq!(fake.status("sealed").addr, Some(FAR_OFF));
    }
}
