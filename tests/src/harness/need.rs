//! Needs of a case in the place it runs in.

use std::fs::{File, Metadata};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use exoprobe_vmm::{DEFAULT_KVM, Host};

use crate::confinement;
use crate::process::succeeds;

/// A need of a case. Where it is missing, the case is skipped; where it is broken, the case fails.
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
    /// The time for a case with one vCPU that is run with two as well.
    OneVcpu,
    /// The time for a case with two vCPUs that is run with one as well.
    TwoVcpus,
    /// The time for a load that does not depend on how KVM runs the guest: of the service, of the
    /// tracer, of a guest's symbols and types, or of thousands of probes whose kinds other cases
    /// have.
    Repeat,
    /// Guests' kernels at the speed of their programs. Where KVM emulates them, a boot takes 8 to
    /// 20 seconds, and a module's load or a thousand hits a good part of one.
    QuickKernel,
    /// vCPUs that may wait for each other with interrupts off: the host takes a vCPU out that spins
    /// so, for the one that it waits for. Of a case that takes the number of vCPUs, only with more
    /// than one.
    ContendedLocks,
    /// KVM can single-step a guest's kernel mode.
    SingleStep,
    /// KVM learns of a guest's triple fault.
    TripleFault,
    /// An int3 of the guest's own reaches it each time.
    OwnBreakpoint,
    /// A distribution's kernel as a guest: `stock/bzImage` among the guest's files.
    StockKernel,
    /// The kernel's DWARF, `vmlinux.debug` among the guest's files, and binutils' addr2line.
    DebugInfo,
    /// File systems of programs: `/dev/fuse` opens, and root may mount.
    Fuse,
    /// Python with the packages that `scripts/python.sh` installs, and this source tree.
    Python,
    /// A user's shell: bash, and curl of 7.76 or later.
    Shell,
    /// passt, which is in Debian's package of that name.
    Passt,
    /// Tap interfaces: `/dev/net/tun` opens, and root may make network namespaces.
    Tap,
    /// The program `ip`, which is in Debian's package iproute2.
    Iproute2,
    /// A distribution's disk, kernel and initramfs: `debian/` of the guest's files.
    DebianImage,
    /// Huge pages of 2 MiB whose number root may change.
    HugePages,
    /// Namespaces of mounts, IPC and network that root may make, and a root that can be changed
    /// (the first one, of an initramfs, cannot).
    Namespaces,
    /// User namespaces that any user may make, and `setpriv` to become one.
    UserNamespaces,
    /// Landlock.
    Landlock,
    /// cgroup v2 that root may change, with a controller.
    Cgroup,
    /// The program `systemd-analyze`, of version 250 or later.
    SystemdAnalyze,
    /// systemd, which root may start as process 1 of namespaces, over an overlay of this root.
    Systemd,
    /// The programs `stunnel`, which is in Debian's package stunnel4, and `openssl`.
    Stunnel,
    /// The tools of Debian's package bpftrace.
    BpftraceTools,
    /// trace-cmd, which is in Debian's package of that name, and this source tree, whose script it
    /// is run by.
    TraceCmd,
    /// perf, which is in Debian's package linux-perf, and this source tree, whose script it is run
    /// by.
    Perf,
    /// Debian's apt, and this source tree, whose scripts unpack packages.
    Apt,
}

/// Why a place does not have what a case needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It is not there.
    Missing(String),
    /// It is there and does not work.
    Broken(String),
}

/// Why a case that needs [`Need::DebugInfo`] is skipped where the guest's files are without it.
pub const NO_DEBUG_INFO: &str = "no vmlinux.debug here: `make guest` makes one";

/// Why a case that needs [`Need::Fuse`] is skipped where there is none.
pub const NO_FUSE: &str = "no /dev/fuse that opens here, or not run by root";

/// Why a case that needs [`Need::Python`] is skipped where its packages cannot be installed.
pub const NO_PYTHON: &str = "no python3-venv or no source tree here: `make setup` installs it";

/// Why a case that needs [`Need::Shell`] is skipped where there is none.
pub const NO_SHELL: &str = "no bash, or no curl that knows --fail-with-body";

