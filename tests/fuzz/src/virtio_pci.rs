//! The registers of virtio devices on a PCI bus, their queues and their host's sides, as a hostile
//! driver uses them.

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenPci;

static BUS: LazyLock<DrivenPci> = LazyLock::new(DrivenPci::default);

pub(crate) fn run(data: &[u8]) {
    BUS.drive(&data[..data.len().min(1 << 12)]);
}
