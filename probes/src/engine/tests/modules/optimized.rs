//! Jmps in the text of modules: where they may be, and when they go.

use std::sync::PoisonError;

use proptest::prelude::*;

use super::*;
use crate::Optimization;

const TABLES: Gva = Gva(0xffff_ffff_8113_1000);
const WORK: Gva = TEXT[0];
/// A second function of the module.
const TWICE: Gva = Gva(TEXT[0].0 + 0x40);
/// Text of the module after its last function.
const AFTER: Gva = Gva(TEXT[0].0 + 0x200);

/// A module is loaded and has a probe at its first function; the engine hears of its end.
fn ready_with(loaded: SampleModule) -> Fake {
    ready_with_entry(loaded, WORK, WORK)
}

/// The same with an entry in its tables: a place, and its target.
fn ready_with_entry(loaded: SampleModule, place: Gva, to: Gva) -> Fake {
    let fake = Fake::with_modules();
    fake.entries(&[(TABLES, place), (TABLES.wrapping_add(4), to)]);
    fake.set_modules(&[loaded]);
    fake.register("p:work hello:hello_work");
    fake.engine.patrol();
    fake
}

fn ready() -> Fake {
    ready_with(module(LIVE, WORK))
}

impl Fake {
    fn has_jmp(&self, at: Gva) -> bool {
        self.byte(at) == 0xe9
    }

    /// A pass, and the reason why the probe has no jmp.
    fn refusal(&self) -> String {
        self.engine.optimize();
        let status = self.status("work");
        assert_eq!((status.state, self.byte(WORK)), (ProbeState::Armed, INT3));
        status.unoptimized_reason.expect("there was a pass")
    }

    /// The kernel comes by `at`, where the engine has it wait.
    fn wait_at(&self, at: Gva, module: Gva) {
        let regs = kvm_regs { rip: at.0, rdi: module.0, rsp: STACK.0, ..kvm_regs::default() };
        let (action, regs) = self.breakpoint_of(regs);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, at.0), "it comes again");
    }

    fn entries(&self, words: &[(Gva, Gva)]) {
        for (place, to) in words {
            self.write(*place, &to.0.wrapping_sub(place.0).to_le_bytes()[..4]);
        }
    }
}

#[test]
fn a_jmp_is_taken_out_before_the_text_is_freed_and_comes_with_the_next_module() {
    let fake = ready();
    for (round, text) in (1..).zip([TEXT[0], TEXT[0], TEXT[1], TEXT[0]]) {
        fake.set_modules(&[module(LIVE, text)]);
        fake.engine.patrol();
        assert_eq!(fake.engine.optimize().optimized, 1, "{round}");
        assert!(fake.has_jmp(text) && fake.status("work").state == ProbeState::Optimized);
        fake.engine.patrol();
        fake.set_modules(&[module(GOING, text)]);
        fake.engine.patrol();
        assert!(fake.has_jmp(text), "its exit function runs still");
        for _ in 0..3 {
            fake.wait_at(MODULE_ENDS, MODULE);
            assert!(fake.has_jmp(text), "no vCPU's thread writes it");
        }
        fake.engine.patrol();
        assert_eq!(fake.byte(text), INT3);
        assert_eq!(fake.engine.optimize().optimized, 0, "not at once");
        fake.pass(MODULE_ENDS, MODULE);
        assert_eq!((fake.byte(text), fake.flags("work")), (BODY[0], GONE.to_vec()));
        fake.set_modules(&[]);
        fake.engine.patrol();
        assert_eq!(fake.engine.optimize(), Optimization::default());
        assert!(fake.text_is_its_own(text));
    }
    fake.engine.unregister(Selection::all()).unwrap();
    assert!(fake.engine.traceless().is_some(), "each detour was given back");
}

impl Fake {
    fn text_is_its_own(&self, text: Gva) -> bool {
        let mut bytes = [0; BODY.len()];
        self.guest.ram.read(gpa(text), &mut bytes).unwrap();
        bytes == BODY
    }
}

