//! The handle that other threads have of a vCPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use exoprobe_guest::kvm::VcpuThread;

use super::command::Command;
use super::exits::{ExitCounters, ExitCounts};
use super::stats::{KvmStats, StatsError};

/// The way by which other threads reach a vCPU.
pub(crate) struct VcpuRemote {
    thread: VcpuThread<Command>,
    exits: Arc<ExitCounters>,
    stats: KvmStats,
}

impl VcpuRemote {
    /// Makes the handle of a vCPU's `thread`.
    pub(super) fn new(
        thread: VcpuThread<Command>,
        exits: Arc<ExitCounters>,
        stats: KvmStats,
    ) -> Self {
        Self { thread, exits, stats }
    }

    /// Its thread, to send commands to.
    pub(crate) fn thread(&self) -> &VcpuThread<Command> {
        &self.thread
    }

    /// Ends the thread and waits for it.
    pub(crate) fn join(&self) {
        let _ = self.thread.send(Command::Exit);
        if self.thread.join().is_err() {
            tracing::error!(vcpu = self.thread.index(), "vCPU thread panicked");
        }
    }

    /// Exits to user space so far.
    pub(crate) fn exit_counts(&self) -> ExitCounts {
        self.exits.snapshot()
    }

    /// KVM's statistics now.
    pub(crate) fn kvm_stats(&self) -> Result<BTreeMap<String, u64>, StatsError> {
        self.stats.read()
    }
}