/// Why a case that needs [`Need::Passt`] is skipped where there is none.
pub const NO_PASST: &str = "no passt here: `make setup-lab` installs it";

/// Why a case that needs [`Need::Tap`] is skipped where there is none.
pub const NO_TAP: &str = "no /dev/net/tun that opens here, or not run by root";

/// Why a case that needs [`Need::Iproute2`] is skipped where there is none.
pub const NO_IPROUTE2: &str = "no `ip` here: `make setup-lab` installs it";

/// Why a case that needs [`Need::DebianImage`] is skipped where there is none.
pub const NO_DEBIAN_IMAGE: &str = "no disk of Debian here: `make debian` has one";

/// Why a case that needs [`Need::HugePages`] is skipped where there are none.
pub const NO_HUGE_PAGES: &str = "no huge pages of 2 MiB here, or not run by root";

/// Why a case that needs [`Need::Namespaces`] is skipped where there are none.
pub const NO_NAMESPACES: &str = "no namespaces for this user, or a root of an initramfs";

/// Why a case that needs [`Need::UserNamespaces`] is skipped where there are none.
pub const NO_USER_NAMESPACES: &str = "no user namespaces for ordinary users here, or no `setpriv`";

/// Why a case that needs [`Need::Landlock`] is skipped where there is none.
pub const NO_LANDLOCK: &str = "this kernel has no landlock";

/// Why a case that needs [`Need::Cgroup`] is skipped where there is none.
pub const NO_CGROUP: &str = "no cgroup v2 with a controller that root may change";

/// Why a case that needs [`Need::SystemdAnalyze`] is skipped where there is none.
pub const NO_SYSTEMD_ANALYZE: &str = "no systemd-analyze here: it is in Debian's package systemd";

/// Why a case that needs [`Need::Systemd`] is skipped where there is none.
pub const NO_SYSTEMD: &str = "no systemd that can be started here in namespaces, over an overlay";

/// Why a case that needs [`Need::Stunnel`] is skipped where there is none.
pub const NO_STUNNEL: &str = "no stunnel or openssl here: `make setup-lab` installs them";

/// Why a case that needs [`Need::BpftraceTools`] is skipped where there are none.
pub const NO_BPFTRACE_TOOLS: &str = "no tools of bpftrace here: `make setup-lab` installs them";

/// Why a case that needs [`Need::TraceCmd`] is skipped where there is none.
pub const NO_TRACE_CMD: &str = "no trace-cmd or no source tree here: `make setup-lab` installs it";

/// Why a case that needs [`Need::Perf`] is skipped where there is none.
pub const NO_PERF: &str = "no perf or no source tree here: `make setup-lab` installs it";

/// Why a case that needs [`Need::Apt`] is skipped where there is none.
pub const NO_APT: &str = "no apt-get or no source tree here";

/// Names what a place lacks that only its owner knows: `need=reason`, several with `;` between.
pub const LACKS_ENV: &str = "EXOPROBE_TEST_LACKS";

/// All needs, with their names in [`LACKS_ENV`].
const NAMES: [(Need, &str); 35] = [
    (Need::Kvm, "kvm"),
    (Need::HardwareKvm, "hardware_kvm"),
    (Need::GuardedKvm, "guarded_kvm"),
    (Need::Root, "root"),
    (Need::Loopback, "loopback"),
    (Need::Smp, "smp"),
    (Need::OneVcpu, "one_vcpu"),
    (Need::TwoVcpus, "two_vcpus"),
    (Need::Repeat, "repeat"),
    (Need::QuickKernel, "quick_kernel"),
    (Need::ContendedLocks, "contended_locks"),
    (Need::SingleStep, "single_step"),
    (Need::TripleFault, "triple_fault"),
    (Need::OwnBreakpoint, "own_breakpoint"),
    (Need::StockKernel, "stock_kernel"),
    (Need::DebugInfo, "debug_info"),
    (Need::Fuse, "fuse"),
    (Need::Python, "python"),
    (Need::Shell, "shell"),
    (Need::Passt, "passt"),
    (Need::Tap, "tap"),
    (Need::Iproute2, "iproute2"),
    (Need::DebianImage, "debian_image"),
    (Need::HugePages, "huge_pages"),
    (Need::Namespaces, "namespaces"),
    (Need::UserNamespaces, "user_namespaces"),
    (Need::Landlock, "landlock"),
    (Need::Cgroup, "cgroup"),
    (Need::SystemdAnalyze, "systemd_analyze"),
    (Need::Systemd, "systemd"),
    (Need::Stunnel, "stunnel"),
    (Need::BpftraceTools, "bpftrace_tools"),
    (Need::TraceCmd, "trace_cmd"),
    (Need::Perf, "perf"),
    (Need::Apt, "apt"),
];

