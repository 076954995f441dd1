//! FUSE requests to the mounted files, as the kernel sends them for any programs, and others.

use std::sync::LazyLock;

use exoprobe::DrivenMount;

static MOUNT: LazyLock<DrivenMount> = LazyLock::new(DrivenMount::default);

pub(crate) fn run(data: &[u8]) {
    MOUNT.drive(data);
}