/// The same struct, at the same place, with other text.
#[test]
fn another_module_at_the_same_place_is_judged_by_its_own_text() {
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.set_modules(&[module(GOING, WORK)]);
    fake.wait_at(MODULE_ENDS, MODULE);
    fake.engine.patrol();
    fake.pass(MODULE_ENDS, MODULE);
    // jmp into the nop at `work`
    fake.write(TWICE, &[0xeb, 0xc2]);
    fake.set_modules(&[module(LIVE, WORK)]);
    fake.pass(MODULE_BEGINS, MODULE);
    let reason = fake.refusal();
    assert!(reason.starts_with("jump-into: "), "{reason}");
}

#[test]
fn jmps_in_a_module_that_has_gone_unnoticed_are_found_by_the_patrol() {
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.set_modules(&[]);
    fake.engine.patrol();
    assert_eq!(fake.flags("work"), GONE);
    assert!(fake.text_is_its_own(WORK));
    // Its text is elsewhere, or nowhere.
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.unmap(WORK);
    fake.engine.patrol();
    assert_eq!(fake.engine.optimize(), Optimization::default());
    assert_eq!(fake.flags("work"), GONE);
    assert!(fake.text_is_its_own(WORK), "it was still the engine's jmp");
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.write(WORK, &[0x90; 32]);
    fake.set_modules(&[]);
    fake.engine.patrol();
    assert_eq!(fake.flags("work"), GONE);
    assert_eq!([fake.byte(WORK), fake.byte(Gva(WORK.0 + 4))], [0x90; 2], "another's memory");
}

/// A module that ends while RAM is searched for the jmp of its probe.
#[test]
fn a_module_may_end_in_the_middle_of_a_pass() {
    let fake = ready();
    let hook = Arc::clone(&fake.hook);
    let act = Box::new(move |read: u32| {
        if read == 0 {
            let mut regs = kvm_regs { rip: MODULE_ENDS.0, rdi: MODULE.0, ..kvm_regs::default() };
            let guest = FakeGuest::new(1);
            let mut context = HitContext::new(0, &mut regs, GuestTime(1), &guest);
            assert_eq!(hook.breakpoint(&mut context), BreakpointAction::Resume);
            assert_ne!(regs.rip, MODULE_ENDS.0, "nothing is in the way yet");
        }
        Vec::new()
    });
    *fake.guest.writes.lock().unwrap_or_else(PoisonError::into_inner) = Some(act);
    fake.set_modules(&[module(GOING, WORK)]);
    assert_eq!(fake.engine.optimize().total, 0);
    assert_eq!((fake.flags("work"), fake.byte(WORK)), (GONE.to_vec(), BODY[0]));
    fake.engine.unregister(Selection::all()).unwrap();
    assert!(fake.engine.traceless().is_some());
}

#[test]
fn without_the_breakpoint_at_their_end_modules_keep_int3s() {
    let fake = Fake::with_modules();
    fake.set_modules(&[module(LIVE, WORK)]);
    let rehearsed = fake.engine.rehearse(parse_line("p:work hello:hello_work").unwrap()).unwrap();
    assert!(format!("{rehearsed:?}").contains("unoptimized_reason: None"), "{rehearsed:?}");
    fake.register("p:work hello:hello_work");
    let reason = fake.refusal();
    assert!(reason.starts_with("module: ") && reason.contains("free_module"), "{reason}");
    fake.engine.patrol();
    assert_eq!(fake.engine.optimize().optimized, 1, "its tables were read again");
    // The guest writes over the engine's breakpoint.
    fake.write(MODULE_ENDS, &[0x0f, 0x0b]);
    fake.engine.patrol();
    fake.engine.patrol();
    assert_eq!(fake.byte(WORK), INT3);
    let reason = fake.refusal();
    assert!(reason.contains("free_module"), "{reason}");
}

