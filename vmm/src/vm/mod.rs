//! A virtual machine, from its configuration to its shutdown.

mod build;
mod cmdline;
mod control;
mod dump;
mod error;
mod guest;
mod host_limits;
mod power_on;
mod reboot;
mod snapshot;
#[cfg(test)]
mod tests;

pub use control::Vm;
pub use error::{ControlError, CreateError};
pub use reboot::{BootFiles, RebootError};
