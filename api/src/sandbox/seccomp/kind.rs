//! Kinds of threads of the service.

use exoprobe_vmm::ThreadKind;

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A thread of the machine.
    Machine(ThreadKind),
    /// The main thread, those that answer requests, and those that carry them out.
    Service,
    /// Does the engine's regular work.
    Drainer,
    /// Gives freed memory back to the host.
    Memory,
    /// Watches the output of a port.
    Output,
}

impl Kind {
    /// All kinds.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let machine = ThreadKind::ALL.into_iter().map(Self::Machine);
        machine.chain([Self::Service, Self::Drainer, Self::Memory, Self::Output]).collect()
    }

    /// Its name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine(kind) => kind.name(),
            Self::Service => "service",
            Self::Drainer => "drainer",
            Self::Memory => "memory",
            Self::Output => "output",
        }
    }
}
