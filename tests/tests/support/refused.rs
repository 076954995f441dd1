//! `exoprobe run` that does not come about.

use exoprobe_tests::{PATIENCE, exoprobe, finish};

/// Runs the program, which must refuse; gives what it wrote to standard error.
pub(crate) fn refused(args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut command = exoprobe();
    let output = finish(command.arg("run").arg("--socket").arg(&socket).args(args), PATIENCE);
    assert!(!output.status.success(), "{args:?} was taken");
    assert!(!socket.exists(), "nothing is left");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
