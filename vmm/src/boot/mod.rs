//! Loads a kernel, its initramfs and boot parameters into RAM, and returns the start of the first
//! vCPU (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").

mod acpi;
mod bzimage;
mod cpuid;
mod image;
mod kernel;
mod load;
mod mptable;
mod params;
mod payload;
mod registers;
mod relocs;

pub(crate) use cpuid::for_vcpu as cpuid_for_vcpu;
#[cfg(test)]
pub(crate) use image::tests::elf;
pub use kernel::ImageError;
pub use load::BootError;
pub(crate) use load::load;
pub use payload::{Format as PayloadFormat, PayloadError};
pub(crate) use registers::{BootEntry, application_msrs, set_boot_registers};
