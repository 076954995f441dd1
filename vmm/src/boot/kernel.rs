//! An ELF kernel in RAM, and the parts shared with a bzImage.

use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use linux_loader::loader::bootparam::setup_header;
use linux_loader::loader::{Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{GuestAddress, ReadVolatile};

use super::payload::PayloadError;
use crate::layout::HIGH_RAM_START;
use exoprobe_guest::Gpa;
use exoprobe_guest::GuestRam;
use exoprobe_guest::layout::MMIO_GAP_START;

const ELFCLASS64: u8 = 2;
pub(super) const EM_X86_64: u16 = 62;

/// Why a kernel or initramfs file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// It has no bytes.
    #[error("{0} is empty")]
    Empty(PathBuf),
    /// Neither an ELF file nor a bzImage.
    #[error("{0} is no Linux kernel image: give an ELF vmlinux or a bzImage")]
    NotAKernel(PathBuf),
    /// A kernel for some other machine.
    #[error("{path} is not for x86-64 ({found})")]
    NotX86_64 {
        /// The file.
        path: PathBuf,
        /// The machine that it is for.
        found: String,
    },
    /// The file ends early, or its parts do not fit in RAM.
    #[error(
        "{path} cannot be loaded into {mib} MiB of guest memory: {reason}; the file is truncated or memory too small"
    )]
    Load {
        /// The file.
        path: PathBuf,
        /// RAM in MiB.
        mib: u64,
        /// The loader's message.
        reason: String,
    },
    /// The kernel that a bzImage carries cannot be unpacked.
    #[error("{path} cannot be unpacked: {source}")]
    Payload {
        /// The bzImage.
        path: PathBuf,
        /// The reason.
        source: PayloadError,
    },
    /// The initramfs does not fit beside the kernel.
    #[error(
        "initramfs {path} has {size} bytes; {room} bytes of guest memory are free above the kernel: give {needed_mib} MiB of memory or more"
    )]
    InitramfsTooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// Bytes free.
        room: u64,
        /// Least RAM in MiB that both fit into.
        needed_mib: u64,
    },
}

/// A kernel in RAM.
pub(super) struct LoadedKernel {
    /// First instruction.
    pub(super) entry: Gpa,
    /// First byte that the kernel, unpacked, does not use.
    pub(super) end: Gpa,
    /// The setup header of a bzImage.
    pub(super) header: Option<setup_header>,
}

pub(super) fn load_elf<F: Read + ReadVolatile + Seek>(
    ram: &GuestRam,
    path: &Path,
    file: &mut F,
    head: &[u8],
) -> Result<LoadedKernel, ImageError> {
    let class = head.get(4).copied();
    let machine = head.get(18..20).map(|b| u16::from_le_bytes([b[0], b[1]]));
    if class != Some(ELFCLASS64) || machine != Some(EM_X86_64) {
        let found = format!("ELF class {}, machine {}", class.unwrap_or(0), machine.unwrap_or(0));
        return Err(ImageError::NotX86_64 { path: path.to_owned(), found });
    }
    let start = Some(GuestAddress(HIGH_RAM_START.0));
    let loaded =
        Elf::load(ram.as_vm_memory(), None, file, start).map_err(|e| load_error(ram, path, &e))?;
    check_end(ram, path, &loaded)?;
    Ok(LoadedKernel { entry: Gpa(loaded.kernel_load.0), end: Gpa(loaded.kernel_end), header: None })
}

pub(super) fn load_error(ram: &GuestRam, path: &Path, error: &dyn ToString) -> ImageError {
    ImageError::Load { path: path.to_owned(), mib: ram.size() >> 20, reason: error.to_string() }
}

pub(super) fn check_end(
    ram: &GuestRam,
    path: &Path,
    loaded: &KernelLoaderResult,
) -> Result<(), ImageError> {
    if loaded.kernel_end > low_ram_end(ram) || loaded.kernel_end <= HIGH_RAM_START.0 {
        return Err(ImageError::Load {
            path: path.to_owned(),
            mib: ram.size() >> 20,
            reason: format!("the kernel ends at {:#x}", loaded.kernel_end),
        });
    }
    Ok(())
}

pub(super) fn low_ram_end(ram: &GuestRam) -> u64 {
    ram.end().0.min(MMIO_GAP_START)
}
