//! What the threads of one machine share.

use std::sync::{Arc, OnceLock};

use crate::devices::{ConsoleWatch, PortBus};
use crate::hidden::HiddenMemory;
use crate::hook::ExitHook;
use crate::host::HostProfile;
use crate::memory::GuestRam;
use crate::status::{Status, StopReason, StopRecord, VmState};
use crate::vcpu::{Command, VcpuRemote};

/// The shared part of a machine: everything but the vCPUs' own descriptors.
pub(crate) struct Machine {
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) bus: PortBus,
    pub(crate) console_watch: Arc<ConsoleWatch>,
    pub(crate) profile: HostProfile,
    pub(crate) status: Status,
    pub(crate) vcpus: OnceLock<Vec<VcpuRemote>>,
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
            hook: OnceLock::new(),
            saved_msrs,
        }
    }

    pub(crate) fn hook(&self) -> Option<&Arc<dyn ExitHook>> {
        self.hook.get()
    }

    /// Sets the hook; `false` when there is one already.
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

    /// Records why the machine stops (the first reason stays) and halts all vCPUs.
    pub(crate) fn stop(&self, record: StopRecord) {
        let from = record.vcpu;
        tracing::info!(reason = ?record.reason, vcpu = from, "guest stopped");
        if !self.status.set(VmState::Stopped(Box::new(record))) {
            return;
        }
        for (index, vcpu) in self.vcpus.get().into_iter().flatten().enumerate() {
            if index != usize::from(from) {
                let _ = vcpu.send(Command::Halt);
            }
        }
    }
}
