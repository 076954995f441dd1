//! The configuration of a machine, as plain data; `Vm::create` turns it into live objects.

use std::fmt;
use std::path::PathBuf;

use crate::mac::MacAddr;

/// Most vCPUs a machine can have: cores of a package that CPUID can count (leaf 4, six bits).
pub const MAX_VCPUS: u8 = 64;
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
    /// RAM is huge pages of 2 MiB, which the host must have free. A snapshot does not contain this:
    /// the RAM of a restored guest is mapped from the file.
    #[serde(skip)]
    pub hugepages: bool,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Disks, `/dev/vda` and on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskConfig>,
    /// Network interfaces, `eth0` and on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nets: Vec<NetConfig>,
    /// A virtio console, `/dev/hvc0`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtio_console: bool,
    /// Its sockets to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockConfig>,
}

/// The guest's sockets to the host: a virtio socket device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockConfig {
    /// The unix socket by which the host's processes connect to the guest. The guest's connections
    /// to port P go to the one at this path with `_P` after it.
    pub socket: PathBuf,
    /// The guest's address.
    pub cid: u32,
}

/// The CID of a guest, by default. Those below are the hypervisor's, its own and the host's.
pub const GUEST_CID: u32 = 3;
/// Most bytes of the path of a vsock device's socket: what a socket's path may have (107), without
/// `_` and a port.
const VSOCK_PATH_MAX: usize = 96;

/// A network interface of the guest: a virtio network device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// The host's side of it.
    pub link: NetLink,
    /// Its address.
    pub mac: MacAddr,
}

/// The host's side of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetLink {
    /// A tap interface that exists.
    Tap(String),
    /// A unix socket on which a network stack listens, such as passt: it is sent and sends frames,
    /// each after its length, 32 bits big-endian.
    Socket(PathBuf),
}

impl fmt::Display for NetLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
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

/// The host's sides of a restored guest's devices: those that a snapshot names are not opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSides {
    /// Its disks, in the order of that time.
    pub disks: Vec<DiskConfig>,
    /// Those of its network interfaces, in the order of that time. Their addresses are the
    /// snapshot's: the guest knows them.
    pub links: Vec<NetLink>,
    /// The socket of its vsock device. The guest's CID is the snapshot's.
    pub vsock: Option<PathBuf>,
}

/// Most disks, network interfaces, vsock devices and consoles together: slots of a PCI bus, without
/// those of its bridge and of the random numbers.
pub const MAX_DEVICES: usize = 30;

