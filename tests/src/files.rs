//! Files of the guest's build.

use std::path::{Path, PathBuf};

/// Names the guest's folder, on a machine without this source tree.
pub const GUEST_ENV: &str = "EXOPROBE_GUEST";

/// The folder of what `guest/build.sh tiny-6.12` builds, within `out/`.
pub(crate) const LINUX_6_12: &str = "tiny-6.12";

pub(crate) fn guest_folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest");
    std::env::var_os(GUEST_ENV).map_or(here, PathBuf::from)
}

/// A file of the guest's build: in `out/` of the folder that `EXOPROBE_GUEST` names, or else of
/// this source tree's `guest/`.
///
/// # Panics
/// When it was not built: `make guest` does that, or another target for a variant of the guest.
#[must_use]
pub fn guest_file(name: &str) -> PathBuf {
    let path = guest_folder().join("out").join(name);
    let target = match name.split_once('/') {
        Some((LINUX_6_12, _)) => "guest-6.12",
        Some(("kprobe-events", _)) => "guest-events",
        _ => "guest",
    };
    assert!(path.exists(), "{} is not there: run `make {target}` first", path.display());
    path
}

/// Names the disk of Debian, where it is not among the guest's files.
pub const DEBIAN_DISK_ENV: &str = "EXOPROBE_DEBIAN_DISK";

/// The disk of Debian: `debian/disk.raw` of the guest's files, or the one that
/// `EXOPROBE_DEBIAN_DISK` names.
#[must_use]
pub fn debian_disk() -> PathBuf {
    let built = || guest_folder().join("out/debian/disk.raw");
    std::env::var_os(DEBIAN_DISK_ENV).map_or_else(built, PathBuf::from)
}
