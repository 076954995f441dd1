//! A guest with a device of each kind, booted once for all tests of a run.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use exoprobe_tests::{TestGuest, TestKernel, copy_with_time, host, shared, take_snapshot};
use exoprobe_vmm::{
    BootFiles, DiskConfig, DiskMode, HostSides, NetConfig, NetLink, Vm, VmConfig, VsockConfig,
};

/// The address of the guest's network interface.
pub(crate) const MAC: &str = "52:54:00:12:34:56";
/// The guest's CID.
pub(crate) const CID: u32 = 52;
/// Of the workload's commands `diskread` and `diskwrite`.
pub(crate) const BLOCK: u64 = 4096;
/// The size of the disk, in [`BLOCK`]s.
pub(crate) const BLOCKS: u64 = 64;

pub(crate) fn net(link: NetLink) -> NetConfig {
    NetConfig { link, mac: MAC.parse().unwrap() }
}

pub(crate) fn vsock(socket: &Path) -> VsockConfig {
    VsockConfig { socket: socket.to_owned(), cid: CID }
}

/// Makes a disk of zeroes.
pub(crate) fn empty_disk(path: &Path) {
    File::create(path).unwrap().set_len(BLOCKS * BLOCK).unwrap();
}

/// Linux 6.12, whose network interface has an address before init runs.
pub(crate) fn config(vcpus: u8) -> VmConfig {
    // One function of its boot may take longer than RCU waits (21 s), on a machine that does more.
    const SLOW: &str = "rcupdate.rcu_cpu_stall_suppress=1";
    const ADDRESS: &str = "ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off";
    let config = TestKernel::Linux6_12.config(vcpus);
    VmConfig { cmdline: format!("{} {SLOW} {ADDRESS}", config.cmdline), ..config }
}

/// Starts a machine whose kernel the engine has no file of.
pub(crate) fn start(vm: Vm) -> TestGuest {
    let guest = TestGuest::of_kernel(vm, None);
    guest.power_on();
    guest
}

/// Boots a machine to its prompt.
pub(crate) fn boot(config: &VmConfig) -> TestGuest {
    let guest = start(Vm::create(host(), config).unwrap());
    guest.wait_for_prompt();
    guest
}

/// The host's sides of the devices.
pub(crate) struct Sides {
    /// `/dev/vda`, of zeroes at first.
    pub(crate) disk: PathBuf,
    /// Of the network interface.
    pub(crate) link: NetLink,
    /// Of the vsock device.
    pub(crate) socket: PathBuf,
    /// A network peer that never answers, for tests that bring none.
    pub(crate) _silent: UnixListener,
}

impl Sides {
    /// Sides of their own in a folder: a copy of the snapshot's disk, and names of sockets.
    pub(crate) fn new(dir: &Path, vcpus: u8) -> Self {
        let disk = dir.join("disk");
        copy_with_time(&disk_of(&snapshot(vcpus)), &disk);
        Self::of_disk(dir, disk)
    }

    fn of_disk(dir: &Path, disk: PathBuf) -> Self {
        let silent = dir.join("silent");
        Self {
            disk,
            link: NetLink::Socket(silent.clone()),
            socket: dir.join("v"),
            _silent: UnixListener::bind(silent).unwrap(),
        }
    }

    /// As an argument of [`Vm::restore`].
    pub(crate) fn given(&self) -> HostSides {
        HostSides {
            disks: vec![DiskConfig { path: self.disk.clone(), mode: DiskMode::ReadWrite }],
            links: vec![self.link.clone()],
            vsock: Some(self.socket.clone()),
        }
    }

    /// Arguments of `exoprobe run` for a guest with these sides as it was right after boot.
    pub(crate) fn arguments(&self, vcpus: u8) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let pairs = [
            ("--restore", text(&snapshot(vcpus))),
            ("--disk", text(&self.disk)),
            ("--net", self.link.to_string()),
            ("--vsock", text(&self.socket)),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Restores a machine, which may be rebooted, from a snapshot of a guest that had such sides.
    ///
    /// # Panics
    /// When it is refused.
    pub(crate) fn restore(&self, snapshot: &Path) -> Vm {
        let mut vm = Vm::restore(host(), snapshot, &self.given()).unwrap();
        let VmConfig { kernel, initramfs, cmdline, .. } = config(1);
        let files = BootFiles { kernel, initramfs, cmdline: Some(cmdline) };
        vm.set_boot_files(files).unwrap();
        vm
    }

    /// A machine with these sides as it was right after boot, not started.
    pub(crate) fn machine(&self, vcpus: u8) -> Vm {
        self.restore(&snapshot(vcpus))
    }

    /// A guest with these sides as it was right after boot.
    pub(crate) fn guest(&self, vcpus: u8) -> TestGuest {
        start(self.machine(vcpus))
    }
}

/// The snapshot of a guest with a device of each kind right after boot.
fn snapshot(vcpus: u8) -> PathBuf {
    shared(&format!("devices-{vcpus}"), |folder, path| {
        let disk = disk_of(path);
        empty_disk(&disk);
        let sides = Sides::of_disk(folder, disk);
        let HostSides { disks, .. } = sides.given();
        let config = VmConfig {
            disks,
            nets: vec![net(sides.link.clone())],
            virtio_console: true,
            vsock: Some(vsock(&sides.socket)),
            ..config(vcpus)
        };
        take_snapshot(&config, path);
    })
}

/// The disk that belongs to [`snapshot`].
fn disk_of(snapshot: &Path) -> PathBuf {
    snapshot.with_file_name("disk")
}