/// Why a configuration is refused before anything is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Outside 1 to [`MAX_VCPUS`].
    #[error("{0} vCPUs: give 1 to {MAX_VCPUS}")]
    Vcpus(u8),
    /// Outside `MIN_MEMORY_MIB` to `MAX_MEMORY_MIB`.
    #[error("{0} MiB of memory: give {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB}")]
    Memory(u64),
    /// RAM that does not consist of whole huge pages.
    #[error("{0} MiB of memory: with --hugepages, give a multiple of 2")]
    HugePages(u64),
    /// More than [`MAX_DEVICES`].
    #[error(
        "{0} disks, network interfaces, vsock devices and virtio consoles: give at most {MAX_DEVICES}"
    )]
    Devices(usize),
    /// Two network interfaces have the same host side.
    #[error("{0} is given for two network interfaces: each needs one of its own")]
    LinkTwice(NetLink),
    /// Two network interfaces have the same address.
    #[error("the address {0} is given to two network interfaces")]
    MacTwice(MacAddr),
    /// The CID is no guest's.
    #[error(
        "{0} is no CID of a guest: give {GUEST_CID} to 4294967294 (those below are the hypervisor, the guest \
         itself and the host)"
    )]
    Cid(u32),
    /// The path of a vsock device's socket does not leave room for a port.
    #[error(
        "the path of the vsock socket has {len} bytes and may have {VSOCK_PATH_MAX}, for that of the guest's \
         connections has the port, too: {}", path.display()
    )]
    VsockPath {
        /// The path.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// The vsock device and a network interface have one socket.
    #[error("{} is given for the vsock device and for a network interface: each needs one of its own", .0.display())]
    SocketTwice(PathBuf),
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
        if self.hugepages && !self.memory_mib.is_multiple_of(2) {
            return Err(ConfigError::HugePages(self.memory_mib));
        }
        let single = usize::from(self.vsock.is_some()) + usize::from(self.virtio_console);
        let devices = self.disks.len() + self.nets.len() + single;
        if devices > MAX_DEVICES {
            return Err(ConfigError::Devices(devices));
        }
        for (at, net) in self.nets.iter().enumerate() {
            let before = &self.nets[..at];
            if before.iter().any(|other| other.link == net.link) {
                return Err(ConfigError::LinkTwice(net.link.clone()));
            }
            if before.iter().any(|other| other.mac == net.mac) {
                return Err(ConfigError::MacTwice(net.mac));
            }
        }
        if let Some(vsock) = &self.vsock {
            self.validate_vsock(vsock)?;
        }
        if self.cmdline.contains('\0') {
            return Err(ConfigError::CmdlineNul);
        }
        Ok(())
    }

    fn validate_vsock(&self, VsockConfig { socket, cid }: &VsockConfig) -> Result<(), ConfigError> {
        if !(GUEST_CID..u32::MAX).contains(cid) {
            return Err(ConfigError::Cid(*cid));
        }
        let len = socket.as_os_str().len();
        if len > VSOCK_PATH_MAX {
            return Err(ConfigError::VsockPath { path: socket.clone(), len });
        }
        if self.nets.iter().any(|net| net.link == NetLink::Socket(socket.clone())) {
            return Err(ConfigError::SocketTwice(socket.clone()));
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
            hugepages: false,
            vcpus: 1,
            disks: Vec::new(),
            nets: Vec::new(),
            virtio_console: false,
            vsock: None,
        };
        assert_eq!(good.validate(), Ok(()));
        let none = VmConfig { vcpus: 0, ..good.clone() };
        assert_eq!(none.validate(), Err(ConfigError::Vcpus(0)));
        assert_eq!(VmConfig { vcpus: 64, ..good.clone() }.validate(), Ok(()));
        let many = VmConfig { vcpus: 65, ..good.clone() };
        assert_eq!(many.validate().unwrap_err().to_string(), "65 vCPUs: give 1 to 64");
        let tiny = VmConfig { memory_mib: 1, ..good.clone() };
        assert_eq!(tiny.validate(), Err(ConfigError::Memory(1)));
        let odd = VmConfig { memory_mib: 33, ..good.clone() };
        assert_eq!(odd.validate(), Ok(()));
        let odd = VmConfig { hugepages: true, ..odd };
        assert_eq!(odd.validate(), Err(ConfigError::HugePages(33)));
        let nul = VmConfig { cmdline: "a\0b".into(), ..good.clone() };
        assert_eq!(nul.validate(), Err(ConfigError::CmdlineNul));
        let net = |link: &str, mac: &str| NetConfig {
            link: NetLink::Tap(link.to_owned()),
            mac: mac.parse().unwrap(),
        };
        let nets = |nets: &[NetConfig]| VmConfig { nets: nets.to_vec(), ..good.clone() }.validate();
        let [a, b] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
        assert_eq!(nets(&[net("tap0", a), net("tap1", b)]), Ok(()));
        let twice = nets(&[net("tap0", a), net("tap0", b)]).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "tap:tap0 is given for two network interfaces: each needs one of its own"
        );
        let same = nets(&[net("tap0", a), net("tap1", a)]).unwrap_err();
        assert_eq!(same.to_string(), format!("the address {a} is given to two network interfaces"));
        assert_eq!(nets(&vec![net("tap0", a); 31]), Err(ConfigError::Devices(31)));
        let disk = DiskConfig { path: "d".into(), mode: DiskMode::ReadOnly };
        let full = VmConfig { disks: vec![disk; MAX_DEVICES], ..good };
        assert_eq!(full.validate(), Ok(()));
        let with_console = VmConfig { virtio_console: true, ..full };
        assert_eq!(with_console.validate(), Err(ConfigError::Devices(31)));
    }

    #[test]
    fn a_vsock_device_has_a_cid_and_a_socket_of_its_own() {
        let with = |socket: &str, cid, links: &[&str]| {
            let net = |link: &&str| NetConfig {
                link: NetLink::Socket(link.into()),
                mac: "02:00:00:00:00:01".parse().unwrap(),
            };
            VmConfig {
                kernel: "vmlinux".into(),
                initramfs: None,
                cmdline: String::new(),
                memory_mib: 32,
                vcpus: 1,
                disks: Vec::new(),
                nets: links.iter().map(net).collect(),
                vsock: Some(VsockConfig { socket: socket.into(), cid }),
                virtio_console: false,
                hugepages: false,
            }
            .validate()
        };
        assert_eq!(with("/v", 3, &["/n"]), Ok(()));
        assert_eq!(with("/v", u32::MAX - 1, &[]), Ok(()));
        for cid in [0, 1, 2, u32::MAX] {
            let error = with("/v", cid, &[]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{cid} is no CID of a guest: give 3 to")),
                "{error}"
            );
        }
        let same = with("/v", 3, &["/v"]).unwrap_err().to_string();
        assert!(same.starts_with("/v is given for the vsock device and for a network"), "{same}");
        assert_eq!(with(&format!("/{}", "a".repeat(95)), 3, &[]), Ok(()));
        let long = with(&format!("/{}", "a".repeat(96)), 3, &[]).unwrap_err().to_string();
        assert!(long.contains("has 97 bytes and may have 96"), "{long}");
    }
}
