//! Snapshots: writes the whole machine to a file.

use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::control::Vm;
use super::error::ControlError;
use crate::new_file::NewFile;
use crate::progress::WriteProgress;
use crate::snapshot::{self, Chips, SnapshotError, SnapshotMeta};
use crate::status::VmState;
use crate::vcpu::Command;

impl Vm {
    /// Writes the whole machine to `path`; a running guest is paused meanwhile. The file gets its
    /// name when all of it is on the disk. It replaces a regular file of that name, and nothing
    /// else.
    ///
    /// # Errors
    /// [`ControlError`]; the guest continues as before. [`ControlError::Held`] if a hook holds it,
    /// also one that does so meanwhile: it stays paused then.
    pub fn snapshot(&self, path: &Path) -> Result<(), ControlError> {
        self.snapshot_if(path, &Arc::default(), || Some(())).map(drop)
    }

    /// As [`Self::snapshot`], if `permit` allows it; `false` otherwise. `permit` is called when the
    /// vCPUs are out of the guest, and its result is kept until they may run again: a lock taken in
    /// it, and not around this call, may also be taken by a hook's `ExitHook::reset`.
    /// [`Self::snapshot_progress`] returns `progress` meanwhile, and may end it.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; [`SnapshotError::Ended`].
    pub fn snapshot_if<G>(
        &self,
        path: &Path,
        progress: &Arc<WriteProgress>,
        permit: impl FnOnce() -> Option<G>,
    ) -> Result<bool, ControlError> {
        let control = self.lock();
        progress.check().map_err(SnapshotError::from)?;
        let was_running = self.pause_locked()?;
        if !self.held().is_empty() {
            return Err(ControlError::Held);
        }
        *self.writing() = Some(Arc::clone(progress));
        let written = permit().map(|_permit| {
            let pci = self.machine.bus.pci();
            pci.pause();
            let written = self.write_snapshot(path, progress);
            pci.resume();
            written
        });
        let resumed = if was_running { self.resume_locked() } else { Ok(()) };
        // The guest need not wait for the disk.
        drop(control);
        let named = resumed.and_then(|()| finish_snapshot(written.transpose()?, progress));
        let mut writing = self.writing();
        // Another snapshot may have begun.
        if writing.as_ref().is_some_and(|writing| Arc::ptr_eq(writing, progress)) {
            *writing = None;
        }
        named
    }

    /// The snapshot that is being written, until its file has its name or it has failed. Does not
    /// wait.
    #[must_use]
    pub fn snapshot_progress(&self) -> Option<Arc<WriteProgress>> {
        self.writing().clone()
    }

    /// Locked only for short times.
    fn writing(&self) -> MutexGuard<'_, Option<Arc<WriteProgress>>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_snapshot(
        &self,
        path: &Path,
        progress: &WriteProgress,
    ) -> Result<NewFile, ControlError> {
        // In the direction of interrupts: an edge between two steps is then in the later one, and
        // at worst occurs twice.
        let serial = [self.serial[0].snapshot(), self.serial[1].snapshot()];
        let chips = Chips::save(&self.fd)?;
        let mut vcpus = Vec::new();
        for vcpu in self.vcpus() {
            vcpus.push(*vcpu.ask(Command::Save)?);
        }
        // A device that has failed at its pause is not as its driver sees it. vCPU 0 has learned
        // of it before it was saved.
        if matches!(self.state(), VmState::Stopped(_)) {
            return Err(ControlError::Stopped);
        }
        let disks: std::io::Result<_> =
            self.devices.disks.iter().map(|disk| disk.identity()).collect();
        let meta = SnapshotMeta {
            config: self.config.clone(),
            time: self.clock.now(),
            tsc_khz: self.clock.khz(),
            hidden_base: self.machine.hidden.base(),
            vcpus,
            serial,
            pci: self.machine.bus.pci().save(),
            power: self.machine.bus.power().save(),
            disks: disks.map_err(ControlError::Disk)?,
            console: self.devices.console.as_ref().map(|console| console.save()),
            chips,
            clock: self.fd.get_clock()?,
        };
        Ok(snapshot::write(path, progress, &meta, &self.machine.ram, &self.machine.hidden)?)
    }
}

/// Gives a snapshot's file its name; `false` if there is none.
fn finish_snapshot(
    written: Option<NewFile>,
    progress: &WriteProgress,
) -> Result<bool, ControlError> {
    let Some(file) = written else { return Ok(false) };
    file.sync().map_err(SnapshotError::from)?;
    progress.check().map_err(SnapshotError::from)?;
    file.finish(true).map_err(SnapshotError::from)?;
    Ok(true)
}
