//! A console's queues as a hostile driver writes them.
#![no_main]

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenConsole;
use libfuzzer_sys::fuzz_target;

static CONSOLE: LazyLock<DrivenConsole> = LazyLock::new(DrivenConsole::default);

fuzz_target!(|data: &[u8]| {
    let _ = CONSOLE.drive(&data[..data.len().min(1 << 16)]);
});
