//! Reasons why a synthetic event is not defined, deleted or found.

/// The reason why a synthetic event is not defined, deleted or found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticError {
    /// There is such an event.
    #[error("there is an event `synthetic/{0}` already: delete it by `!{0}` first")]
    Exists(String),
    /// There is none.
    #[error("there is no synthetic event `{0}`: `synthetic_events` has those that there are")]
    NotThere(String),
    /// It is in use.
    #[error(
        "the synthetic event `{0}` is enabled or has triggers, or triggers of other events make or switch it: end that \
         first"
    )]
    Busy(String),
}

impl SyntheticError {
    /// Name of the errno.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Exists(_) => "EEXIST",
            Self::NotThere(_) => "ENOENT",
            Self::Busy(_) => "EBUSY",
        }
    }
}
