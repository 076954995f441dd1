//! The handle that other threads have of a vCPU.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::command::{Command, Reply};
use super::exits::{ExitCounters, ExitCounts};
use super::kick;
use super::stats::{KvmStats, StatsError};
use exoprobe_guest::VcpuError;

/// The way by which other threads reach a vCPU.
pub(crate) struct VcpuRemote {
    index: u8,
    commands: Sender<Command>,
    /// Taken out before it is joined, so that no ended thread is kicked.
    thread: Mutex<Option<JoinHandle<()>>>,
    exits: Arc<ExitCounters>,
    stats: KvmStats,
}

impl VcpuRemote {
    /// Makes the handle of vCPU `index`, whose commands `thread` reads.
    pub(super) fn new(
        index: u8,
        commands: Sender<Command>,
        thread: JoinHandle<()>,
        exits: Arc<ExitCounters>,
        stats: KvmStats,
    ) -> Self {
        Self { index, commands, thread: Mutex::new(Some(thread)), exits, stats }
    }

    /// Sends a command that has no answer.
    pub(crate) fn send(&self, command: Command) -> Result<(), VcpuError> {
        self.commands.send(command).map_err(|_| VcpuError::Gone(self.index))?;
        self.kick();
        Ok(())
    }

    /// Sends a command without waiting. The returned value receives the answer.
    pub(crate) fn begin<T>(
        &self,
        make: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<Pending<T>, VcpuError> {
        let (reply, answer) = sync_channel(1);
        self.send(make(reply))?;
        Ok(Pending { index: self.index, answer })
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, VcpuError> {
        self.begin(make)?.wait()
    }

    fn kick(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            kick::kick(thread);
        }
    }

    /// Ends the thread and waits for it.
    pub(crate) fn join(&self) {
        let _ = self.send(Command::Exit);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(vcpu = self.index, "vCPU thread panicked");
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

/// An answer that has not arrived yet.
pub(crate) struct Pending<T> {
    index: u8,
    answer: Receiver<Result<T, kvm_ioctls::Error>>,
}

impl<T> Pending<T> {
    pub(crate) fn wait(self) -> Result<T, VcpuError> {
        let answer = self.answer.recv().map_err(|_| VcpuError::Gone(self.index))?;
        answer.map_err(VcpuError::Kvm)
    }
}
