//! Disks: the guest writes and reads what is in their files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, TestGuest, cases, copy_with_time, host, http};
use exoprobe_vmm::DiskMode::{self, Overlay, ReadOnly, ReadWrite};
use exoprobe_vmm::{DiskConfig, HostSides, Vm};

use crate::support::devices::{BLOCK, BLOCKS, Sides, empty_disk, start};
use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    a_restored_guest_goes_on_with_its_disk_as_it_was needs [Kvm, QuickKernel],
    a_disk_that_cannot_be_used_is_refused_by_name needs [Kvm, Repeat],
];

const WRITE_SECOND: &str = "diskwrite /dev/vdb 1";
const READ_TWO: &str = "diskread /dev/vda 2";

/// Block `number` as the workload writes it.
fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(usize::try_from(BLOCK / 8).unwrap())
}

/// Makes a disk of zeroes.
fn empty(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    empty_disk(&path);
    path
}

fn disk(path: &Path, mode: DiskMode) -> DiskConfig {
    DiskConfig { path: path.to_owned(), mode }
}

/// Three disks of a guest: one that it may write, a second one that it may not, and the second
/// one's file below a layer of the machine's own.
pub(super) struct Disks {
    first: PathBuf,
    second: PathBuf,
    snapshot: PathBuf,
}

impl Disks {
    pub(super) fn new(dir: &Path) -> Self {
        let [first, second] = ["first", "second"].map(|name| empty(dir, name));
        let file = File::options().write(true).open(&second).unwrap();
        (0..BLOCKS / 2).for_each(|at| file.write_all_at(&block(at), at * BLOCK).unwrap());
        Self { first, second, snapshot: dir.join("snapshot") }
    }

    pub(super) fn configs(&self) -> Vec<DiskConfig> {
        let Self { first, second, .. } = self;
        vec![disk(first, ReadWrite), disk(second, ReadOnly), disk(second, Overlay)]
    }

    /// Checks that the guest writes and reads what is in the files.
    pub(super) fn check(&self, guest: &TestGuest) {
        guest.probe("p:requests blk_mq_start_request");
        assert_eq!(guest.work(&format!("diskread /dev/vda {BLOCKS}")), 1, "block 0 is right");
        assert_eq!(guest.work(&format!("diskwrite /dev/vda {BLOCKS}")), BLOCKS);
        // And one to flush it.
        assert_eq!(guest.hits("requests"), 2 * BLOCKS + 1);
        let expected: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
        assert!(std::fs::read(&self.first).unwrap() == expected, "it has what the guest wrote");
        let exits = guest.vm.exit_counts().mmio;
        assert_eq!(guest.work(&format!("par 2 diskread /dev/vda {BLOCKS}")), 2 * BLOCKS);
        assert_eq!(guest.vm.exit_counts().mmio, exits, "KVM itself notifies the disk's thread");
        assert_eq!(guest.work(&format!("diskread /dev/vdb {BLOCKS}")), BLOCKS / 2);
        let refused = guest.answer_line(guest.send(WRITE_SECOND), WRITE_SECOND);
        assert_eq!(refused, "error diskwrite: write: errno 1 (0 done)");
        assert_eq!(guest.work(&format!("diskwrite /dev/vdc {BLOCKS}")), BLOCKS);
        assert_eq!(guest.work(&format!("diskread /dev/vdc {BLOCKS}")), BLOCKS);
        assert_eq!(guest.work(&format!("diskread /dev/vdb {BLOCKS}")), BLOCKS / 2);
        let refused = guest.vm.snapshot(&self.snapshot).unwrap_err();
        assert!(refused.to_string().contains("an overlay's changes are thrown away"), "{refused}");
        guest.assert_unharmed();
    }

    /// Checks after a reboot that what the guest wrote is there.
    pub(super) fn check_kept(&self, guest: &TestGuest) {
        assert_eq!(guest.work(&format!("diskread /dev/vda {BLOCKS}")), BLOCKS);
        // A file that becomes shorter is an error of the guest's requests, and nothing more.
        File::options().write(true).open(&self.first).unwrap().set_len(BLOCK).unwrap();
        let failed = guest.answer_line(guest.send(READ_TWO), READ_TWO);
        assert_eq!(failed, "error diskread: read: errno 5 (1 done)");
    }
}

