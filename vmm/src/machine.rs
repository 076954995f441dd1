//! The state that the threads of one machine share.

use std::sync::{Arc, OnceLock};

use crate::devices::{ConsoleWatch, PortBus};
use crate::profile::HostProfile;
use crate::status::{Status, StopReason, StopRecord, VmState};
use crate::vcpu::{Command, VcpuRemote};
use exoprobe_guest::ExitHook;
use exoprobe_guest::GuestRam;
use exoprobe_guest::HiddenMemory;
use exoprobe_guest::msr::EntryWatch;

/// The shared part of a machine: everything but the vCPUs' own descriptors.
pub(crate) struct Machine {
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) bus: PortBus,
    pub(crate) console_watch: Arc<ConsoleWatch>,
    pub(crate) profile: HostProfile,
    pub(crate) status: Status,
    pub(crate) vcpus: OnceLock<Vec<VcpuRemote>>,
    /// KVM exits at the write by which a kernel's entry is known.
    pub(crate) reports_kernel_entry: bool,
    /// Recognizes the kernel's entry, once a boot.
    pub(crate) entry: Arc<EntryWatch>,
    hook: OnceLock<Arc<dyn ExitHook>>,
    saved_msrs: Vec<u32>,
}

impl Machine {
    pub(crate) fn new(
        ram: GuestRam,
        hidden: HiddenMemory,
        bus: PortBus,
        console_watch: Arc<ConsoleWatch>,
        profile: HostProfile,
        reports_kernel_entry: bool,
        saved_msrs: Vec<u32>,
    ) -> Self {
        Self {
            ram,
            hidden,
            bus,
            console_watch,
            profile,
            status: Status::new(),
            vcpus: OnceLock::new(),
            reports_kernel_entry,
            entry: Arc::default(),
            hook: OnceLock::new(),
            saved_msrs,
        }
    }

    pub(crate) fn hook(&self) -> Option<&Arc<dyn ExitHook>> {
        self.hook.get()
    }

    /// Sets the hook; `false` if one is set already.
    pub(crate) fn set_hook(&self, hook: Arc<dyn ExitHook>) -> bool {
        self.hook.set(hook).is_ok()
    }

    /// Indices of the MSRs that KVM lists for snapshots.
    pub(crate) fn saved_msrs(&self) -> &[u32] {
        &self.saved_msrs
    }

    /// A reset or triple fault after a panic's message is that panic.
    pub(crate) fn refine(&self, reason: StopReason) -> StopReason {
        match (&reason, self.console_watch.message()) {
            (StopReason::Reset | StopReason::TripleFault, Some(message)) => {
                StopReason::Panic { message }
            }
            _ => reason,
        }
    }

    /// Records why the machine stops (the first reason stays) and halts all vCPUs except the
    /// reporting one.
    pub(crate) fn stop(&self, record: StopRecord) {
        let from = record.vcpu;
        tracing::info!(reason = ?record.reason, vcpu = from, "guest stopped");
        let stopped = VmState::Stopped(Box::new(record));
        self.status.set(stopped, || self.tell_others(from, || Command::Halt));
    }

    /// Has vCPU 0 stop the machine, if the text of its consoles says that the guest has stopped.
    /// Does not wait for that: a device's thread calls it, for whose end a vCPU may wait.
    pub(crate) fn check_consoles(&self) {
        if let Some(vcpu) = self.vcpus.get().and_then(|all| all.first()) {
            let _ = vcpu.thread().send(Command::CheckConsoles);
        }
    }

    /// Has vCPU 0 stop the machine: another of its threads has failed, as `message` says. Does not
    /// wait for that, as [`Self::check_consoles`].
    pub(crate) fn fail(&self, message: String) {
        if let Some(vcpu) = self.vcpus.get().and_then(|all| all.first()) {
            let _ = vcpu.thread().send(Command::Fail(message));
        }
    }

    /// Pauses the machine at a hit of vCPU `from`, which calls this; `false` when it has stopped.
    ///
    /// The vCPU waits for no thread. It does not wait for the other vCPUs, which stop when they
    /// read their queues. It does not wait for run control, whose lock may be held by a thread that
    /// waits for this vCPU's answer. So it cannot block a pause, a resume or a stop at the same
    /// time, and none of them can block it. The lock of the state orders them: the next resume
    /// resumes the vCPUs that this call pauses.
    pub(crate) fn hold(&self, from: u8) -> bool {
        self.status.hold(from, || self.tell_others(from, || Command::StayOut))
    }

    fn tell_others(&self, from: u8, command: fn() -> Command) {
        for (index, vcpu) in self.vcpus.get().into_iter().flatten().enumerate() {
            if index != usize::from(from) {
                let _ = vcpu.thread().send(command());
            }
        }
    }
}
