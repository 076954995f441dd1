//! The configuration of a machine, as plain data; `Vm::create` turns it into live objects.

use std::path::PathBuf;

/// Most vCPUs a machine can have: what fits the MP table's KiB.
pub const MAX_VCPUS: u8 = 16;
/// Least RAM, in MiB: a kernel at 16 MiB with room to run.
pub(crate) const MIN_MEMORY_MIB: u64 = 24;
/// Most RAM, in MiB (1 TiB).
pub(crate) const MAX_MEMORY_MIB: u64 = 1 << 20;

/// A guest to boot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Linux kernel: an ELF vmlinux or a bzImage.
    pub kernel: PathBuf,
    /// Initial RAM file system, if any.
    pub initramfs: Option<PathBuf>,
    /// Kernel command line; words that the host needs are added to it.
    pub cmdline: String,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Disks, `/dev/vda` and on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskConfig>,
}

/// A disk of the guest: a virtio block device over a raw file or a block device of the host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// The file.
    pub path: PathBuf,
    /// The effect of the guest's writes.
    #[serde(default)]
    pub mode: DiskMode,
}

/// The effect of a guest's writes to its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskMode {
    /// They go to the file, which no other machine may have.
    #[default]
    ReadWrite,
    /// They are refused. Several machines may share the file.
    ReadOnly,
    /// They go to a temporary file, which is gone with the machine. Several machines may share the
    /// file below.
    Overlay,
}

/// Most disks: slots of a PCI bus, without those of its bridge and of the random numbers.
pub const MAX_DISKS: usize = 30;

/// Why a configuration is refused before anything is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Outside 1 to [`MAX_VCPUS`].
    #[error("{0} vCPUs: give 1 to {MAX_VCPUS}")]
    Vcpus(u8),
    /// Outside `MIN_MEMORY_MIB` to `MAX_MEMORY_MIB`.
    #[error("{0} MiB of memory: give {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB}")]
    Memory(u64),
    /// More than [`MAX_DISKS`].
    #[error("{0} disks: give at most {MAX_DISKS}")]
    Disks(usize),
    /// The command line holds a NUL.
    #[error("the kernel command line contains a NUL byte")]
    CmdlineNul,
}

impl VmConfig {
    /// Checks all that needs no file.
    ///
    /// # Errors
    /// The first [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return Err(ConfigError::Vcpus(self.vcpus));
        }
        if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&self.memory_mib) {
            return Err(ConfigError::Memory(self.memory_mib));
        }
        if self.disks.len() > MAX_DISKS {
            return Err(ConfigError::Disks(self.disks.len()));
        }
        if self.cmdline.contains('\0') {
            return Err(ConfigError::CmdlineNul);
        }
        Ok(())
    }
}

/// Adds `words` to a kernel command line, before the words for init (after ` -- `).
#[must_use]
pub fn with_kernel_words(cmdline: &str, words: &str) -> String {
    match cmdline.split_once(" -- ") {
        Some((kernel, init)) => format!("{kernel} {words} -- {init}"),
        None => format!("{cmdline} {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let good = VmConfig {
            kernel: "vmlinux".into(),
            initramfs: None,
            cmdline: "quiet".into(),
            memory_mib: 32,
            vcpus: 1,
            disks: Vec::new(),
        };
        assert_eq!(good.validate(), Ok(()));
        let none = VmConfig { vcpus: 0, ..good.clone() };
        assert_eq!(none.validate(), Err(ConfigError::Vcpus(0)));
        let tiny = VmConfig { memory_mib: 1, ..good.clone() };
        assert_eq!(tiny.validate(), Err(ConfigError::Memory(1)));
        let nul = VmConfig { cmdline: "a\0b".into(), ..good };
        assert_eq!(nul.validate(), Err(ConfigError::CmdlineNul));
    }
}
