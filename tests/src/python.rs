//! Programs in Python that tests run, with packages of fixed versions from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{PATIENCE, finish};

/// Makes environments: `scripts/python.sh`.
pub(crate) fn script() -> PathBuf {
    source_tree().join("scripts/python.sh")
}

fn source_tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of `tests/python/`.
#[must_use]
pub fn python_file(name: &str) -> PathBuf {
    source_tree().join("tests/python").join(name)
}

/// The folder of an environment with the packages of `tests/python/NAME.txt`, installed at its
/// first use.
///
/// # Panics
/// When they cannot be installed: the message has the script's output.
#[must_use]
pub fn python_environment(name: &str) -> PathBuf {
    let requirements = python_file(&format!("{name}.txt"));
    let output = finish(Command::new(script()).arg(requirements), PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/python.sh: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().into()
}
