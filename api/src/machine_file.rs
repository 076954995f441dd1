//! The file of `--config`: the arguments of `exoprobe run` by their names.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use exoprobe_vmm::{DiskMode, MacAddr, NetLink};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A machine and its service. Each member is the argument of `exoprobe run` of that name, with `_`
/// for `-`; paths are relative to the file's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineFile {
    /// Linux kernel: an ELF vmlinux or a bzImage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub kernel: Option<PathBuf>,
    /// Initial RAM file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub initramfs: Option<PathBuf>,
    /// Kernel command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// Add the words of `--fast-boot` to it.
    #[serde(default, skip_serializing_if = "is_off")]
    pub fast_boot: bool,
    /// RAM in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// RAM is huge pages of the host.
    #[serde(default, skip_serializing_if = "is_off")]
    pub hugepages: bool,
    /// The host never writes the guest's memory to its swap.
    #[serde(default, skip_serializing_if = "is_off")]
    pub mlock: bool,
    /// Number of vCPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u8>,
    /// Disks, `/dev/vda` and on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<DiskEntry>,
    /// Network interfaces, `eth0` and on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net: Vec<NetEntry>,
    /// A virtio console, `/dev/hvc0`.
    #[serde(default, skip_serializing_if = "is_off")]
    pub virtio_console: bool,
    /// Sockets between guest and host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockEntry>,
    /// Symbols of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub symbols: Option<PathBuf>,
    /// Types of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub btf: Option<PathBuf>,
    /// File with the kernel's debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub debug_info: Option<PathBuf>,
    /// Snapshot to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub restore: Option<PathBuf>,
    /// Unix socket to listen on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// TCP address to listen on as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
    /// File with the token of TCP clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub token_file: Option<PathBuf>,
    /// Probes to register before the guest runs, in the language of kprobe_events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<String>,
    /// Events kept for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<usize>,
    /// Memory for them, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_memory: Option<u64>,
    /// Memory of all probes together, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// KVM device.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub kvm: Option<PathBuf>,
    /// Do not filter system calls.
    #[serde(default, skip_serializing_if = "is_off")]
    pub no_seccomp: bool,
    /// Print the guest's console to standard output.
    #[serde(default, skip_serializing_if = "is_off")]
    pub console: bool,
    /// Boot again when the guest resets itself.
    #[serde(default, skip_serializing_if = "is_off")]
    pub reboot: bool,
    /// End when the guest stops.
    #[serde(default, skip_serializing_if = "is_off")]
    pub exit_with_guest: bool,
    /// Folder of the jail that the service is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub jail: Option<PathBuf>,
    /// How it is kept in: `auto`, `namespaces` or `landlock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "auto")]
    pub jail_with: Option<String>,
    /// Number of the user that it becomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Number of the group that it becomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The user may be root.
    #[serde(default, skip_serializing_if = "is_off")]
    pub allow_root: bool,
    /// Most files that it may have open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit_nofile: Option<u64>,
    /// Largest file that it may write, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit_fsize: Option<u64>,
    /// Limits of a cgroup of its own, each `FILE=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroup: Vec<String>,
}

/// A disk of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskEntry {
    /// Its raw file or block device.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// `readwrite`, `readonly` or `overlay`.
    #[serde(default)]
    #[schema(value_type = String, example = "readwrite")]
    pub mode: DiskMode,
}

/// The vsock device of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VsockEntry {
    /// The unix socket by which the host's processes connect to the guest.
    #[schema(value_type = String)]
    pub socket: PathBuf,
    /// The guest's CID; 3 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 3)]
    pub cid: Option<u32>,
}

impl VsockEntry {
    /// As the argument of `exoprobe run`.
    fn argument(&self, folder: &Path) -> OsString {
        let mut text = OsString::from("--vsock=");
        text.push(folder.join(&self.socket));
        if let Some(cid) = self.cid {
            text.push(format!(",cid={cid}"));
        }
        text
    }
}

/// A network interface of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "give a network interface `tap` or `socket`, and `mac` if you like"
)]
pub enum NetEntry {
    /// A tap interface of the host.
    Tap {
        /// Its name.
        tap: String,
        /// The address in the guest; a random one when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "52:54:00:12:34:56")]
        mac: Option<MacAddr>,
    },
    /// A network stack, such as passt.
    Socket {
        /// The unix socket on which it listens.
        #[schema(value_type = String)]
        socket: PathBuf,
        /// The address in the guest; a random one when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "52:54:00:12:34:56")]
        mac: Option<MacAddr>,
    },
}

