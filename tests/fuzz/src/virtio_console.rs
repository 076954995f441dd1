//! A console's queues as a hostile driver writes them.

use std::sync::LazyLock;

use exoprobe_vmm::devices::DrivenConsole;

static CONSOLE: LazyLock<DrivenConsole> = LazyLock::new(DrivenConsole::default);

pub(crate) fn run(data: &[u8]) {
    let _ = CONSOLE.drive(&data[..data.len().min(1 << 16)]);
}
