//! Snapshot files: bytes as they come where they begin with `EXOPROBE`; else changes to the
//! metadata and the header of a whole file, whose checksums are then right, and the devices
//! restored from it.

use std::sync::LazyLock;

use exoprobe_vmm::DrivenSnapshot;

static SNAPSHOT: LazyLock<DrivenSnapshot> = LazyLock::new(DrivenSnapshot::default);

pub(crate) fn run(data: &[u8]) {
    if data.starts_with(b"EXOPROBE") {
        // A file that is right would have megabytes.
        assert!(SNAPSHOT.read(data).is_err());
    } else if let Ok(edits) = std::str::from_utf8(data) {
        SNAPSHOT.restore(edits);
    }
}
