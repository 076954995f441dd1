//! Failures of the check itself.

use std::path::PathBuf;

/// Why the workspace could not be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// `cargo metadata` did not run, or failed.
    #[error("`cargo metadata` failed: {0}; run the check in the workspace")]
    Metadata(String),
    /// A source file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// A source file is not valid Rust.
    #[error("cannot parse {}: {source}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: syn::Error,
    },
    /// A `mod` declaration without a file.
    #[error("no file for `mod {module};` of {}", .file.display())]
    NoModule {
        /// File of the declaration.
        file: PathBuf,
        /// Name of the module.
        module: String,
    },
}
