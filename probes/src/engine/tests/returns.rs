//! What return probes leave behind.

use super::*;
use crate::Selection;
use crate::definition::ReturnMode;
use crate::engine::Kprobe;
use crate::events::Event;

const NEXT_STACK: Gva = Gva(0xffff_ffff_8118_7f00);

fn register(fake: &Fake, line: &str, mode: ReturnMode) {
    let mut definition = parse_line(line).unwrap();
    definition.return_mode = mode;
    fake.engine.register(definition).unwrap();
}

#[test]
fn nothing_is_left_when_the_last_followed_call_has_ended() {
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::booted();
        let text = fake.text();
        register(&fake, "r:returns work", mode);
        fake.call_work(NEXT_STACK);
        let returns_to = fake.enter_work(STACK);
        fake.engine.unregister(Selection::all()).unwrap();
        let followed = fake.engine.calls_followed();
        assert_eq!(followed, usize::from(mode == ReturnMode::Trampoline));
        assert_eq!(fake.engine.traceless().is_none(), followed > 0);
        fake.return_to(returns_to, STACK);
        assert_eq!(fake.engine.calls_followed(), 0);
        assert!(fake.engine.traceless().is_some(), "{mode:?}");
        assert_eq!(fake.text(), text, "{mode:?}: the mark at the end of tasks has gone, too");
    }
}

#[test]
fn a_task_that_ends_in_the_function_gives_its_instances_back() {
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::booted();
        register(&fake, "r2:returns work", mode);
        for _ in 0..5 {
            let _ = fake.enter_work(STACK);
            assert_eq!(fake.status("returns").active, Some(1));
            fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
            assert_eq!(fake.status("returns").active, Some(0), "{mode:?}");
        }
        let status = fake.status("returns");
        assert_eq!((status.hits, status.nmissed), (0, 0));
    }
}

/// As in the functions by which it leaves its stack.
#[test]
fn what_a_dying_task_enters_last_is_given_back_when_it_is_off_its_stack() {
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::booted();
        register(&fake, "r2:returns work", mode);
        fake.run_on(TASK_DEAD, Gva(STACK.0 - 0x100));
        let _ = fake.enter_work(STACK);
        let survivor = fake.enter_work(NEXT_STACK);
        fake.run_on(STACK_LEFT, Gva(NEXT_STACK.0 - 0x100));
        assert_eq!(fake.status("returns").active, Some(1), "{mode:?}");
        // Called for other reasons, too.
        fake.run_on(STACK_LEFT, Gva(NEXT_STACK.0 - 0x100));
        fake.return_to(survivor, NEXT_STACK);
        let status = fake.status("returns");
        assert_eq!((status.hits, status.nmissed, status.active), (1, 0, Some(0)), "{mode:?}");
    }
}

/// The engine's own mark keeps the breakpoint there.
#[test]
fn what_is_switched_off_is_not_hit_where_a_mark_is_either() {
    let fake = Fake::booted();
    let posts = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&posts);
    let probe = Kprobe {
        definition: parse_line("p:dead do_task_dead+4").unwrap(),
        post_handler: Some(Box::new(move |_| _ = count.fetch_add(1, Ordering::SeqCst))),
        ..Kprobe::default()
    };
    fake.engine.register(probe).unwrap();
    fake.register("p:end do_task_dead");
    fake.register("r:returns work");
    let returns_to = fake.enter_work(NEXT_STACK);
    fake.engine.switch(false).unwrap();
    assert_eq!(fake.byte(TASK_DEAD), INT3, "instances are given back all the same");
    assert_eq!(fake.run(TASK_DEAD), 1);
    assert_eq!(fake.run(TASK_DEAD.wrapping_add(4)), 0);
    fake.return_to(returns_to, NEXT_STACK);
    let hits = ["end", "dead", "returns"].map(|event| fake.hits(event));
    assert_eq!((hits, posts.load(Ordering::SeqCst)), ([0; 3], 0));
    fake.engine.switch(true).unwrap();
    fake.run(TASK_DEAD);
    fake.run(TASK_DEAD.wrapping_add(4));
    fake.call_work(STACK);
    let hits = ["end", "dead", "returns"].map(|event| fake.hits(event));
    assert_eq!((hits, posts.load(Ordering::SeqCst)), ([1; 3], 1));
    assert_eq!(fake.status("returns").active, Some(0));
}

/// Calls whose return was not seen, because nobody wanted to see it.
#[test]
fn calls_that_return_while_the_probe_is_off_leave_no_instance_in_use() {
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::booted();
        register(&fake, "r2:returns work", mode);
        for stack in [STACK, NEXT_STACK] {
            let returns_to = fake.enter_work(stack);
            fake.engine.set_enabled(Selection::kretprobe("kprobes", "returns"), false).unwrap();
            fake.return_to(returns_to, stack);
            fake.engine.set_enabled(Selection::kretprobe("kprobes", "returns"), true).unwrap();
        }
        assert_eq!(fake.status("returns").active, Some(0), "{mode:?}");
        for stack in [STACK, NEXT_STACK] {
            let returns_to = fake.enter_work(stack);
            fake.engine.switch(false).unwrap();
            fake.return_to(returns_to, stack);
            fake.engine.switch(true).unwrap();
        }
        let status = fake.status("returns");
        assert_eq!((status.active, status.nmissed), (Some(0), 0), "{mode:?}");
    }
}

