//! What is read of the guest for whoever asks.

use exoprobe_introspect::SymbolTable;
use exoprobe_vmm::Gva;

use super::Engine;
use super::tasks::{Process, Tasks};
use crate::error::{AttachError, ProbeError};

impl Engine {
    /// The symbols: where the running kernel has them (KASLR), or, before it begins, as they were given.
    ///
    /// # Errors
    /// [`ProbeError::Attach`], where none were given and the kernel's own cannot be read, or not yet.
    pub fn symbols(&self) -> Result<SymbolTable, ProbeError> {
        let mut registry = self.lock();
        let kernel = self.path.attach(&mut registry, self.guest.as_ref());
        match (kernel, &self.path.symbols) {
            (Ok(Some(kernel)), _) => Ok(kernel.symbols.clone()),
            (_, Some(given)) => Ok(given.clone()),
            (Ok(None), None) => Err(AttachError::Booting.into()),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Reads the kernel's memory at a virtual address.
    ///
    /// # Errors
    /// [`ProbeError::Read`] where nothing is mapped, [`ProbeError::Attach`].
    pub fn read_memory(&self, at: Gva, buf: &mut [u8]) -> Result<(), ProbeError> {
        let mut registry = self.lock();
        let kernel = self.path.attach(&mut registry, self.guest.as_ref())?;
        let kernel = kernel.ok_or(AttachError::Booting)?;
        Ok(kernel.memory().read(at, buf)?)
    }

    /// The guest's processes, while its vCPUs stand still, in the order in which they began.
    ///
    /// # Errors
    /// [`ProbeError::Attach`], [`ProbeError::Tasks`] where the kernel does not tell them, or not yet.
    pub fn processes(&self) -> Result<Vec<Process>, ProbeError> {
        let mut registry = self.lock();
        let kernel = self.path.attach(&mut registry, self.guest.as_ref())?;
        let kernel = kernel.ok_or(AttachError::Booting)?;
        let mut found = None;
        self.guest.with_vcpus_still(&mut |_| {
            found = Some(match kernel.tasks() {
                Some(tasks) => tasks.processes(&kernel),
                None => Tasks::find(&kernel, self.guest.vcpus())
                    .and_then(|tasks| tasks.processes(&kernel)),
            });
        })?;
        Ok(found.expect("it was called")?)
    }
}
