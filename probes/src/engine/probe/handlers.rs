//! Handlers of a probe, which users of the library give, and the types that these see.

use exoprobe_guest::{GuestTime, Gva, kvm_regs};
use exoprobe_introspect::{GuestString, VirtualMemory, VirtualReadError};

use crate::definition::{ProbeDefinition, ProbeKind};
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::view::KernelView;
use crate::events::{Consumer, MemoryAtHit};

/// The decision of a pre-handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continue with the other probes, then the instruction.
    Continue,
    /// The handler set RIP itself: nothing more happens at this hit (a non-zero return of a
    /// pre_handler; kprobes.rst, "Changing Execution Path").
    Done,
}

/// The decision of an entry handler (kprobes.rst, "Kretprobe entry-handler").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryVerdict {
    /// The return handler is to run when the function returns.
    Follow,
    /// The call is not followed (a non-zero return of an entry_handler).
    Skip,
}

/// The decision of a fault handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The cause is removed: try the access again.
    Retry,
    /// The access fails.
    GiveUp,
}

/// Runs before the probed instruction, on the vCPU's thread.
pub type PreHandler = Box<dyn Fn(&mut Hit<'_>) -> Verdict + Send + Sync>;
/// Runs after the probed instruction, on the vCPU's thread.
pub type PostHandler = Box<dyn Fn(&mut Hit<'_>) + Send + Sync>;
/// Runs when a handler of its probe accesses guest memory that is not mapped. Faults of the probed
/// instruction itself are the guest's own and do not call it.
pub type FaultHandler = Box<dyn Fn(&mut kvm_regs, &VirtualReadError) -> Recovery + Send + Sync>;
/// Runs at the entry of a function whose return is to be followed.
pub type EntryHandler = Box<dyn Fn(&mut Instance, &mut Hit<'_>) -> EntryVerdict + Send + Sync>;
/// Runs when the function has returned, at its caller's next instruction.
pub type ReturnHandler = Box<dyn Fn(&mut Instance, &mut Hit<'_>) + Send + Sync>;

/// A kprobe to register.
#[derive(Default)]
pub struct Kprobe {
    /// Its place, actions and name.
    pub definition: ProbeDefinition,
    /// Called before the instruction, after the definition's actions.
    pub pre_handler: Option<PreHandler>,
    /// Called after it. The instruction is then emulated or stepped.
    pub post_handler: Option<PostHandler>,
    /// Called when a handler's access to guest memory fails.
    pub fault_handler: Option<FaultHandler>,
    /// Takes recorded hits in place of the event store.
    pub consumer: Option<Consumer>,
}

impl From<ProbeDefinition> for Kprobe {
    fn from(definition: ProbeDefinition) -> Self {
        Self { definition, ..Self::default() }
    }
}

/// A return probe to register.
#[derive(Default)]
pub struct Kretprobe {
    /// Its place, actions and name. Its kind may be omitted.
    pub definition: ProbeDefinition,
    /// Called when the function has returned, after the definition's actions.
    pub handler: Option<ReturnHandler>,
    /// Called at its entry.
    pub entry_handler: Option<EntryHandler>,
    /// Called when a handler's access to guest memory fails.
    pub fault_handler: Option<FaultHandler>,
    /// Bytes of [`Instance::data`], at most [`DATA_SIZE_MAX`].
    pub data_size: usize,
    /// Takes recorded hits in place of the event store.
    pub consumer: Option<Consumer>,
}

/// Most private bytes of an instance (KRETPROBE_MAX_DATA_SIZE).
pub const DATA_SIZE_MAX: usize = 4096;

impl From<ProbeDefinition> for Kretprobe {
    fn from(definition: ProbeDefinition) -> Self {
        Self { definition, ..Self::default() }
    }
}

/// Either kind of probe, for batches of both.
pub enum NewProbe {
    /// A kprobe.
    Kprobe(Kprobe),
    /// A return probe.
    Kretprobe(Kretprobe),
}

impl NewProbe {
    /// The definition.
    #[must_use]
    pub fn definition(&self) -> &ProbeDefinition {
        match self {
            Self::Kprobe(probe) => &probe.definition,
            Self::Kretprobe(probe) => &probe.definition,
        }
    }

    pub(crate) fn definition_mut(&mut self) -> &mut ProbeDefinition {
        match self {
            Self::Kprobe(probe) => &mut probe.definition,
            Self::Kretprobe(probe) => &mut probe.definition,
        }
    }
}

impl From<Kprobe> for NewProbe {
    fn from(probe: Kprobe) -> Self {
        Self::Kprobe(probe)
    }
}

impl From<Kretprobe> for NewProbe {
    fn from(probe: Kretprobe) -> Self {
        Self::Kretprobe(probe)
    }
}

impl From<ProbeDefinition> for NewProbe {
    /// The kind of probe that the definition names.
    fn from(definition: ProbeDefinition) -> Self {
        match definition.kind {
            ProbeKind::Kprobe => Self::Kprobe(definition.into()),
            ProbeKind::Kretprobe => Self::Kretprobe(definition.into()),
        }
    }
}

/// One call of a function that a return probe follows (kretprobe_instance).
#[derive(Debug)]
pub struct Instance {
    /// The return address.
    pub ret_addr: Gva,
    /// Guest time of the entry.
    pub entered: GuestTime,
    /// Private to this call, from entry handler to return handler; zero at entry.
    pub data: Box<[u8]>,
}

/// A hit as handlers see it: the registers, which they may change, and guest memory.
pub struct Hit<'a> {
    /// General registers. RIP is the probed address before the instruction, the next one after it,
    /// and the caller's when a function has returned.
    pub regs: &'a mut kvm_regs,
    pub(crate) vcpu: u8,
    pub(crate) time: GuestTime,
    pub(crate) memory: HitMemory<'a>,
    pub(crate) fault_handler: Option<&'a FaultHandler>,
    /// For a return: the kept arguments of the call as they were at its entry.
    pub(crate) kept: &'a [Option<u64>],
}

impl Hit<'_> {
    /// Index of the vCPU that hit.
    #[must_use]
    pub fn vcpu(&self) -> u8 {
        self.vcpu
    }

    /// Guest time of the hit.
    #[must_use]
    pub fn time(&self) -> GuestTime {
        self.time
    }

    /// The return value (regs_return_value): RAX.
    #[must_use]
    pub fn return_value(&self) -> u64 {
        self.regs.rax
    }

    /// Fills `buf` from guest memory: kernel memory by the kernel's page tables, user memory by the
    /// vCPU's.
    ///
    /// # Errors
    /// [`VirtualReadError`] if nothing is mapped and the fault handler did not help. The guest does
    /// not notice.
    pub fn read(&mut self, at: Gva, buf: &mut [u8]) -> Result<(), VirtualReadError> {
        self.access(at, |memory, gva| memory.read(gva, buf))
    }

    /// The 64-bit word at `at`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_u64(&mut self, at: Gva) -> Result<u64, VirtualReadError> {
        self.access(at, |memory, gva| memory.read_u64(gva))
    }

    /// The text at `at`, up to its end or `max` bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_text(&mut self, at: Gva, max: usize) -> Result<GuestString, VirtualReadError> {
        self.access(at, |memory, gva| memory.read_cstr(gva, max))
    }

    /// Writes guest memory, whatever the page's protection. Writes all of it or nothing.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, at: Gva, data: &[u8]) -> Result<(), VirtualReadError> {
        let ram = &self.memory.view.ram;
        self.access(at, |memory, gva| crate::engine::kernel::memory::write(ram, memory, gva, data))
    }

    /// The same hit, for the handlers of one probe.
    pub(crate) fn of<'a>(&'a mut self, fault_handler: Option<&'a FaultHandler>) -> Hit<'a> {
        let Hit { regs, vcpu, time, memory, kept, .. } = self;
        Hit { regs, vcpu: *vcpu, time: *time, memory: *memory, fault_handler, kept }
    }

    fn access<T>(
        &mut self,
        at: Gva,
        mut try_once: impl FnMut(&VirtualMemory<'_, KernelView>, Gva) -> Result<T, VirtualReadError>,
    ) -> Result<T, VirtualReadError> {
        let first = self.memory.with(at, |memory| try_once(memory, at));
        match (first, self.fault_handler) {
            (Err(fault), Some(handler)) if handler(self.regs, &fault) == Recovery::Retry => {
                self.memory.with(at, |memory| try_once(memory, at))
            }
            (result, _) => result,
        }
    }
}

impl MemoryAtHit for Hit<'_> {
    fn read(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        Hit::read(self, at, buf).is_ok()
    }
}
