//! The host as this crate found it: decided once, by trying, in [`crate::preflight`].

use std::path::{Path, PathBuf};

use kvm_bindings::{CpuId, KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::{Cap, Kvm};

use crate::preflight::{self, PreflightError};
use crate::profile::HostProfile;
use crate::threads::ThreadHook;

/// The default path of KVM.
pub const DEFAULT_KVM: &str = "/dev/kvm";

/// An open, examined KVM.
pub struct Host {
    kvm: Kvm,
    profile: HostProfile,
    /// Read once: on a virtual host each CPUID instruction exits.
    supported_cpuid: CpuId,
    thread_hook: Option<ThreadHook>,
}

/// Why this host cannot run guests.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The device is not there.
    #[error(
        "{0} does not exist: load kvm_intel or kvm_amd (`modprobe kvm_intel`), enable virtualization in the firmware, or, in a VM, nested virtualization"
    )]
    Missing(PathBuf),
    /// The device is there and closed to this user.
    #[error(
        "no permission to open {0}: run as root, or join its group (`sudo usermod -aG kvm $USER`, then log in again)"
    )]
    Permission(PathBuf),
    /// Any other error of opening it.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The device.
        path: PathBuf,
        /// The host's error.
        source: kvm_ioctls::Error,
    },
    /// The device is not KVM.
    #[error("{path} is no KVM device (KVM_GET_API_VERSION gave {version}, not {expected})", expected = KVM_API_VERSION)]
    NotKvm {
        /// The device.
        path: PathBuf,
        /// The version that it returned.
        version: i32,
    },
    /// KVM lacks a capability that this crate needs.
    #[error("KVM on this host lacks {0}; Linux 5.10 or later has it")]
    Capability(&'static str),
    /// KVM does not list the CPUID that it supports.
    #[error("cannot list the CPUID of KVM's guests: {0}")]
    Cpuid(#[source] kvm_ioctls::Error),
    /// A probe guest did not behave as on any known host.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
}

const NEEDED: [(Cap, &str); 7] = [
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::Pit2, "KVM_CAP_PIT2"),
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
    (Cap::SetGuestDebug, "KVM_CAP_SET_GUEST_DEBUG"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::GetTscKhz, "KVM_CAP_GET_TSC_KHZ"),
];

impl Host {
    /// Opens `path` and runs the probe guests.
    ///
    /// # Errors
    /// [`HostError`]; its text says what to do.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let kvm = open_kvm(path)?;
        for (cap, name) in NEEDED {
            if !kvm.check_extension(cap) {
                return Err(HostError::Capability(name));
            }
        }
        let supported_cpuid =
            kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(HostError::Cpuid)?;
        let profile = preflight::examine(&kvm, &supported_cpuid)?;
        Ok(Self { kvm, profile, supported_cpuid, thread_hook: None })
    }

    /// Has each thread of the machines that are made from now on call `hook` before its work. The
    /// vCPUs' threads run before [`crate::Vm::start`], and wait for it.
    #[must_use]
    pub fn with_thread_hook(self, hook: ThreadHook) -> Self {
        Self { thread_hook: Some(hook), ..self }
    }

    /// The results of preflight.
    #[must_use]
    pub fn profile(&self) -> HostProfile {
        self.profile
    }

    /// The CPUID that KVM can give a guest (KVM_GET_SUPPORTED_CPUID).
    pub(crate) fn supported_cpuid(&self) -> &CpuId {
        &self.supported_cpuid
    }

    pub(crate) fn thread_hook(&self) -> Option<&ThreadHook> {
        self.thread_hook.as_ref()
    }

    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
    }
}

fn open_kvm(path: &Path) -> Result<Kvm, HostError> {
    let missing = || HostError::Missing(path.to_owned());
    let name =
        std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| missing())?;
    let kvm = Kvm::new_with_path(&name).map_err(|source| match source.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => missing(),
        libc::EACCES | libc::EPERM => HostError::Permission(path.to_owned()),
        _ => HostError::Open { path: path.to_owned(), source },
    })?;
    let version = kvm.get_api_version();
    if u32::try_from(version) != Ok(KVM_API_VERSION) {
        return Err(HostError::NotKvm { path: path.to_owned(), version });
    }
    Ok(kvm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_and_a_wrong_one_say_what_to_do() {
        let missing = Host::open(Path::new("/nonexistent/kvm")).err().unwrap();
        assert!(matches!(missing, HostError::Missing(_)));
        assert!(missing.to_string().contains("modprobe"));
        let other = Host::open(Path::new("/dev/null")).err().unwrap();
        assert!(matches!(other, HostError::NotKvm { .. }));
    }
}
