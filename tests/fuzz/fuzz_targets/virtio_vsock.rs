//! A vsock device's queues as a hostile driver writes them.
#![no_main]

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenVsock;
use libfuzzer_sys::fuzz_target;

static VSOCK: LazyLock<DrivenVsock> = LazyLock::new(DrivenVsock::default);

fuzz_target!(|data: &[u8]| {
    let _ = VSOCK.drive(&data[..data.len().min(1 << 16)]);
});
