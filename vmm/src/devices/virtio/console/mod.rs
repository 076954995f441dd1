//! The virtio console, `/dev/hvc0` of a Linux guest: virtio console device (Virtual I/O Device 1.2,
//! 5.3) with one port, whose size is that of the host's terminal.
//!
//! | the driver | the device |
//! |---|---|
//! | gives no buffers to receive | keeps at most 64 KiB of input, then refuses more |
//! | gives buffers to receive that it cannot write to | gives them back empty; the input waits on |
//! | prints without end | keeps the last MiB |
//! | prints more than [`PRINT_MAX`] in one request | drops the rest of that request |
//! | prints from buffers outside RAM | drops the request |
//! | does not accept VIRTIO_CONSOLE_F_SIZE | notifies it of a change all the same |

mod device;
#[cfg(feature = "testing")]
mod driven;
mod port;
mod size;

pub(crate) use device::ConsoleSnapshot;
pub use device::VirtioConsole;
#[cfg(feature = "testing")]
pub use driven::DrivenConsole;
pub use size::TerminalSize;

/// Most bytes of a request that are printed: as many as the log keeps.
const PRINT_MAX: usize = 1 << 20;
