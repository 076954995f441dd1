//! Quirks of some hosts' KVM, all of them. Hardware KVM needs none of this.

pub mod software_kvm;

pub use software_kvm::SoftwareKvm;