#[test]
fn a_jmp_goes_when_the_tables_of_its_module_change() {
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.set_modules(&[other(), module(LIVE, WORK)]);
    fake.engine.patrol();
    assert!(fake.has_jmp(WORK), "another module came");
    let at = WORK.wrapping_add(4);
    fake.entries(&[(TABLES, at), (TABLES.wrapping_add(4), at)]);
    fake.set_modules(&[SampleModule { extable: (TABLES.0, 1), ..module(LIVE, WORK) }]);
    fake.engine.patrol();
    let reason = fake.refusal();
    assert!(reason.starts_with("jump-into: "), "{reason}");
    fake.set_modules(&[module(LIVE, WORK)]);
    fake.engine.patrol();
    assert_eq!(fake.engine.optimize().optimized, 1);
    // On a vCPU's thread it waits for the patrol, and the vCPU does not.
    fake.set_modules(&[SampleModule { extable: (TABLES.0, 1), ..module(LIVE, WORK) }]);
    fake.pass(MODULE_BEGINS, OTHER);
    assert!(fake.has_jmp(WORK));
    fake.engine.patrol();
    let reason = fake.refusal();
    assert!(!reason.is_empty() && !fake.has_jmp(WORK), "{reason}");
}

#[test]
fn a_module_is_judged_once_its_init_text_has_gone() {
    let fake = ready_with(with_init(LIVE, WORK));
    fake.register("p:init hello:hello_init");
    let reason = fake.refusal();
    assert!(reason.starts_with("module: its text for initialization"), "{reason}");
    let reason = fake.status("init").unoptimized_reason.unwrap();
    assert!(reason.starts_with("module: ") && reason.ends_with("which is freed"), "{reason}");
    fake.set_modules(&[module(LIVE, WORK)]);
    fake.pass(MODULE_INIT_FREED, Gva(0));
    assert_eq!(fake.engine.optimize().optimized, 1);
    let fake = ready_with(SampleModule { live_patch: true, ..module(LIVE, WORK) });
    let reason = fake.refusal();
    assert!(reason.starts_with("module: it is a live patch"), "{reason}");
}

/// Tables with one entry: its place, its target, and the module that has it.
#[test]
fn a_modules_own_tables_rule_jmps_out() {
    let at = |offset: u64| WORK.wrapping_add(offset);
    let none = || module(LIVE, WORK);
    let labels = || SampleModule { jump_labels: (TABLES.0, 1), ..none() };
    let extable = || SampleModule { extable: (TABLES.0, 1), ..none() };
    let calls = || SampleModule { static_calls: (TABLES.0, 1), ..none() };
    let cases = [
        ("rewritten", labels(), at(4), at(0x50)),
        ("jump-into", labels(), at(0x50), at(4)),
        ("exception-table", extable(), at(1), at(0x50)),
        ("jump-into", extable(), at(0x50), at(1)),
        ("rewritten", calls(), at(1), at(0)),
    ];
    for (rule, loaded, place, to) in cases {
        let fake = ready_with_entry(loaded, place, to);
        let reason = fake.refusal();
        assert!(reason.starts_with(rule), "{rule} at {place}, to {to}: {reason}");
    }
    for loaded in [labels(), extable(), calls()] {
        let fake = ready_with_entry(loaded, at(9), at(9));
        assert_eq!(fake.engine.optimize().optimized, 1, "after what the jmp covers");
    }
}

/// Text that is written somewhere in the module, and why there is no jmp then.
#[test]
fn jumps_from_anywhere_in_a_module_are_found() {
    let far = |from: Gva, to: u64| {
        let distance = WORK.0.wrapping_add(to).wrapping_sub(from.0 + 5);
        [&[0xe9][..], &distance.to_le_bytes()[..4]].concat()
    };
    let last = Gva(WORK.0 + 0xffb);
    let cases: [(Gva, Vec<u8>, &str); 7] = [
        (TWICE, vec![0xeb, 0xc2], "jump-into: "),
        (TWICE, far(TWICE, 4), "jump-into: "),
        (AFTER, far(AFTER, 1), "jump-into: "),
        (last, far(last, 4), "jump-into: "),
        (Gva(WORK.0 + 0x20), vec![0x74, 0xe2], "jump-into: "),
        (Gva(WORK.0 + 9), vec![0xff, 0xe0], "indirect-jump: "),
        (AFTER, vec![0xff, 0x24, 0xc5], "module: at 0xffffffff81140200, outside of its functions"),
    ];
    for (at, bytes, expected) in cases {
        let fake = ready();
        fake.write(at, &bytes);
        let reason = fake.refusal();
        assert!(reason.starts_with(expected), "{bytes:x?} at {at}: {reason}");
    }
    // jmp to what may be a thunk, for it is in no text; to a function; and nothing special.
    for (to, is_refused) in [(0xffff_ffff_8114_c000, true), (FAR_OFF.0, false), (WORK.0, false)] {
        let fake = ready();
        let at = Gva(WORK.0 + 10);
        fake.write(at, &far(at, to.wrapping_sub(WORK.0)));
        let optimized = fake.engine.optimize().optimized;
        assert_eq!(optimized, usize::from(!is_refused), "{to:#x}");
    }
}

