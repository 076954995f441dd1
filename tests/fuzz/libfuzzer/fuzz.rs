//! The fuzz target that `EXOPROBE_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use exoprobe_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("EXOPROBE_FUZZ_TARGET").expect("EXOPROBE_FUZZ_TARGET names a target");
    let named = TARGETS.iter().find(|target| target.name == name);
    *named.unwrap_or_else(|| panic!("unknown fuzz target '{name}'"))
});

fuzz_target!(|data: &[u8]| (TARGET.run)(data));
