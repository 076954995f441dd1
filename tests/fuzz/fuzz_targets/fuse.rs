//! FUSE requests to the mounted files, as the kernel sends them for any programs, and others.
#![no_main]

use std::sync::LazyLock;

use exoprobe::DrivenMount;
use libfuzzer_sys::fuzz_target;

static MOUNT: LazyLock<DrivenMount> = LazyLock::new(DrivenMount::default);

fuzz_target!(|data: &[u8]| MOUNT.drive(data));
