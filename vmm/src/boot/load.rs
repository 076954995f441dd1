//! Loads a guest from its configuration.

use super::bzimage::Unpacker;
use super::image;
use super::kernel::ImageError;
use super::registers::{self, BootEntry};
use super::{acpi, mptable, params};
use crate::config::VmConfig;
use crate::profile::HostProfile;
use exoprobe_guest::{GuestRam, OutsideMemory};

/// Why a guest cannot be booted from its configuration.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The kernel or initramfs is unusable.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The command line, with the host's additions, is too long.
    #[error("the kernel command line has {0} bytes; Linux takes {max}", max = crate::layout::CMDLINE_MAX - 1)]
    CmdlineTooLong(usize),
    /// RAM is too small for the fixed tables.
    #[error("guest memory is too small for the boot tables: {0}")]
    Tables(#[from] OutsideMemory),
}

/// Loads everything `config` names into `ram`; `cmdline` is the final command line.
///
/// # Errors
/// [`BootError`]; RAM may then be partly written.
pub(crate) fn load(
    ram: &GuestRam,
    config: &VmConfig,
    cmdline: &str,
    profile: HostProfile,
) -> Result<BootEntry, BootError> {
    if cmdline.len() >= crate::layout::CMDLINE_MAX {
        return Err(BootError::CmdlineTooLong(cmdline.len()));
    }
    let kernel = image::load_kernel(ram, &config.kernel, unpacker(cmdline, profile))?;
    let initramfs = match &config.initramfs {
        Some(path) => Some(image::load_initramfs(ram, path, &kernel)?),
        None => None,
    };
    let rsdp = acpi::write(ram, config.vcpus)?;
    params::write(ram, &kernel, initramfs, cmdline, rsdp)?;
    mptable::write(ram, config.vcpus)?;
    registers::write_boot_tables(ram)?;
    Ok(BootEntry { rip: kernel.entry })
}

/// Chooses whether the guest or the VMM unpacks a bzImage: see [`bzimage`].
fn unpacker(cmdline: &str, profile: HostProfile) -> Unpacker {
    match profile.software {
        None => Unpacker::Guest,
        // The kernel reads it in the same way (`choose_random_location`).
        Some(_) => {
            let mut kernel_words = cmdline.split_whitespace().take_while(|word| *word != "--");
            Unpacker::Vmm { kaslr: kernel_words.all(|word| word != "nokaslr") }
        }
    }
}
