//! Which pages of a guest's RAM were written, so that a search of all RAM need not stop the guest.

mod host_writes;
mod pagemap;
mod pages;
mod touched;

pub(crate) use host_writes::HostWrites;
pub use host_writes::LoggedHostWrites;
pub(crate) use pagemap::Pagemap;
pub use pages::{PageRun, PageSet, WORD_PAGES};

use vmm_sys_util::errno::Error;

/// A log of the pages that are written, open until it is dropped. [`crate::Guest::log_writes`]
/// opens it.
///
/// It covers the stores of vCPUs, and those that KVM makes for them. Stores of the host by
/// [`crate::GuestRam`] are in a log of their own ([`crate::GuestRam::log_host_writes`]).
pub trait DirtyLog {
    /// Adds to `pages` all pages that were written since they were last cleared. May add others.
    ///
    /// # Errors
    /// [`DirtyLogError`]; `pages` may then lack some.
    fn read(&mut self, pages: &mut PageSet) -> Result<(), DirtyLogError>;

    /// Clears pages. Once this returns, a page of the run that is stored to will be in the log
    /// again, and each store from before is in RAM.
    ///
    /// # Errors
    /// [`DirtyLogError`].
    fn clear(&mut self, pages: &PageRun) -> Result<(), DirtyLogError>;
}

/// The reason why writes of the guest are not logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirtyLogError {
    /// The VMM or its host cannot; with the reason.
    #[error("the guest's writes cannot be logged: {0}")]
    Unsupported(&'static str),
    /// Another log is open.
    #[error("the guest's writes are logged already")]
    InUse,
    /// KVM refused.
    #[error("KVM refused to {step}: {source}")]
    Kvm {
        /// The step.
        step: &'static str,
        /// KVM's error.
        source: Error,
    },
}