#[test]
fn text_that_cannot_be_read_whole_is_not_judged() {
    let large = |symbols: Vec<(&'static str, u64, u64, u8)>| SampleModule {
        text: (WORK.0, 0x3000),
        symbols,
        ..module(LIVE, WORK)
    };
    let work = ("hello_work", WORK.0, 0x20, b't');
    let fake = ready_with(large(vec![work]));
    fake.unmap(Gva(WORK.0 + 0x1000));
    let reason = fake.refusal();
    assert!(reason.starts_with("module: its text at 0xffffffff81140020"), "{reason}");
    let all = [("a", 0x100), ("b", 0x200), ("c", 0x300), ("d", 0x400)];
    let all = all.map(|(name, offset)| (name, WORK.0 + offset, 0x2000, b't'));
    let fake = ready_with(large(all.into_iter().chain([work]).collect()));
    let reason = fake.refusal();
    assert!(reason.starts_with("module: its functions lie upon one another"), "{reason}");
}

#[test]
fn all_is_forgotten_when_the_guest_is_booted_again() {
    let fake = ready();
    assert_eq!(fake.engine.optimize().optimized, 1);
    fake.hook.reset();
    assert_eq!((fake.flags("work"), fake.engine.optimize().total), (PENDING.to_vec(), 0));
    fake.load_kernel();
    fake.write_module_text(WORK);
    fake.write(TWICE, &[0xeb, 0xc2]);
    fake.set_modules(&[]);
    assert!(fake.begin());
    fake.finish_text();
    fake.run(FREE_INITMEM);
    fake.store_u64(SYSTEM_STATE, 3);
    fake.engine.patrol();
    fake.set_modules(&[module(LIVE, WORK)]);
    fake.pass(MODULE_BEGINS, MODULE);
    fake.engine.patrol();
    let reason = fake.refusal();
    assert!(reason.starts_with("jump-into: "), "{reason}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever its list, tables and text hold, probes come and go.
    #[test]
    fn no_modules_memory_stops_the_optimizer(
        structs in prop::collection::vec((0..0x800_u64, any::<u8>()), 0..12),
        words in prop::collection::vec((0..0x100_u64, prop_oneof![
            Just(0), Just(u64::MAX), HEAD..HEAD + 0x3000, any::<u64>(),
        ]), 0..3),
        tables in prop::collection::vec(any::<u8>(), 0..64),
        text in prop::collection::vec(any::<u8>(), 0..512),
        counts in [0..9_u32, 0..9, 0..9],
    ) {
        let fake = Fake::with_modules();
        fake.write(TABLES, &tables);
        fake.write(Gva(WORK.0 + BODY.len() as u64), &text);
        let [labels, fixups, calls] = counts.map(|count| (TABLES.0, count));
        fake.set_modules(&[SampleModule {
            jump_labels: labels,
            extable: fixups,
            static_calls: calls,
            ..module(LIVE, WORK)
        }]);
        fake.register("p:work hello:hello_work+0");
        fake.engine.patrol();
        fake.engine.optimize();
        for (at, byte) in structs {
            fake.write(MODULE.wrapping_add(at), &[byte]);
        }
        for (at, word) in words {
            fake.write(MODULE.wrapping_add(at * 8), &word.to_le_bytes());
        }
        for _ in 0..2 {
            fake.engine.patrol();
            fake.engine.optimize();
        }
        fake.engine.unregister(Selection::all()).unwrap();
        prop_assert!(!fake.has_jmp(WORK));
    }
}
