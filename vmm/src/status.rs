//! The state of a machine, and why it stopped.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;

/// The reason why a guest has stopped; it runs again only after a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The guest pulsed its reset line.
    Reset,
    /// The guest switched its machine off, by ACPI.
    PoweredOff,
    /// The guest's kernel halted all CPUs: Linux powers off in this way without ACPI.
    Halted,
    /// The guest's kernel panicked; `message` has its text.
    Panic {
        /// Text after "Kernel panic - not syncing:".
        message: String,
    },
    /// A fault while delivering a double fault (KVM_EXIT_SHUTDOWN).
    TripleFault,
    /// KVM or this VMM could not continue.
    Failed {
        /// The event.
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
    /// The vCPU.
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
    /// vCPUs are out of the guest until resumed; [`crate::Vm::held`] lists those that a hook holds.
    Paused,
    /// Until booted again; memory and registers can still be read.
    Stopped(Box<StopRecord>),
}

/// The state, shared by all threads of a machine.
///
/// A change and the commands that go with it are one step: `send` sends them under the lock of the
/// state, so that each vCPU finds them in its queue in the order of the changes. Without that, a
/// vCPU that holds the machine while another thread resumes it could leave the state "paused" with
/// all vCPUs running. `send` must only send: queues have no bound, no thread waits for an answer
/// under the lock, and so the lock is never held for long.
pub(crate) struct Status {
    shared: Mutex<Shared>,
    changed: Condvar,
}

struct Shared {
    state: VmState,
    /// vCPUs that a hook holds.
    held: BTreeSet<u8>,
    boots: u64,
}

impl Status {
    pub(crate) fn new() -> Self {
        let shared = Shared { state: VmState::Created, held: BTreeSet::new(), boots: 1 };
        Self { shared: Mutex::new(shared), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> VmState {
        self.lock().state.clone()
    }

    /// vCPUs that are held, in order.
    pub(crate) fn held(&self) -> Vec<u8> {
        self.lock().held.iter().copied().collect()
    }

    /// Returns true if a vCPU is held and the machine was not resumed since.
    pub(crate) fn is_held(&self, vcpu: u8) -> bool {
        self.lock().held.contains(&vcpu)
    }

    /// Number of boots, including the present one.
    pub(crate) fn boots(&self) -> u64 {
        self.lock().boots
    }

    /// Changes the state unless the machine has stopped. Returns true if it was changed.
    pub(crate) fn set(&self, next: VmState, send: impl FnOnce()) -> bool {
        let mut shared = self.lock();
        if matches!(shared.state, VmState::Stopped(_)) {
            return false;
        }
        // A pause keeps them held.
        if !matches!(next, VmState::Paused) {
            shared.held.clear();
        }
        shared.state = next;
        send();
        self.changed.notify_all();
        true
    }

    /// Pauses the machine at a hit of `vcpu`, unless it has stopped. Returns true if it was paused.
    pub(crate) fn hold(&self, vcpu: u8, send: impl FnOnce()) -> bool {
        let mut shared = self.lock();
        if matches!(shared.state, VmState::Stopped(_)) {
            return false;
        }
        shared.held.insert(vcpu);
        shared.state = VmState::Paused;
        send();
        self.changed.notify_all();
        true
    }

    /// Begins another boot, in any state of the machine.
    pub(crate) fn begin_boot(&self, send: impl FnOnce()) {
        let mut shared = self.lock();
        shared.held.clear();
        shared.boots += 1;
        shared.state = VmState::Running;
        send();
        self.changed.notify_all();
    }

    /// Waits until the machine stops in a boot after `boot`, at most `timeout`; returns the boot
    /// and the stop.
    pub(crate) fn wait_stopped(&self, boot: u64, timeout: Duration) -> Option<(u64, StopRecord)> {
        let deadline = Instant::now() + timeout;
        let mut shared = self.lock();
        loop {
            if let VmState::Stopped(record) = &shared.state
                && shared.boots > boot
            {
                return Some((shared.boots, (**record).clone()));
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(shared, left);
            shared = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped() -> VmState {
        let regs = kvm_regs::default();
        let reason = StopReason::Reset;
        VmState::Stopped(Box::new(StopRecord { reason, vcpu: 0, regs, seconds: 1.0 }))
    }

    /// Commands of a change come before those of the next one.
    #[test]
    fn a_resume_at_the_same_time_comes_behind_a_hold_as_a_whole() {
        let (status, sent) = (Status::new(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            assert!(status.hold(0, || {
                scope.spawn(|| {
                    status.set(VmState::Running, || sent.lock().unwrap().push("resume"));
                });
                // Time for the other thread to come first, if it could.
                std::thread::sleep(Duration::from_millis(20));
                sent.lock().unwrap().push("stay out");
            }));
        });
        assert_eq!(*sent.lock().unwrap(), ["stay out", "resume"]);
        assert!(matches!(status.get(), VmState::Running) && status.held().is_empty());
    }

    #[test]
    fn only_another_boot_ends_a_stop_and_only_a_resume_ends_a_hold() {
        let status = Status::new();
        assert!(status.hold(3, || ()) && status.hold(1, || ()));
        assert!(status.set(VmState::Paused, || ()));
        assert_eq!(status.held(), [1, 3]);
        assert!(status.set(VmState::Running, || ()));
        assert!(status.held().is_empty());
        assert!(status.hold(0, || ()) && status.set(stopped(), || ()));
        assert!(status.held().is_empty());
        let never = || panic!("nothing is sent");
        assert!(!status.set(VmState::Running, never) && !status.hold(0, never));
        assert!(matches!(status.wait_stopped(0, Duration::ZERO), Some((1, _))));
        assert!(status.wait_stopped(1, Duration::ZERO).is_none(), "this one is known");
        assert_eq!(status.boots(), 1);
        status.begin_boot(|| ());
        assert!(status.wait_stopped(0, Duration::ZERO).is_none());
        assert_eq!((status.held(), status.boots()), (vec![], 2));
    }
}
