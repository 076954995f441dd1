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
    /// A guest with more than one vCPU.
    Smp,
    /// KVM can single-step a guest's kernel mode.
    SingleStep,
    /// A distribution's kernel as a guest: `stock/bzImage` among the guest's files.
    StockKernel,
}

/// Names what a place lacks that only its owner knows: `need=reason`, several with `;` between.
pub const LACKS_ENV: &str = "EXOPROBE_TEST_LACKS";

/// All needs, with their names in [`LACKS_ENV`].
const NAMES: [(Need, &str); 8] = [
    (Need::Kvm, "kvm"),
    (Need::HardwareKvm, "hardware_kvm"),
    (Need::GuardedKvm, "guarded_kvm"),
    (Need::Root, "root"),
    (Need::Loopback, "loopback"),
    (Need::Smp, "smp"),
    (Need::SingleStep, "single_step"),
    (Need::StockKernel, "stock_kernel"),
];

/// A text of [`LACKS_ENV`] that nobody can follow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LACKS_ENV}: `{0}` is not NEED=REASON with a need that tests have")]
pub(super) struct LacksError(String);

/// Reads a text of [`LACKS_ENV`].
pub(super) fn parse_lacks(text: &str) -> Result<Vec<(Need, String)>, LacksError> {
    let entries = text.split(';').map(str::trim).filter(|entry| !entry.is_empty());
    let parse = |entry: &str| {
        let (name, reason) = entry.split_once('=')?;
        let (need, _) = NAMES.iter().find(|(_, known)| *known == name)?;
        Some((*need, reason.to_owned()))
    };
    entries.map(|entry| parse(entry).ok_or_else(|| LacksError(entry.to_owned()))).collect()
}

impl Need {
    /// Why this place lacks it; `None` when it does not. Looked at once a process.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        static FOUND: [OnceLock<Option<String>>; NAMES.len()] =
            [const { OnceLock::new() }; NAMES.len()];
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
            // KVM has these, so that their absence can only be told.
            Self::Smp | Self::SingleStep => Ok(()),
            Self::StockKernel => {
                let kernel = crate::guest::guest_folder().join("out/stock/bzImage");
                require(kernel.exists(), "no such kernel here: `make lab-stock` has one")
            }
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
        for (at, (need, _)) in NAMES.into_iter().enumerate() {
            assert_eq!(need as usize, at, "FOUND is indexed so");
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

    #[test]
    fn what_a_place_lacks_is_named_or_refused() {
        let lacks = parse_lacks("smp=one CPU; single_step=a = b;").unwrap();
        let expected = [(Need::Smp, "one CPU".to_owned()), (Need::SingleStep, "a = b".to_owned())];
        assert_eq!(lacks, expected);
        assert_eq!(parse_lacks(""), Ok(vec![]));
        for bad in ["smp", "smpp=x", "=x"] {
            assert_eq!(parse_lacks(bad), Err(LacksError(bad.to_owned())));
        }
    }
}
