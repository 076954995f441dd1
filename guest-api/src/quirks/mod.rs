//! What is odd about some hosts' KVM, and nowhere else is. Hardware KVM needs nothing of this.

pub mod software_kvm;

pub use software_kvm::SoftwareKvm;
