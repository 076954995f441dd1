//! The errors of preflight.

/// The reason why the behaviour of the host's KVM is not known.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// KVM refused to make or run a probe guest.
    #[error("KVM cannot run a probe guest: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// Memory for it could not be mapped.
    #[error(transparent)]
    Memory(#[from] exoprobe_guest::memory::MemoryError),
    /// A probe guest's behaviour is not that of any known host.
    #[error("probe guest `{probe}`: {observed}; please report this host")]
    Unknown {
        /// The name of the probe guest.
        probe: &'static str,
        /// The observation.
        observed: String,
    },
}
