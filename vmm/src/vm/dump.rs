//! Dumps: RAM and registers at one moment, also of a stopped guest.

use std::path::Path;
use std::time::{Duration, Instant};

use exoprobe_guest::DumpNotes;

use super::control::Vm;
use super::error::ControlError;
use crate::dump::{self, Dump};
use crate::progress::WriteProgress;
use crate::status::VmState;
use exoprobe_guest::kvm::VcpuThread;

impl Vm {
    /// Writes RAM and registers to `path` as an ELF core. Calls `notes` when all vCPUs are out of
    /// the guest; drops the first value that it returns when the file is written. A running guest
    /// stands still meanwhile. A stopped guest is written in its last state. Without `force`, an
    /// existing file is kept.
    ///
    /// # Errors
    /// [`ControlError`]; the guest continues as before. A guest that a hook holds meanwhile stays
    /// held, without an error.
    pub fn dump<G>(
        &self,
        path: &Path,
        force: bool,
        progress: &WriteProgress,
        notes: impl FnOnce() -> (G, DumpNotes),
    ) -> Result<Dump, ControlError> {
        let _control = self.lock();
        let begun = Instant::now();
        let was_running = match self.state() {
            VmState::Stopped(_) => false,
            _ => match self.pause_locked() {
                Err(ControlError::Stopped) => false,
                paused => paused?,
            },
        };
        let written = self.write_dump(path, force, progress, notes);
        // A hook may have held the guest just before the pause.
        if was_running && self.held().is_empty() {
            match self.resume_locked() {
                Ok(()) | Err(ControlError::Stopped) => {}
                Err(error) => return Err(error),
            }
        }
        let stood = if was_running { begun.elapsed() } else { Duration::ZERO };
        Ok(Dump { bytes: written?, stood })
    }

    fn write_dump<G>(
        &self,
        path: &Path,
        force: bool,
        progress: &WriteProgress,
        notes: impl FnOnce() -> (G, DumpNotes),
    ) -> Result<u64, ControlError> {
        let (_kept, notes) = notes();
        let registers = self.vcpus().map(VcpuThread::registers);
        let registers = registers.collect::<Result<Vec<_>, _>>()?;
        Ok(dump::write(path, force, progress, &self.machine.ram, &registers, &notes)?)
    }
}
