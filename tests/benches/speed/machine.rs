//! Boot, restore, start.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use exoprobe_guest::{BreakpointAction, ExitHook, HitContext};
use exoprobe_tests::TestGuest;
use exoprobe_vmm::{DEFAULT_KVM, Host, HostSides, Vm};

use crate::figure::{figure, least};

const ROUNDS: usize = 10;

struct NoProbes;

impl ExitHook for NoProbes {
    fn breakpoint(&self, _: &mut HitContext<'_>) -> BreakpointAction {
        BreakpointAction::PassToGuest
    }

    exoprobe_tests::only_breakpoints!();
}

pub(crate) fn run() {
    let begun = Instant::now();
    drop(TestGuest::boot(&TestGuest::config("vmlinux", 1)));
    figure(
        "boot to the workload's prompt",
        &format!("{:.1} s", begun.elapsed().as_secs_f64()),
        "<= 8 s",
    );
    let preflight = least(ROUNDS, || {
        let begun = Instant::now();
        drop(Host::open(Path::new(DEFAULT_KVM)).expect("KVM"));
        begun.elapsed().as_secs_f64() * 1e3
    });
    figure("  preflight alone", &format!("{preflight:.1} ms"), "");
    let snapshot = TestGuest::snapshot(1);
    let host = Host::open(Path::new(DEFAULT_KVM)).expect("KVM");
    let restore = least(ROUNDS, || {
        let begun = Instant::now();
        let vm = Vm::restore(&host, &snapshot, &HostSides::default()).expect("a whole snapshot");
        vm.start(Arc::new(NoProbes)).expect("a new machine starts");
        begun.elapsed().as_secs_f64() * 1e3
    });
    figure(
        "restore of 32 MiB to the first guest instruction",
        &format!("{restore:.1} ms"),
        "<= 5 ms",
    );
    let config = TestGuest::config("vmlinux", 1);
    let start = least(ROUNDS, || {
        let begun = Instant::now();
        let host = Host::open(Path::new(DEFAULT_KVM)).expect("KVM");
        let vm = Vm::create(&host, &config).expect("the guest can be made");
        vm.start(Arc::new(NoProbes)).expect("a new machine starts");
        begun.elapsed().as_secs_f64() * 1e3
    });
    figure(
        "start, preflight included, to the first guest instruction",
        &format!("{start:.1} ms"),
        "<= 15 ms",
    );
}
