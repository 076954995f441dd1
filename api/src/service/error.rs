//! Why a service could not start.

use std::path::PathBuf;

use exoprobe_introspect::btf::FileError;
use exoprobe_introspect::{LinesError, LoadError};
use exoprobe_probes::BatchError;
use exoprobe_vmm::{ControlError, CreateError, HostError, LockError};

/// Why a service could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The host cannot run guests.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The guest could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The guest's memory cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The given symbols are of no use.
    #[error(transparent)]
    Symbols(#[from] LoadError),
    /// The given types are of no use.
    #[error("cannot take types from {path}: {source}")]
    Types {
        /// The file.
        path: PathBuf,
        /// Why.
        source: FileError,
    },
    /// The given source lines are of no use.
    #[error(transparent)]
    DebugInfo(#[from] LinesError),
    /// A probe that was asked for is refused.
    #[error(transparent)]
    Probe(#[from] BatchError),
    /// The guest did not start.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}
