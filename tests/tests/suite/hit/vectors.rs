//! Vector registers of guest programs, over switches of tasks and over signals.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, host};

pub(crate) const CASES: &[Case] = cases![
    all_that_user_mode_may_use_are_kept(vcpus),
    user_mode_finds_no_more_than_the_guest_kernel_saves,
];

const ROUNDS: u64 = 200;

/// Two processes a vCPU, each with patterns of its own in all registers.
fn all_that_user_mode_may_use_are_kept(vcpus: u8) {
    // The workload asks CPUID itself: where that is the host's, it uses more than the guest kernel
    // saves (docs/limits.md, Hosts).
    if host().profile().software.is_some_and(|quirk| quirk.host_cpuid) {
        return;
    }
    let guest = TestGuest::restored(vcpus);
    let processes = 2 * u64::from(vcpus);
    let kept = guest.work(&format!("par {processes} vectors {ROUNDS}"));
    assert_eq!(kept, processes * ROUNDS, "the rest lost a register");
    guest.assert_unharmed();
}

fn user_mode_finds_no_more_than_the_guest_kernel_saves() {
    let guest = TestGuest::restored(1);
    let expected = match host().profile().software {
        // The kernel runs with `noxsave`.
        Some(quirk) if !quirk.host_cpuid => 16,
        // The host's own CPUID, which glibc alone can be kept from.
        Some(_) => return,
        None if is_x86_feature_detected!("avx512f") => 64,
        None if is_x86_feature_detected!("avx") => 32,
        None => 16,
    };
    let from = guest.send("width");
    assert_eq!(guest.answer(from, "width"), expected);
}