impl NetEntry {
    /// The interface of a machine.
    #[must_use]
    pub fn new(link: &NetLink, mac: Option<MacAddr>) -> Self {
        match link {
            NetLink::Tap(name) => Self::Tap { tap: name.clone(), mac },
            NetLink::Socket(path) => Self::Socket { socket: path.clone(), mac },
        }
    }

    /// As the argument of `exoprobe run`.
    fn argument(&self, folder: &Path) -> OsString {
        let (mut text, mac) = match self {
            Self::Tap { tap, mac } => (OsString::from(format!("--net=tap:{tap}")), mac),
            Self::Socket { socket, mac } => {
                let mut text = OsString::from("--net=unix:");
                text.push(folder.join(socket));
                (text, mac)
            }
        };
        if let Some(mac) = mac {
            text.push(format!(",mac={mac}"));
        }
        text
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_off(switch: &bool) -> bool {
    !*switch
}

/// Why a file of `--config` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is no TOML, or does not say what it should.
    #[error("{}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The place, and the fault.
        source: Box<toml::de::Error>,
    },
    /// It is no JSON, or does not say what it should.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The place, and the fault.
        source: serde_json::Error,
    },
}

impl MachineFile {
    /// Reads a file: JSON if it is called `*.json`, or else TOML.
    ///
    /// # Errors
    /// [`MachineFileError`], also for a member that there is not.
    pub fn load(path: &Path) -> Result<Self, MachineFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| MachineFileError::Read { path: path.to_owned(), source })?;
        if path.extension().is_some_and(|extension| extension == "json") {
            let json = |source| MachineFileError::Json { path: path.to_owned(), source };
            return serde_json::from_str(&text).map_err(json);
        }
        let toml =
            |source| MachineFileError::Toml { path: path.to_owned(), source: Box::new(source) };
        toml::from_str(&text).map_err(toml)
    }

    /// As arguments of `exoprobe run`; paths are relative to `folder`.
    #[must_use]
    pub fn arguments(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments = self.path_arguments(folder);
        let values = [
            ("--cmdline", self.cmdline.clone()),
            ("--memory", self.memory.map(|it| it.to_string())),
            ("--vcpus", self.vcpus.map(|it| it.to_string())),
            ("--listen", self.listen.map(|it| it.to_string())),
            ("--events", self.events.map(|it| it.to_string())),
            ("--events-memory", self.events_memory.map(|it| it.to_string())),
            ("--memory-limit", self.memory_limit.map(|it| it.to_string())),
            ("--jail-with", self.jail_with.clone()),
            ("--uid", self.uid.map(|it| it.to_string())),
            ("--gid", self.gid.map(|it| it.to_string())),
            ("--rlimit-nofile", self.rlimit_nofile.map(|it| it.to_string())),
            ("--rlimit-fsize", self.rlimit_fsize.map(|it| it.to_string())),
        ];
        let probes = self.probe.iter().map(|line| ("--probe", Some(line.clone())));
        let cgroup = self.cgroup.iter().map(|limit| ("--cgroup", Some(limit.clone())));
        for (name, value) in values.into_iter().chain(probes).chain(cgroup) {
            arguments.extend(value.into_iter().map(|value| format!("{name}={value}").into()));
        }
        for disk in &self.disk {
            let mut text = OsString::from("--disk=");
            text.push(folder.join(&disk.path));
            text.push(match disk.mode {
                DiskMode::ReadWrite => ",readwrite",
                DiskMode::ReadOnly => ",readonly",
                DiskMode::Overlay => ",overlay",
            });
            arguments.push(text);
        }
        arguments.extend(self.net.iter().map(|net| net.argument(folder)));
        arguments.extend(self.vsock.iter().map(|vsock| vsock.argument(folder)));
        let switches = [
            ("--fast-boot", self.fast_boot),
            ("--hugepages", self.hugepages),
            ("--mlock", self.mlock),
            ("--no-seccomp", self.no_seccomp),
            ("--virtio-console", self.virtio_console),
            ("--console", self.console),
            ("--reboot", self.reboot),
            ("--exit-with-guest", self.exit_with_guest),
            ("--allow-root", self.allow_root),
        ];
        arguments.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).into()));
        arguments
    }

    fn path_arguments(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let paths = [
            ("--kernel", &self.kernel),
            ("--initramfs", &self.initramfs),
            ("--symbols", &self.symbols),
            ("--btf", &self.btf),
            ("--debug-info", &self.debug_info),
            ("--restore", &self.restore),
            ("--socket", &self.socket),
            ("--token-file", &self.token_file),
            ("--kvm", &self.kvm),
            ("--jail", &self.jail),
        ];
        for (name, path) in paths {
            if let Some(path) = path {
                arguments.extend([name.into(), folder.join(path).into_os_string()]);
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Result<MachineFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        MachineFile::load(&path).map_err(|error| error.to_string())
    }

    const TOML: &str = r#"
        kernel = "vmlinuz"
        cmdline = "console=ttyS0 -- x"
        memory = 512
        hugepages = true
        mlock = true
        no_seccomp = true
        probe = ["p:a vfs_read"]
        virtio_console = true
        console = true
        jail = "jail"
        uid = 1017
        gid = 36
        rlimit_fsize = 512
        cgroup = ["memory.max=1G", "pids.max=100"]
        [[disk]]
        path = "/images/root.raw"
        mode = "overlay"
        [[disk]]
        path = "data.raw"
        [[net]]
        tap = "tap0"
        [[net]]
        socket = "passt.sock"
        mac = "52:54:00:12:34:56"
        [vsock]
        socket = "v.sock"
        cid = 52
    "#;

    #[test]
    fn a_file_is_the_arguments_by_their_names() {
        let toml = file("m.toml", TOML).unwrap();
        let json = r#"{"kernel": "vmlinuz", "cmdline": "console=ttyS0 -- x", "memory": 512,
            "hugepages": true, "mlock": true, "no_seccomp": true,
            "probe": ["p:a vfs_read"], "virtio_console": true, "console": true,
            "jail": "jail", "uid": 1017, "gid": 36, "rlimit_fsize": 512,
            "cgroup": ["memory.max=1G", "pids.max=100"],
            "disk": [{"path": "/images/root.raw", "mode": "overlay"}, {"path": "data.raw"}],
            "net": [{"tap": "tap0"}, {"socket": "passt.sock", "mac": "52:54:00:12:34:56"}],
            "vsock": {"socket": "v.sock", "cid": 52}}"#;
        assert_eq!(file("m.json", json).unwrap(), toml);
        let expected = [
            "--kernel",
            "/f/vmlinuz",
            "--jail",
            "/f/jail",
            "--cmdline=console=ttyS0 -- x",
            "--memory=512",
            "--uid=1017",
            "--gid=36",
            "--rlimit-fsize=512",
            "--probe=p:a vfs_read",
            "--cgroup=memory.max=1G",
            "--cgroup=pids.max=100",
            "--disk=/images/root.raw,overlay",
            "--disk=/f/data.raw,readwrite",
            "--net=tap:tap0",
            "--net=unix:/f/passt.sock,mac=52:54:00:12:34:56",
            "--vsock=/f/v.sock,cid=52",
            "--hugepages",
            "--mlock",
            "--no-seccomp",
            "--virtio-console",
            "--console",
        ];
        assert_eq!(toml.arguments(Path::new("/f")), expected);
        let again = toml::to_string(&serde_json::to_value(&toml).unwrap()).unwrap();
        assert_eq!(file("m.toml", &again).unwrap(), toml);
    }

    #[test]
    fn what_there_is_not_is_named_with_its_place() {
        for (name, text, reason) in [
            ("m.toml", "memry = 5", "unknown field `memry`"),
            ("m.toml", "memory = \"x\"", "line 1"),
            ("m.toml", "disk = [{path = \"a\", mode = \"ro\"}]", "`overlay`"),
            ("m.toml", "memory =", "line 1"),
            ("m.toml", "net = [{mac = \"02:00:00:00:00:01\"}]", "`tap` or `socket`"),
            ("m.toml", "net = [{tap = \"a\", socket = \"b\"}]", "`tap` or `socket`"),
            ("m.toml", "virtio_console = \"hvc0\"", "expected a boolean"),
            ("m.toml", "uid = \"root\"", "expected u32"),
            ("m.toml", "vsock = {cid = 3}", "missing field `socket`"),
            ("m.toml", "vsock = {socket = \"v\", port = 3}", "unknown field `port`"),
            ("m.toml", "vsock = {socket = \"v\", cid = -1}", "line 1"),
            ("m.json", "{\"vcpus\": 300}", "line 1"),
            ("m.json", "{\"disk\": [{}]}", "missing field `path`"),
        ] {
            let error = file(name, text).unwrap_err();
            assert!(error.contains(reason) && error.contains(name), "{error}");
        }
        let error = MachineFile::load(Path::new("/nonexistent/m.toml")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/m.toml: No such file"), "{error}");
    }
}
