//! A disk's queue and requests as a hostile driver writes them.

use std::fs::File;
use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenBlk;

const LEN: u64 = 64 * 512;

static DISK: LazyLock<(File, DrivenBlk)> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("exoprobe-fuzz-{}.disk", std::process::id()));
    let file = File::create(&path).unwrap();
    file.set_len(LEN).unwrap();
    let disk = DrivenBlk::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    (file, disk)
});

pub(crate) fn run(data: &[u8]) {
    let (file, disk) = &*DISK;
    let _ = disk.drive(&data[..data.len().min(1 << 16)]);
    assert_eq!(file.metadata().unwrap().len(), LEN);
}
