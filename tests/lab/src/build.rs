//! The builds of Bochs.

use std::path::PathBuf;

use crate::artifacts;
use crate::error::LabError;

/// A build of Bochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Bochs 3.0 without a debugger, with its loop for two CPUs mended (scripts/bochs.sh): quick.
    Quick,
    /// Debian's package, Bochs 2.7, whose debugger waits for `continue`.
    Debian,
}

impl Build {
    /// The display to name in `bochsrc`: neither is looked at.
    pub(crate) fn display(self) -> &'static str {
        match self {
            Self::Quick => "nogui",
            Self::Debian => "term",
        }
    }

    /// Its program, built at the first use.
    pub(crate) fn program(self) -> Result<PathBuf, LabError> {
        match self {
            Self::Quick => artifacts::bochs(),
            Self::Debian => Ok(PathBuf::from("bochs-bin")),
        }
    }

    /// Its arguments, in the folder of a run.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &["-q", "-f", "bochsrc"],
            Self::Debian => &["-q", "-f", "bochsrc", "-rc", "rc"],
        }
    }
}
