//! Symbol tables from files.

use std::fs::{self, File};
use std::path::PathBuf;

use exoprobe_introspect::symbols::{ContentError, MAX_FILE_BYTES};
use exoprobe_introspect::{LoadError, SymbolTable};

/// A path of this test's own, nothing there yet.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("load-{name}"));
    let _ = fs::remove_file(&path);
    path
}

fn written(name: &str, contents: &[u8]) -> PathBuf {
    let path = path(name);
    fs::write(&path, contents).unwrap();
    path
}

#[test]
fn a_map_is_told_by_its_contents() {
    let map = b"ffffffff81000000 T _text\nffffffff81000000 T f\nffffffff81001000 T _etext\n";
    let table = SymbolTable::load(&written("vmlinux", map)).unwrap();
    assert_eq!(table.lookup("f").unwrap().size, 0x1000);
}

#[test]
fn files_of_no_use_are_refused_with_their_path() {
    let missing = SymbolTable::load(&path("missing")).unwrap_err();
    assert!(matches!(missing, LoadError::Missing { .. }));
    assert!(missing.to_string().contains("load-missing does not exist"), "{missing}");
    let directory = SymbolTable::load(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap_err();
    assert!(matches!(directory, LoadError::NotAFile { .. }));
    let empty = SymbolTable::load(&written("empty", b"")).unwrap_err();
    assert!(matches!(empty, LoadError::Content { source: ContentError::Empty, .. }));
    let gzip = SymbolTable::load(&written("gzip", &[0x1f, 0x8b, 8, 0])).unwrap_err();
    assert!(matches!(gzip, LoadError::Content { source: ContentError::Unrecognized, .. }));
    let program = SymbolTable::load(&std::env::current_exe().unwrap()).unwrap_err();
    assert!(matches!(program, LoadError::Content { source: ContentError::Elf(_), .. }));
    let through_file = PathBuf::from("/proc/version/x");
    let unreadable = SymbolTable::load(&through_file).unwrap_err();
    assert!(matches!(unreadable, LoadError::Unreadable { .. }), "{unreadable:?}");
}

#[test]
fn a_file_beyond_the_limit_is_not_read() {
    let path = path("huge");
    // Sparse: takes no space.
    File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let refused = SymbolTable::load(&path).unwrap_err();
    assert!(matches!(refused, LoadError::TooLarge { .. }));
    fs::remove_file(&path).unwrap();
}
