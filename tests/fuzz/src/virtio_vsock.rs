//! A vsock device's queues as a hostile driver writes them.

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenVsock;

static VSOCK: LazyLock<DrivenVsock> = LazyLock::new(DrivenVsock::default);

pub(crate) fn run(data: &[u8]) {
    let _ = VSOCK.drive(&data[..data.len().min(1 << 16)]);
}