/// A malformed text of [`LACKS_ENV`].
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
    /// The lack of it in this place; `None` if it is there. Checked once a process.
    #[must_use]
    pub fn lack(self) -> Option<Lack> {
        static FOUND: [OnceLock<Option<Lack>>; NAMES.len()] =
            [const { OnceLock::new() }; NAMES.len()];
        FOUND[self as usize].get_or_init(|| self.examine().err()).clone()
    }

    fn examine(self) -> Result<(), Lack> {
        match self {
            Self::Kvm => kvm_opens(Path::new(DEFAULT_KVM)),
            Self::HardwareKvm => kvm_is_hardware(Path::new(DEFAULT_KVM)),
            Self::GuardedKvm => require(
                metadata(DEFAULT_KVM)?.mode() & 0o006 == 0,
                &format!("{DEFAULT_KVM} is open to everybody"),
            ),
            // Its owner is the effective user.
            Self::Root => require(metadata("/proc/self")?.uid() == 0, "not run by root"),
            Self::Loopback => loopback_connects(),
            // KVM has these, and here is time, so that their absence can only be declared.
            Self::Smp
            | Self::OneVcpu
            | Self::TwoVcpus
            | Self::Repeat
            | Self::QuickKernel
            | Self::ContendedLocks
            | Self::SingleStep
            | Self::TripleFault
            | Self::OwnBreakpoint => Ok(()),
            Self::StockKernel => {
                let kernel = crate::files::guest_folder().join("out/stock/bzImage");
                require(kernel.exists(), "no such kernel here: `make lab-stock` has one")
            }
            Self::DebugInfo => {
                let file = crate::files::guest_folder().join("out/vmlinux.debug");
                require(file.exists(), NO_DEBUG_INFO)?;
                require(succeeds("addr2line", &["--version"]), "no addr2line: it is in binutils")
            }
            Self::Fuse => require(opens_for_root("/dev/fuse"), NO_FUSE),
            Self::Python => {
                let has_venv = succeeds("python3", &["-c", "import venv, ensurepip"]);
                require(has_venv && crate::python::script().exists(), NO_PYTHON)
            }
            Self::Shell => {
                let curl = "curl --help all | grep -q -e --fail-with-body";
                require(succeeds("bash", &["-c", curl]), NO_SHELL)
            }
            Self::Passt => require(succeeds("passt", &["--version"]), NO_PASST),
            Self::Tap => require(opens_for_root("/dev/net/tun"), NO_TAP),
            Self::Iproute2 => require(succeeds("ip", &["-V"]), NO_IPROUTE2),
            Self::DebianImage => {
                let kernel = crate::files::guest_folder().join("out/debian/vmlinuz");
                let is_there = kernel.exists() && crate::files::debian_disk().exists();
                require(is_there, NO_DEBIAN_IMAGE)
            }
            Self::BpftraceTools => require(has_bpftrace_tools(), NO_BPFTRACE_TOOLS),
            Self::TraceCmd => require(has_trace_cmd(), NO_TRACE_CMD),
            Self::Perf => require(has_perf(), NO_PERF),
            Self::Apt => require(has_apt(), NO_APT),
            Self::HugePages => require(crate::host_pages::can_be_changed(), NO_HUGE_PAGES),
            Self::Namespaces
            | Self::UserNamespaces
            | Self::Landlock
            | Self::Cgroup
            | Self::SystemdAnalyze
            | Self::Systemd
            | Self::Stunnel => self.examine_security(),
        }
    }

    /// The part of [`Self::examine`] for needs of tests about few rights.
    fn examine_security(self) -> Result<(), Lack> {
        let is_root = || Self::Root.lack().is_none();
        match self {
            Self::Namespaces => require(is_root() && confinement::namespaces(), NO_NAMESPACES),
            Self::UserNamespaces => {
                require(is_root() && confinement::user_namespaces(), NO_USER_NAMESPACES)
            }
            Self::Landlock => require(confinement::landlock(), NO_LANDLOCK),
            Self::Cgroup => require(is_root() && confinement::cgroup().is_some(), NO_CGROUP),
            Self::SystemdAnalyze => require(confinement::systemd_analyze(), NO_SYSTEMD_ANALYZE),
            Self::Systemd => require(is_root() && confinement::systemd(), NO_SYSTEMD),
            Self::Stunnel => {
                let runs = succeeds("stunnel", &["-version"]) && succeeds("openssl", &["version"]);
                require(runs, NO_STUNNEL)
            }
            _ => unreachable!("`examine` examines it"),
        }
    }
}

