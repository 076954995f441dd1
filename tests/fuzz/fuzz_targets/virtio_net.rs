//! A network interface's queues as a hostile driver writes them.
#![no_main]

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenNet;
use libfuzzer_sys::fuzz_target;

static NET: LazyLock<DrivenNet> = LazyLock::new(DrivenNet::default);

fuzz_target!(|data: &[u8]| {
    let _ = NET.drive(&data[..data.len().min(1 << 16)]);
});
