//! A vCPU: one thread owns its file descriptor and does all its ioctls. Others send it commands
//! and kick it out of the guest (immediate_exit and a real-time signal).

mod command;
mod core;
mod debug;
mod error;
mod exits;
mod hold;
mod power_on;
mod remote;
mod run;
mod state;
mod stats;
mod thread;

pub(crate) use command::Command;
pub use error::StepError;
pub use exits::ExitCounts;
pub(crate) use remote::VcpuRemote;
pub(crate) use state::{Refusal, VcpuState};
pub use stats::StatsError;
pub(crate) use thread::spawn;
