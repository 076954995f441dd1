//! Boot, restore, start.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use exoprobe_guest::{BreakpointAction, ExitHook, HitContext};
use exoprobe_tests::TestGuest;
use exoprobe_vmm::{DEFAULT_KVM, Host, HostSides, Vm, VmConfig};

use crate::figure::{figure, least_milliseconds};

const ROUNDS: usize = 10;
/// RAM of guests that are restored and rebooted, in MiB, beside the usual.
const SIZES: [u64; 3] = [1 << 10, 8 << 10, 64 << 10];

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
    let open = || Host::open(Path::new(DEFAULT_KVM)).expect("KVM");
    let preflight = least_milliseconds(ROUNDS, open);
    figure("  preflight alone", &format!("{preflight:.1} ms"), "");
    let snapshot = TestGuest::snapshot(1);
    let host = open();
    let restore = least_milliseconds(ROUNDS, || restored(&host, &snapshot));
    SIZES.iter().for_each(|mib| of_size(&host, *mib));
    figure(
        "restore of 32 MiB to the first guest instruction",
        &format!("{restore:.1} ms"),
        "<= 5 ms",
    );
    let config = TestGuest::config("vmlinux", 1);
    let start = least_milliseconds(ROUNDS, || {
        let host = open();
        (started(&host, &config), host)
    });
    figure(
        "start, preflight included, to the first guest instruction",
        &format!("{start:.1} ms"),
        "<= 15 ms",
    );
}

/// A guest with this much RAM, which has just begun to boot: it has touched little of it.
fn of_size(host: &Host, memory_mib: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshot");
    let config = VmConfig { memory_mib, ..TestGuest::config("vmlinux", 1) };
    let start = least_milliseconds(ROUNDS, || started(host, &config));
    let vm = started(host, &config);
    let reboot = least_milliseconds(ROUNDS, || vm.reboot().expect("the machine is rebooted"));
    vm.snapshot(&path).expect("a snapshot can be taken");
    drop(vm);
    let restore = least_milliseconds(ROUNDS, || restored(host, &path));
    let of = |what: &str| format!("{memory_mib} MiB: {what} to the first guest instruction");
    figure(&of("started"), &format!("{start:.1} ms"), "");
    figure(&of("rebooted"), &format!("{reboot:.1} ms"), "");
    figure(&of("restored"), &format!("{restore:.1} ms"), "");
}

fn started(host: &Host, config: &VmConfig) -> Vm {
    let vm = Vm::create(host, config).expect("the guest can be made");
    vm.start(Arc::new(NoProbes)).expect("a new machine starts");
    vm
}

fn restored(host: &Host, snapshot: &Path) -> Vm {
    let vm = Vm::restore(host, snapshot, &HostSides::default()).expect("a whole snapshot");
    vm.start(Arc::new(NoProbes)).expect("a new machine starts");
    vm
}
