//! Oddities of some hosts' KVM, all of them. Hardware KVM needs nothing of this.

pub mod software_kvm;

pub use software_kvm::SoftwareKvm;
