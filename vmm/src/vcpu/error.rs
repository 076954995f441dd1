//! The errors of a vCPU's debugging.

use exoprobe_guest::VcpuError;

/// Why a vCPU does not step.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum StepError {
    /// The vCPU did not answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// KVM refused.
    #[error("KVM on this host does not single-step guests (KVM_GUESTDBG_SINGLESTEP): {0}")]
    Refused(kvm_ioctls::Error),
}