/// Returns true if block `number` of a disk is as the workload writes it.
fn has(disk: &Path, number: u64) -> bool {
    let mut found = vec![0; usize::try_from(BLOCK).unwrap()];
    File::open(disk).unwrap().read_exact_at(&mut found, number * BLOCK).unwrap();
    found == block(number)
}

/// Pauses a guest that has written some of the blocks of its disk, and not all. Returns where its
/// answer to `command` begins. On a busy machine the guest may be through before this thread runs
/// again: then it writes them once more.
fn pause_while_it_writes(guest: &TestGuest, path: &Path, command: &str) -> u64 {
    for _ in 0..20 {
        let from = guest.send(command);
        guest.wait_until("it writes", |_| has(path, 1));
        guest.vm.pause().unwrap();
        if !has(path, BLOCKS - 1) {
            return from;
        }
        guest.vm.resume().unwrap();
        assert_eq!(guest.answer(from, command), BLOCKS);
        empty_disk(path);
    }
    panic!("it was through each time");
}

fn a_restored_guest_goes_on_with_its_disk_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let [saved, snapshot] = ["saved", "snapshot"].map(|name| dir.path().join(name));
    let sides = Sides::new(dir.path(), 1);
    let (path, guest) = (sides.disk.clone(), sides.guest(1));
    let command = format!("diskwrite /dev/vda {BLOCKS}");
    let from = pause_while_it_writes(&guest, &path, &command);
    guest.vm.snapshot(&snapshot).unwrap();
    copy_with_time(&path, &saved);
    assert!(!has(&saved, BLOCKS - 1), "the snapshot is of the middle of its work");
    guest.vm.resume().unwrap();
    assert_eq!(guest.answer(from, &command), BLOCKS);
    assert!(has(&path, BLOCKS - 1));
    drop(guest);

    let restore = |disks: &[DiskConfig]| {
        Vm::restore(host(), &snapshot, &HostSides { disks: disks.to_vec(), ..sides.given() })
    };
    let refused = |disks: &[DiskConfig]| restore(disks).map(drop).unwrap_err().to_string();
    assert!(refused(&[]).contains("give each again with --disk"), "{}", refused(&[]));
    for wrong in [disk(&path, ReadWrite), disk(&saved, ReadOnly)] {
        let error = refused(std::slice::from_ref(&wrong));
        assert!(error.contains("not as it was when the snapshot was taken"), "{error}");
    }
    let twin = start(restore(&[disk(&saved, ReadWrite)]).unwrap());
    assert_eq!(twin.answer(0, &command), BLOCKS);
    assert!(has(&saved, BLOCKS - 1));
    assert_eq!(twin.work(&format!("diskread /dev/vda {BLOCKS}")), BLOCKS);
    twin.assert_unharmed();
}

fn a_disk_that_cannot_be_used_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = empty(dir.path(), "disk");
    let path = path.to_str().unwrap();
    let files = Service::boot_files();
    let with = |disks: &[&str]| {
        let files = files.iter().map(String::as_str);
        let disks = disks.iter().flat_map(|disk| ["--disk", disk]);
        files.chain(disks).map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = |disks: &[&str]| {
        let args = with(disks);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let odd = dir.path().join("odd");
    std::fs::write(&odd, [0; 1000]).unwrap();
    let many = vec!["/dev/zero"; 32];
    for (disks, reason) in [
        (&["/nonexistent/disk"][..], "disk /nonexistent/disk: No such file"),
        (&["/dev"], "disk /dev:"),
        (&["/dev/null,readonly"], "neither a file nor a block device"),
        (&[odd.to_str().unwrap()], "1000 bytes are not a whole number of sectors"),
        (&[&format!("{path},ro")], "`ro` is no mode of a disk"),
        (&[path, path], "in use by another virtual machine"),
        (&many, "32 disks, network interfaces, vsock devices and virtio consoles: give at most 30"),
    ] {
        let error = refused(disks);
        assert!(error.contains(reason), "{disks:?}: {error}");
    }
    let args = with(&[path]);
    let service = Service::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let status = http::ask(service.socket(), "GET", "/v1/vm", &[], &[]).json();
    assert_eq!(status["disks"], serde_json::json!([{"path": path, "mode": "readwrite"}]));
    for mode in ["", ",readonly", ",overlay"] {
        let error = refused(&[&format!("{path}{mode}")]);
        assert!(error.contains("in use by another virtual machine"), "{error}");
    }
}
