//! Exits by kind, single steps, KVM's statistics.

use std::sync::Arc;

use exoprobe_guest::VcpuError;
use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::loops::{Loops, TURN_INSNS};
use exoprobe_tests::{TestGuest, cases, definition};
use exoprobe_vmm::{ExitCounts, StatsError, StepError};

pub(crate) const CASES: &[Case] = cases![
    each_step_is_one_instruction_of_the_guest_also_where_probes_move_rip needs [Kvm, SingleStep],
    kvm_counts_as_many_exits_as_there_were,
];

/// bswap rax: three bytes, boosted by a probe without a post-handler.
const BSWAP: &[u8] = &[0x48, 0x0f, 0xc8];
/// xor edx,edx: emulated by a probe.
const XOR: &[u8] = &[0x31, 0xd2];
/// out dx,al
const OUT: &[u8] = &[0xee];

fn loops(bodies: &[&[u8]]) -> Loops<ExitCounts> {
    let guest = TestGuest::restored(1);
    let vm = Arc::clone(&guest.vm);
    Loops::new(guest, bodies, move || vm.exit_counts())
}

/// Exits of one turn of a loop: the ends of two runs cancel out. Of three runs the least counts:
/// the first after stepping has begun has two steps too many with kvm_intel in Bochs.
fn per_turn(loops: &Loops<ExitCounts>, index: usize) -> ExitCounts {
    let least = |turns| {
        let run = || {
            let (before, after) = loops.run(index, turns);
            after.since(&before)
        };
        [run(), run(), run()].into_iter().min_by_key(ExitCounts::total).expect("three")
    };
    let more = least(110).since(&least(10));
    let of = |count: u64| {
        assert_eq!(count % 100, 0, "not the same in each turn: {more:?}");
        count / 100
    };
    assert_eq!(more.mmio + more.msr + more.other, 0);
    ExitCounts {
        breakpoint: of(more.breakpoint),
        step: of(more.step),
        port: of(more.port),
        ..ExitCounts::default()
    }
}

fn each_step_is_one_instruction_of_the_guest_also_where_probes_move_rip() {
    let loops = loops(&[BSWAP, XOR, OUT]);
    let (vm, engine) = (&loops.guest().vm, &loops.guest().engine);
    assert_eq!(per_turn(&loops, 0), ExitCounts::default());

    vm.single_step(0, true).unwrap();
    let steps = |step| ExitCounts { step, ..ExitCounts::default() };
    assert_eq!(per_turn(&loops, 0), steps(1 + TURN_INSNS));
    assert_eq!(per_turn(&loops, 1), steps(1 + TURN_INSNS));
    // An OUT that goes to user space is no step in KVM's emulator, and two with kvm_intel in Bochs.
    let out = per_turn(&loops, 2);
    assert!(out.port == 1 && (TURN_INSNS..=TURN_INSNS + 2).contains(&out.step), "{out:?}");

    loops.probe_body(0, definition("p:boosted 0x1 %ax"), false);
    loops.probe_body(1, definition("p:emulated 0x1"), false);
    let slot_and_jmp = ExitCounts { breakpoint: 1, ..steps(2 + TURN_INSNS) };
    assert_eq!(per_turn(&loops, 0), slot_and_jmp);
    assert_eq!(per_turn(&loops, 1), ExitCounts { breakpoint: 1, ..steps(TURN_INSNS) });
    engine.unregister(Selection::kprobe("kprobes", "boosted")).unwrap();
    loops.probe_body(0, definition("p:stepped 0x1"), true);
    assert_eq!(per_turn(&loops, 0), ExitCounts { breakpoint: 2, ..steps(1 + TURN_INSNS) });

    vm.single_step(0, false).unwrap();
    let absent = vm.single_step(1, true);
    assert!(matches!(absent, Err(StepError::Vcpu(VcpuError::NoSuchVcpu(1)))), "{absent:?}");
    assert_eq!(per_turn(&loops, 0), ExitCounts { breakpoint: 2, ..ExitCounts::default() });
}

/// The ends of two runs cancel out. The host's interrupts are exits too: the least of many short
/// runs has none.
fn kvm_counts_as_many_exits_as_there_were() {
    const RUNS: usize = 32;
    let guest = TestGuest::restored_unfiltered(1);
    let vm = Arc::clone(&guest.vm);
    let loops = Loops::new(guest, &[OUT], move || (vm.exit_counts(), vm.kvm_stats(0)));
    let run = |turns| {
        let ((exits, stats), (exits_after, stats_after)) = loops.run(0, turns);
        assert_eq!(exits_after.since(&exits).port, turns);
        stats_after.unwrap()["exits"] - stats.unwrap()["exits"]
    };
    let least = |turns| (0..RUNS).map(|_| run(turns)).min().expect("runs");
    let (short, long) = (4, 16);
    assert_eq!(least(long) - least(short), long - short);
    assert!(matches!(
        loops.guest().vm.kvm_stats(1),
        Err(StatsError::Vcpu(VcpuError::NoSuchVcpu(1)))
    ));
}
