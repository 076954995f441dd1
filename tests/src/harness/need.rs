//! What a case needs of the place it runs in.

use std::fs::{File, Metadata};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use exoprobe_vmm::{DEFAULT_KVM, Host};

/// A need of a case. Where it is missing, the case is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `/dev/kvm` opens.
    Kvm,
    /// KVM has VT-x or SVM below it: preflight chose no software quirk.
    HardwareKvm,
    /// `/dev/kvm` is closed to users outside its group.
    GuardedKvm,
    /// The right to become another user.
    Root,
    /// TCP connections to 127.0.0.1.
    Loopback,
}

const NEEDS: usize = Need::Loopback as usize + 1;

impl Need {
    /// Why this place lacks it; `None` when it does not. Looked at once a process.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        static FOUND: [OnceLock<Option<String>>; NEEDS] = [const { OnceLock::new() }; NEEDS];
        FOUND[self as usize].get_or_init(|| self.examine().err()).clone()
    }

    fn examine(self) -> Result<(), String> {
        match self {
            Self::Kvm => kvm_opens(),
            Self::HardwareKvm => kvm_is_hardware(),
            Self::GuardedKvm => require(
                metadata(DEFAULT_KVM)?.mode() & 0o006 == 0,
                &format!("{DEFAULT_KVM} is open to everybody"),
            ),
            // Its owner is the effective user.
            Self::Root => require(metadata("/proc/self")?.uid() == 0, "not run by root"),
            Self::Loopback => loopback_connects(),
        }
    }
}

fn require(given: bool, reason: &str) -> Result<(), String> {
    if given { Ok(()) } else { Err(reason.to_owned()) }
}

fn metadata(path: &str) -> Result<Metadata, String> {
    std::fs::metadata(path).map_err(|e| format!("{path}: {e}"))
}

fn kvm_opens() -> Result<(), String> {
    let opened = File::options().read(true).write(true).open(DEFAULT_KVM);
    opened.map(drop).map_err(|e| format!("{DEFAULT_KVM} does not open: {e}"))
}

fn kvm_is_hardware() -> Result<(), String> {
    let host = Host::open(Path::new(DEFAULT_KVM)).map_err(|e| e.to_string())?;
    require(host.profile().software.is_none(), "KVM here is software only")
}

fn loopback_connects() -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let connected = listener.and_then(|listener| TcpStream::connect(listener.local_addr()?));
    connected.map(drop).map_err(|e| format!("no TCP to 127.0.0.1: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_is_met_or_says_why_not_and_stays_so() {
        let all = [Need::Kvm, Need::HardwareKvm, Need::GuardedKvm, Need::Root, Need::Loopback];
        assert_eq!(all.len(), NEEDS);
        for need in all {
            let missing = need.missing();
            assert_ne!(missing.as_deref(), Some(""), "{need:?}");
            assert_eq!(need.missing(), missing, "{need:?}");
        }
    }

    #[test]
    fn hardware_kvm_is_missing_exactly_where_preflight_finds_software_or_nothing() {
        let software = Host::open(Path::new(DEFAULT_KVM))
            .map_or(true, |host| host.profile().software.is_some());
        assert_eq!(Need::HardwareKvm.missing().is_some(), software);
    }
}
