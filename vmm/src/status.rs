//! What a machine is doing, and why it stopped.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;

/// Why a guest will run no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The guest pulsed its reset line.
    Reset,
    /// The guest's kernel halted all CPUs: what Linux makes of a power-off without ACPI.
    Halted,
    /// The guest's kernel panicked; what it said is in `message`.
    Panic {
        /// Text behind "Kernel panic - not syncing:".
        message: String,
    },
    /// A fault while delivering a double fault (KVM_EXIT_SHUTDOWN).
    TripleFault,
    /// KVM or this VMM could not go on.
    Failed {
        /// What happened.
        message: String,
    },
    /// The user asked for it.
    ShutDown,
}

/// A stop, with the registers of the vCPU that caused it.
#[derive(Clone, Debug)]
pub struct StopRecord {
    /// Why.
    pub reason: StopReason,
    /// Which vCPU.
    pub vcpu: u8,
    /// Its registers at that moment.
    pub regs: kvm_regs,
    /// Guest seconds since power-on.
    pub seconds: f64,
}

/// State of a machine.
#[derive(Clone, Debug)]
pub enum VmState {
    /// Made and not started.
    Created,
    /// vCPUs run.
    Running,
    /// vCPUs are out of the guest until resumed.
    Paused,
    /// For good; memory and registers can still be read.
    Stopped(Box<StopRecord>),
}

/// The state, shared by all threads of a machine.
pub(crate) struct Status {
    state: Mutex<VmState>,
    changed: Condvar,
}

impl Status {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(VmState::Created), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, VmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> VmState {
        self.lock().clone()
    }

    /// Changes the state unless the machine has stopped; says whether it did.
    pub(crate) fn set(&self, next: VmState) -> bool {
        let mut state = self.lock();
        if matches!(*state, VmState::Stopped(_)) {
            return false;
        }
        *state = next;
        self.changed.notify_all();
        true
    }

    /// Waits until the machine stops, at most `timeout`.
    pub(crate) fn wait_stopped(&self, timeout: Duration) -> Option<StopRecord> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let VmState::Stopped(record) = &*state {
                return Some((**record).clone());
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
