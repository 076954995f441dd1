//! The errors of preflight.

/// Why the host could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// KVM refused to make or run a probe guest.
    #[error("KVM cannot run a probe guest: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// Memory for it could not be mapped.
    #[error(transparent)]
    Memory(#[from] exoprobe_guest::memory::MemoryError),
    /// It did something no known host does.
    #[error("probe guest `{probe}`: {observed}; please report this host")]
    Unknown {
        /// Which one.
        probe: &'static str,
        /// The observation.
        observed: String,
    },
}
