//! The policy: what a service may reach, by its configuration. Nothing here asks for anything.

use std::path::{Path, PathBuf};

use exoprobe_vmm::{DiskMode, HUGE_PAGES};

use crate::machine_file::{MachineFile, NetEntry};
use crate::service::types_candidates;

/// The device of tap interfaces.
const TUN: &str = "/dev/net/tun";
/// Random numbers, for KASLR.
const RANDOM: &str = "/dev/urandom";

/// Use of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The file is read.
    Read,
    /// The file or block device is read and written.
    Write,
    /// The character device is opened for anything.
    Device,
    /// Files in the folder are read.
    ReadFolder,
    /// A process listens at the socket.
    Connect,
}

/// A file of the host that the service may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    /// The service starts without it, too, or says itself what is missing.
    pub(super) optional: bool,
}

/// All that a service may reach besides its own folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(super) entries: Vec<Entry>,
    /// The TCP port to listen on.
    pub(super) listen: Option<u16>,
    /// It opens an interface of the host's.
    tap: bool,
}

impl Reach {
    /// The files that the service of this configuration needs. Its paths are absolute; those in
    /// `folder`, the service's own, are left out. The token's file, read before the jail, is not
    /// among them.
    pub(crate) fn of(file: &MachineFile, folder: &Path) -> Self {
        let mut reach = Self { entries: Vec::new(), listen: None, tap: false };
        reach.add_files(file);
        reach.add_devices(file);
        reach.entries.retain(|entry| !entry.path.starts_with(folder));
        reach.listen = file.listen.map(|address| address.port());
        reach
    }

    fn add_files(&mut self, file: &MachineFile) {
        let read = [
            &file.kernel,
            &file.initramfs,
            &file.symbols,
            &file.btf,
            &file.debug_info,
            &file.restore,
        ];
        read.into_iter().flatten().for_each(|path| self.add(path, Access::Read, false));
        if let (Some(kernel), None) = (&file.kernel, &file.btf) {
            types_candidates(kernel).iter().for_each(|path| self.add(path, Access::Read, true));
        }
        for disk in &file.disk {
            let access = match disk.mode {
                DiskMode::ReadWrite => Access::Write,
                DiskMode::ReadOnly | DiskMode::Overlay => Access::Read,
            };
            self.add(&disk.path, access, false);
        }
    }

    fn add_devices(&mut self, file: &MachineFile) {
        for net in &file.net {
            match net {
                NetEntry::Tap { .. } => self.tap = true,
                NetEntry::Socket { socket, .. } => self.add(socket, Access::Connect, false),
            }
        }
        if self.tap {
            self.add(Path::new(TUN), Access::Device, true);
        }
        if let Some(kvm) = &file.kvm {
            self.add(kvm, Access::Device, true);
        }
        self.add(Path::new(RANDOM), Access::Device, true);
        if file.hugepages {
            self.add(Path::new(HUGE_PAGES), Access::ReadFolder, true);
        }
    }

    /// Adds a file. One that is named several times is there once, for all that it is named for.
    fn add(&mut self, path: &Path, access: Access, optional: bool) {
        match self.entries.iter_mut().find(|entry| entry.path == path) {
            Some(known) => {
                known.optional &= optional;
                if access == Access::Write {
                    known.access = access;
                }
            }
            None => self.entries.push(Entry { path: path.to_owned(), access, optional }),
        }
    }

    /// Whether it uses the host's network: TCP clients', or an interface.
    pub(super) fn needs_network(&self) -> bool {
        self.tap || self.listen.is_some()
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_vmm::NetLink;

    use super::*;
    use crate::machine_file::DiskEntry;

    fn of(file: &MachineFile) -> Vec<(String, Access)> {
        let reach = Reach::of(file, Path::new("/srv/jail"));
        reach.entries.iter().map(|it| (it.path.display().to_string(), it.access)).collect()
    }

    fn path(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    #[test]
    fn each_file_that_is_named_is_reached_and_no_other() {
        let disk = |path: &str, mode| DiskEntry { path: path.into(), mode };
        let file = MachineFile {
            kernel: path("/k/bzImage"),
            initramfs: path("/k/initrd"),
            symbols: path("/k/System.map"),
            debug_info: path("/k/vmlinux"),
            restore: path("/s/snap"),
            kvm: path("/dev/kvm"),
            token_file: path("/etc/token"),
            socket: path("/srv/jail/api.sock"),
            disk: vec![
                disk("/d/rw", DiskMode::ReadWrite),
                disk("/d/ro", DiskMode::ReadOnly),
                disk("/d/overlay", DiskMode::Overlay),
                disk("/srv/jail/own", DiskMode::ReadWrite),
            ],
            net: vec![NetEntry::new(&NetLink::Socket("/run/passt".into()), None)],
            ..MachineFile::default()
        };
        let expected = [
            ("/k/bzImage", Access::Read),
            ("/k/initrd", Access::Read),
            ("/k/System.map", Access::Read),
            ("/k/vmlinux", Access::Read),
            ("/s/snap", Access::Read),
            ("/k/bzImage.btf", Access::Read),
            ("/k/vmlinux.btf", Access::Read),
            ("/d/rw", Access::Write),
            ("/d/ro", Access::Read),
            ("/d/overlay", Access::Read),
            ("/run/passt", Access::Connect),
            ("/dev/kvm", Access::Device),
            (RANDOM, Access::Device),
        ];
        assert_eq!(of(&file), expected.map(|(path, access)| (path.to_owned(), access)));
        let reach = Reach::of(&file, Path::new("/srv/jail"));
        assert!(!reach.needs_network() && reach.listen.is_none());
        assert_eq!(of(&MachineFile::default()), [(RANDOM.to_owned(), Access::Device)]);
    }

    #[test]
    fn a_file_that_is_named_twice_is_reached_once_and_for_all_that_it_is_for() {
        let disk = |mode| DiskEntry { path: "/d/disk".into(), mode };
        let file = MachineFile {
            kernel: path("/k/vmlinux"),
            symbols: path("/k/vmlinux"),
            btf: path("/k/vmlinux"),
            disk: vec![
                disk(DiskMode::Overlay),
                disk(DiskMode::ReadWrite),
                disk(DiskMode::ReadOnly),
            ],
            ..MachineFile::default()
        };
        let expected =
            [("/k/vmlinux", Access::Read), ("/d/disk", Access::Write), (RANDOM, Access::Device)];
        assert_eq!(of(&file), expected.map(|(path, access)| (path.to_owned(), access)));
    }

    #[test]
    fn the_network_taps_and_huge_pages_are_reached_when_asked_for() {
        let tap = MachineFile {
            net: vec![NetEntry::new(&NetLink::Tap("tap0".into()), None)],
            hugepages: true,
            btf: path("/k/btf"),
            kernel: path("/k/k"),
            ..MachineFile::default()
        };
        let reached = of(&tap);
        for wanted in [(TUN, Access::Device), (HUGE_PAGES, Access::ReadFolder)] {
            assert!(reached.contains(&(wanted.0.to_owned(), wanted.1)), "{reached:?}");
        }
        assert!(!reached.iter().any(|(path, _)| path == "/k/k.btf"), "BTF was named");
        assert!(Reach::of(&tap, Path::new("/j")).needs_network());
        let listens = MachineFile { listen: "127.0.0.1:80".parse().ok(), ..MachineFile::default() };
        let reach = Reach::of(&listens, Path::new("/j"));
        assert!(reach.needs_network() && reach.listen == Some(80));
    }
}
