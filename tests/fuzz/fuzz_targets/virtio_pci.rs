//! The registers of virtio devices on a PCI bus, their queues and their host's sides, as a hostile
//! driver uses them.
#![no_main]

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenPci;
use libfuzzer_sys::fuzz_target;

static BUS: LazyLock<DrivenPci> = LazyLock::new(DrivenPci::default);

fuzz_target!(|data: &[u8]| BUS.drive(&data[..data.len().min(1 << 12)]));
