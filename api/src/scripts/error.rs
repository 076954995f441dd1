//! Errors of scripts.

use exoprobe_probes::{BatchError, ProbeError};
use exoprobe_script::Diagnostics;

/// The reason why a script does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScriptError {
    /// Its text is wrong.
    #[error(transparent)]
    Script(#[from] Diagnostics),
    /// It asks for a part of the language that is not served.
    #[error("{place}: {what} is not served yet")]
    Unserved {
        /// The probe.
        place: String,
        /// The part of the language.
        what: String,
    },
    /// A probe needs more values than a record holds.
    #[error("{place}: the actions read {count} values, and a record holds {max}")]
    TooManyValues {
        /// The probe.
        place: String,
        /// The number of values.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// The kernel's memory does not have what the script reads.
    #[error(
        "{place}: {what} is not known: the guest's kernel has no types (BTF), or has not begun"
    )]
    Unknown {
        /// The probe.
        place: String,
        /// The value.
        what: String,
    },
    /// A probe was refused.
    #[error("{}: {}", .0.name, .0.error)]
    Refused(#[from] BatchError),
    /// Every probe of a pattern was refused.
    #[error("none of the {count} functions can be probed; the first, {first}")]
    AllRefused {
        /// The number of functions.
        count: usize,
        /// The first refusal.
        first: String,
    },
    /// A `profile` cannot be sampled.
    #[error("profile: {0}")]
    Sampler(#[from] ProbeError),
    /// Its `profile`s ask for too many samples.
    #[error("{place}: {rate} samples a second of each CPU, and a script takes at most {max}")]
    TooManySamples {
        /// The first of them that is too much.
        place: String,
        /// The number, with those before it.
        rate: u64,
        /// The limit.
        max: u64,
    },
    /// Too many run.
    #[error("{0} scripts run already: end one (`DELETE /v1/scripts/ID`) before the next")]
    TooMany(usize),
    /// There is no script of this number.
    #[error("there is no script {0}")]
    NoSuch(u32),
}
