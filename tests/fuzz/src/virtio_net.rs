//! A network interface's queues as a hostile driver writes them.

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenNet;

static NET: LazyLock<DrivenNet> = LazyLock::new(DrivenNet::default);

pub(crate) fn run(data: &[u8]) {
    let _ = NET.drive(&data[..data.len().min(1 << 16)]);
}