fn opens_for_root(device: &str) -> bool {
    let opened = File::options().read(true).write(true).open(device);
    opened.is_ok() && Need::Root.lack().is_none()
}

fn has_bpftrace_tools() -> bool {
    Path::new("/usr/sbin/opensnoop.bt").exists()
}

fn require(given: bool, reason: &str) -> Result<(), Lack> {
    if given { Ok(()) } else { Err(Lack::Missing(reason.to_owned())) }
}

fn has_trace_cmd() -> bool {
    succeeds("trace-cmd", &["options"]) && crate::python::script().exists()
}

fn has_perf() -> bool {
    succeeds("perf", &["version"]) && crate::python::script().exists()
}

fn has_apt() -> bool {
    succeeds("apt-get", &["--version"]) && crate::python::script().exists()
}

fn metadata(path: &str) -> Result<Metadata, Lack> {
    std::fs::metadata(path).map_err(|e| Lack::Missing(format!("{path}: {e}")))
}

fn kvm_opens(kvm: &Path) -> Result<(), Lack> {
    let opened = File::options().read(true).write(true).open(kvm);
    opened.map(drop).map_err(|e| Lack::Missing(format!("{} does not open: {e}", kvm.display())))
}

/// A KVM that opens and that preflight refuses is no reason to skip anything.
fn kvm_is_hardware(kvm: &Path) -> Result<(), Lack> {
    kvm_opens(kvm)?;
    let host = Host::open(kvm).map_err(|e| Lack::Broken(e.to_string()))?;
    require(host.profile().software.is_none(), "KVM here is software only")
}

fn loopback_connects() -> Result<(), Lack> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let connected = listener.and_then(|listener| TcpStream::connect(listener.local_addr()?));
    connected.map(drop).map_err(|e| Lack::Missing(format!("no TCP to 127.0.0.1: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_is_met_or_says_why_not_and_stays_so() {
        for (at, (need, _)) in NAMES.into_iter().enumerate() {
            assert_eq!(need as usize, at, "FOUND is indexed so");
            let lack = need.lack();
            if let Some(Lack::Missing(reason) | Lack::Broken(reason)) = &lack {
                assert_ne!(reason, "", "{need:?}");
            }
            assert_eq!(need.lack(), lack, "{need:?}");
        }
    }

    #[test]
    fn a_kvm_that_opens_and_is_none_is_broken_and_not_missing() {
        let nothing = kvm_is_hardware(Path::new("/nonexistent/kvm"));
        assert!(matches!(&nothing, Err(Lack::Missing(r)) if r.contains("open")), "{nothing:?}");
        let null = kvm_is_hardware(Path::new("/dev/null"));
        assert!(matches!(&null, Err(Lack::Broken(r)) if r.contains("KVM")), "{null:?}");
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
