//! The driver's kicks: how its notifications reach the thread of a device.

use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::EventFd;

/// The machine's way to turn a guest's write into an event without an exit to user space.
pub(crate) trait Ioevents: Send + Sync {
    /// Has writes to this guest-physical address signal the event. Returns whether they do.
    fn place(&self, at: u64, event: &EventFd) -> bool;
    /// Ends that.
    fn remove(&self, at: u64, event: &EventFd);
}

impl Ioevents for VmFd {
    fn place(&self, at: u64, event: &EventFd) -> bool {
        self.register_ioevent(event, &IoEventAddress::Mmio(at), NoDatamatch).is_ok()
    }

    fn remove(&self, at: u64, event: &EventFd) {
        let removed = self.unregister_ioevent(event, &IoEventAddress::Mmio(at), NoDatamatch);
        if let Err(error) = removed {
            tracing::warn!(%error, "a device's notifications stay where they were");
        }
    }
}

/// The kick of a queue.
struct Kick {
    event: EventFd,
    /// Guest-physical address that the machine has it at.
    at: Option<u64>,
}

/// The kicks of a device's queues, while it runs.
pub(super) struct Kicks {
    machine: Arc<dyn Ioevents>,
    queues: Vec<Option<Kick>>,
}

impl Kicks {
    /// Of a device with so many queues, which does not run.
    pub(super) fn new(machine: Arc<dyn Ioevents>, queues: usize) -> Self {
        Self { machine, queues: (0..queues).map(|_| None).collect() }
    }

    /// Sets the event of a queue.
    pub(super) fn set(&mut self, queue: usize, event: EventFd) {
        self.queues[queue] = Some(Kick { event, at: None });
    }

    /// Kicks a queue, after an exit to user space; one that is not served is not kicked.
    pub(super) fn kick(&self, queue: usize) {
        if let Some(Some(kick)) = self.queues.get(queue) {
            // It counts up to 2^64 - 2: no driver gets there.
            drop(kick.event.write(1));
        }
    }

    /// Has the machine kick the queues, whose addresses begin at `first` and are `step` bytes
    /// apart; with none, it kicks no more. Where it cannot, user space kicks.
    pub(super) fn place(&mut self, first: Option<u64>, step: u64) {
        for (number, kick) in self.queues.iter_mut().enumerate() {
            let Some(kick) = kick else { continue };
            let wanted = first.map(|first| first + step * number as u64);
            if kick.at == wanted {
                continue;
            }
            if let Some(at) = kick.at.take() {
                self.machine.remove(at, &kick.event);
            }
            kick.at = wanted.filter(|at| self.machine.place(*at, &kick.event));
        }
    }

    /// Ends all.
    pub(super) fn clear(&mut self) {
        self.place(None, 0);
        self.queues.iter_mut().for_each(|kick| *kick = None);
    }
}

/// A machine for tests.
#[cfg(any(test, feature = "testing"))]
pub(super) mod driven {
    use std::collections::BTreeMap;
    use std::os::fd::{AsRawFd, RawFd};
    use std::sync::Mutex;

    use super::{EventFd, Ioevents};
    use crate::devices::pci::lock;

    /// Knows which event is where, and signals none. As KVM, it has one at an address.
    #[derive(Default)]
    pub(in super::super) struct Places(pub(in super::super) Mutex<BTreeMap<u64, RawFd>>);

    impl Ioevents for Places {
        fn place(&self, at: u64, event: &EventFd) -> bool {
            let mut places = lock(&self.0);
            let is_free = !places.contains_key(&at);
            if is_free {
                places.insert(at, event.as_raw_fd());
            }
            is_free
        }

        fn remove(&self, at: u64, event: &EventFd) {
            let removed = lock(&self.0).remove(&at);
            assert_eq!(removed, Some(event.as_raw_fd()), "it was placed there");
        }
    }
}
