//! Probes that go with a value.

use std::ops::Deref;

use crate::engine::control::register::Registration;
use crate::engine::facade::batch::{Batch, Selection};
use crate::engine::facade::engine::Engine;
use crate::error::BatchError;

/// Registered probes. Dropping it unregisters those that are still there; an error of that is
/// logged, and the probes are gone all the same. Not to be dropped by a handler, which runs on a
/// vCPU's thread.
#[must_use = "the probes are unregistered when it is dropped"]
pub struct ScopedProbes<'a> {
    engine: &'a Engine,
    probes: Vec<Registration>,
}

impl Deref for ScopedProbes<'_> {
    type Target = [Registration];

    fn deref(&self) -> &[Registration] {
        &self.probes
    }
}

impl Drop for ScopedProbes<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.engine.unregister_referenced(Selection::from(&**self)) {
            tracing::warn!(%error, "unregistering probes that go with a value");
        }
    }
}

impl Engine {
    /// As [`Self::register`], until the value is dropped.
    ///
    /// ```no_run
    /// use exoprobe_probes::{Engine, parse_line};
    ///
    /// # fn example(engine: &Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// {
    ///     let _probe = engine.register_scoped(parse_line("p:getpid __x64_sys_getpid")?)?;
    ///     std::thread::sleep(std::time::Duration::from_secs(1));
    ///     println!("{} calls", engine.show("kprobes", "getpid")?.hits);
    /// }
    /// assert!(engine.show("kprobes", "getpid").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_scoped(&self, batch: impl Into<Batch>) -> Result<ScopedProbes<'_>, BatchError> {
        Ok(ScopedProbes { engine: self, probes: self.register(batch)? })
    }
}
