//! A pipe in the place of a file is refused: opening it would wait for its writer.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use exoprobe_introspect::btf::FileError;
use exoprobe_introspect::{Btf, LoadError, SourceLines, SymbolTable};

/// It only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of opening a pipe that has no writer.
fn of_pipe<T: Send + 'static>(open: impl FnOnce(&Path) -> T + Send + 'static) -> T {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || answer.send(open(&pipe)));
    answered.recv_timeout(PATIENCE).expect("it does not wait for a writer")
}

#[test]
fn symbols_are_not_read_from_a_pipe() {
    let refused = of_pipe(SymbolTable::load).unwrap_err();
    assert!(matches!(refused, LoadError::NotAFile { .. }), "{refused}");
}

#[test]
fn types_are_not_read_from_a_pipe() {
    let refused = of_pipe(Btf::open).unwrap_err();
    assert!(matches!(refused, FileError::NotAFile), "{refused}");
}

#[test]
fn source_lines_are_not_read_from_a_pipe() {
    let refused = of_pipe(SourceLines::open).unwrap_err().to_string();
    assert!(refused.ends_with("cannot read it: not a regular file"), "{refused}");
}
