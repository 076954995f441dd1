//! The engine: registers probes, arms and disarms them, and counts their hits.
//!
//! Registration and removal take one lock; hits wait for none. Both share an immutable table that
//! is replaced as a whole. Each folder imports only those below it in this list, and each file only
//! files that do not import it:
//!
//! | folder | one reason to change |
//! |---|---|
//! | `facade` | questions and verbs of the library's users |
//! | `hook` | the machine's exits |
//! | `control` | registration: everything that the one lock guards |
//! | `optimize` | detours and their rings |
//! | `hit` | the data path of a hit |
//! | `probe` | what a probe and its site have |
//! | `arguments` | fetch arguments |
//! | `patch` | bytes written for probes |
//! | `kernel` | the running kernel |

pub(crate) mod arguments;
pub(crate) mod control;
mod facade;
mod hit;
mod hook;
pub(crate) mod kernel;
mod optimize;
pub(crate) mod patch;
pub(crate) mod probe;
#[cfg(test)]
mod tests;

pub use arguments::error::ParameterError;
pub use control::register::{Admission, Registration};
pub use control::room::Limits;
pub use exoprobe_guest::Guest;
pub use facade::admission::Rehearsal;
pub use facade::backtrace::Frame;
pub use facade::batch::{Batch, Selection, UnregisterError};
pub use facade::engine::{Engine, KeptProbes};
pub use facade::filters::EventField;
pub use facade::instances::InstanceEventStatus;
pub use facade::optimize::StopStatistics;
pub use facade::query::{CodeLine, KernelMemory, ModuleStatus};
pub use facade::sample::{NewSampler, SampleCounts};
pub use facade::scoped::ScopedProbes;
#[cfg(feature = "testing")]
pub use facade::stops::TimedGuest;
pub use facade::synthetic::SyntheticStatus;
pub use facade::threads::AddressSpace;
pub use facade::wildcard::{ExpandedDefinition, Expansion};
pub use hit::actions::Holder;
pub use kernel::error::AttachError;
pub use kernel::reserved::{BlacklistEntry, Reserved};
pub use kernel::state::{FoundTypes, KernelHints, RunningKernel};
pub use kernel::tasks::{NoTasks, Process};
#[cfg(feature = "testing")]
pub use optimize::liveness::Addresses;
pub use optimize::optimizer::Optimization;
pub use optimize::search::SearchStatistics;
#[cfg(feature = "testing")]
pub use optimize::search::{Search, SearchError};
pub use probe::handlers::{
    DATA_SIZE_MAX, EntryHandler, EntryVerdict, FaultHandler, Hit, Instance, Kprobe, Kretprobe,
    NewProbe, PostHandler, PreHandler, Recovery, ReturnHandler, Verdict,
};