/// The table has a site before its int3 is in the text. A call that is followed in between returns
/// unseen.
#[test]
fn a_call_is_followed_only_once_the_breakpoint_it_returns_to_is_in_the_text() {
    let fake = Fake::booted();
    register(&fake, "r:returns work", ReturnMode::Site);
    fake.call_work(STACK);
    let enable = |on| fake.engine.set_enabled(Selection::kretprobe("kprobes", "returns"), on);
    enable(false).unwrap();
    enable(true).unwrap();
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    let (_, regs) = fake.breakpoint(WORK, STACK);
    assert_eq!((regs.rip, fake.status("returns").active), (WORK.0, Some(0)), "hit it again");
    fake.call_work(STACK);
    let status = fake.status("returns");
    assert_eq!((status.hits, status.nmissed, status.active), (2, 0, Some(0)));
}

/// As a BPF program's trampoline, which calls the function whose return the program is at.
#[test]
fn a_call_from_where_no_breakpoint_can_be_is_followed_by_a_trampoline() {
    const NO_TEXT: Gva = Gva(0xffff_ffff_c029_8057);
    let fake = Fake::booted();
    register(&fake, "r:returns work", ReturnMode::Site);
    for calls in [1, 2] {
        fake.store_u64(gpa(STACK), NO_TEXT.0);
        fake.run_on(WORK, STACK);
        let mut word = [0; 8];
        fake.guest.ram.read(gpa(STACK), &mut word).unwrap();
        let (action, regs) = fake.breakpoint(Gva(u64::from_le_bytes(word)), STACK.wrapping_add(8));
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, NO_TEXT.0));
        fake.call_work(NEXT_STACK);
        let status = fake.status("returns");
        assert_eq!((status.hits, status.nmissed, status.active), (2 * calls, 0, Some(0)));
    }
}

/// Two vCPUs in the first call of a function at once.
#[test]
fn no_call_is_missed_while_another_vcpu_sets_the_breakpoint_it_returns_to() {
    const ROUNDS: u64 = 300;
    let fake = Fake::booted();
    for _ in 0..ROUNDS {
        register(&fake, "r:returns work", ReturnMode::Site);
        std::thread::scope(|scope| {
            for stack in [STACK, NEXT_STACK] {
                let fake = &fake;
                scope.spawn(move || (0..3).for_each(|_| fake.call_work(stack)));
            }
        });
        let status = fake.status("returns");
        assert_eq!((status.hits, status.nmissed, status.active), (6, 0, Some(0)));
        fake.engine.unregister(Selection::kretprobe("kprobes", "returns")).unwrap();
    }
}

/// Runs a vCPU from a breakpoint until it is past it.
fn past(fake: &Fake, regs: kvm_regs) -> kvm_regs {
    for _ in 0..100 {
        let (action, after) = fake.breakpoint_of(regs);
        assert_eq!(action, BreakpointAction::Resume);
        if after.rip != regs.rip {
            return after;
        }
    }
    panic!("the vCPU never gets past {:#x}", regs.rip);
}

#[test]
fn arguments_of_the_entry_are_kept_for_the_return() {
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::booted();
        register(&fake, "r:one work $arg1 y=$arg7 z=+8($arg2) now=%di", mode);
        register(&fake, "r:two work x=$arg1 z=$arg16", mode);
        // Two calls at once: each return has its own call's.
        let calls = [(STACK, 5), (NEXT_STACK, 6)];
        let entered = calls.map(|(stack, number)| {
            fake.store_u64(gpa(stack), RETURN_SITE.0);
            fake.store_u64(gpa(stack.wrapping_add(8)), 70 + number);
            fake.store_u64(gpa(stack.wrapping_add(0x28)), 80);
            let (rip, rsp, rsi) = (WORK.0, stack.0, stack.0 + 0x20);
            past(&fake, kvm_regs { rip, rsp, rdi: number, rsi, ..kvm_regs::default() });
            let mut word = [0; 8];
            fake.guest.ram.read(gpa(stack), &mut word).unwrap();
            u64::from_le_bytes(word)
        });
        for ((stack, number), rip) in calls.into_iter().zip(entered) {
            // What the function did to its memory meanwhile.
            fake.store_u64(gpa(stack.wrapping_add(0x28)), 90 + number);
            fake.store_u64(gpa(stack.wrapping_add(8)), 0);
            let rsp = stack.0 + 8;
            past(&fake, kvm_regs { rip, rsp, rdi: 1, rsi: 2, ..kvm_regs::default() });
        }
        fake.engine.drain();
        let shown = |event: &str, names: &[&str]| -> Vec<String> {
            let events = fake.engine.events().read(1, 100).events;
            let of_event = events.iter().filter(|it| &*it.event == event);
            let value = |it: &Event, name: &str| it.args[name].as_str().unwrap().to_owned();
            let line =
                |it: &Event| -> Vec<String> { names.iter().map(|name| value(it, name)).collect() };
            of_event.map(|it| line(it).join(" ")).collect()
        };
        let one = shown("one", &["arg1", "y", "z", "now"]);
        assert_eq!(one, ["0x5 0x4b 0x5f 0x1", "0x6 0x4c 0x60 0x1"], "{mode:?}");
        assert_eq!(shown("two", &["x", "z"]), ["0x5 0x0", "0x6 0x0"], "{mode:?}");
    }
}
