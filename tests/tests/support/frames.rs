//! Probes with actions, and stacks of the vCPUs that they hold.

use exoprobe_probes::{Action, Frame, ProbeDefinition};
use exoprobe_tests::{PATIENCE, TestGuest, definition};
use std::time::{Duration, Instant};

pub(crate) fn register(guest: &TestGuest, line: &str, actions: &[Action]) {
    let definition = ProbeDefinition { actions: actions.to_vec(), ..definition(line) };
    guest.engine.register(definition).unwrap_or_else(|e| panic!("{line}: {e}"));
}

/// Functions of the kernel's part, and how many frames of user mode follow it.
pub(crate) fn parts(frames: &[Frame]) -> (Vec<&str>, usize) {
    let kernel = frames.iter().take_while(|frame| !frame.user);
    let names: Vec<&str> = kernel.map(|f| f.symbol_name.as_deref().unwrap_or("?")).collect();
    let user = &frames[names.len()..];
    assert!(user.iter().all(|frame| frame.user && frame.symbol_name.is_none()), "{frames:?}");
    (names, user.len())
}

/// Waits until a hit holds a vCPU, and gives which.
pub(crate) fn held(guest: &TestGuest) -> u8 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(vcpu) = guest.vm.held().first() {
            return *vcpu;
        }
        assert!(Instant::now() < deadline, "no hit: {}", guest.console());
        std::thread::sleep(Duration::from_millis(1));
    }
}
