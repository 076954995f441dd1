//! Files about the guest's kernel: its symbols, and its source lines.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::FileError;
use exoprobe_introspect::lines::LinesProblem;
use exoprobe_introspect::symbols::ElfError;
use exoprobe_introspect::{SourceLines, SymbolTable};
use exoprobe_probes::FoundTypes;

use super::error::StartError;

/// Symbols and source lines that were found.
#[derive(Debug)]
pub(super) struct KernelFiles {
    /// As linked; none where the guest's memory has them.
    pub(super) symbols: Option<SymbolTable>,
    pub(super) lines: Option<SourceLines>,
}

impl KernelFiles {
    /// Loads the given files; by default the kernel's own file.
    ///
    /// # Errors
    /// Of files that were asked for. What is wrong with others is logged, unless they are only
    /// without symbols or lines.
    pub(super) fn load(
        symbols: Option<&Path>,
        debug_info: Option<&Path>,
        kernel: &Path,
    ) -> Result<Self, StartError> {
        let path = symbols.unwrap_or(kernel);
        let symbols = match symbols {
            Some(path) => Some(SymbolTable::load(path)?),
            // A vmlinux has them before it runs; of any other kernel the engine reads them once it
            // does.
            None => own_symbols(kernel),
        };
        let lines = match (debug_info, &symbols) {
            (Some(debug_info), symbols) => {
                let lines = SourceLines::open(debug_info)?;
                symbols.as_ref().map(|symbols| lines.slide(symbols)).transpose()?;
                Some(lines)
            }
            (None, Some(symbols)) => own_lines(path, symbols),
            (None, None) => None,
        };
        Ok(Self { symbols, lines })
    }
}

/// Where BTF is looked for near a kernel's file: `KERNEL.btf`, then `vmlinux.btf` in its folder.
pub(crate) fn types_candidates(kernel: &Path) -> Vec<PathBuf> {
    let Some(name) = kernel.file_name() else { return Vec::new() };
    let mut own_name = name.to_owned();
    own_name.push(".btf");
    vec![kernel.with_file_name(own_name), kernel.with_file_name("vmlinux.btf")]
}

/// BTF near a kernel's file. Files that are no BTF are logged and passed over.
pub(super) fn types_near(kernel: &Path) -> Option<FoundTypes> {
    types_candidates(kernel).into_iter().find_map(|file| match Btf::open(&file) {
        Ok(types) => Some(FoundTypes { types: Arc::new(types), file }),
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("{} is not used: {error}", file.display());
            None
        }
    })
}

fn own_symbols(kernel: &Path) -> Option<SymbolTable> {
    match SymbolTable::load(kernel) {
        Ok(symbols) => Some(symbols),
        Err(error) => {
            if !error.is_without_symbols() {
                tracing::warn!("{error}; symbols are read from the guest's memory");
            }
            None
        }
    }
}

fn own_lines(path: &Path, symbols: &SymbolTable) -> Option<SourceLines> {
    match SourceLines::with_symbols(path, symbols) {
        Ok(lines) => Some(lines),
        Err(error) => {
            let is_without = matches!(
                error.problem,
                LinesProblem::NoDebugInfo | LinesProblem::Elf(ElfError::NotElf)
            );
            if !is_without {
                tracing::warn!("{error}; there are no source lines");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    const SEED: &[u8] = include_bytes!("../../../tests/fuzz/seeds/source_lines/dwarf4.elf");
    const MAP: &str = "ffffffff81000000 T _stext\nffffffff81000000 T outer\n\
        ffffffff81000040 T plain\nffffffff81000080 T _etext\n";

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, contents).unwrap();
            path
        }
    }

    fn folder() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// Loads; gives what was logged as well.
    fn load(
        symbols: Option<&Path>,
        debug_info: Option<&Path>,
        kernel: &Path,
    ) -> (Result<KernelFiles, StartError>, String) {
        logged(|| KernelFiles::load(symbols, debug_info, kernel))
    }

    /// Result of `run`, and its log.
    fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let result = tracing::subscriber::with_default(subscriber, run);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        (result, text)
    }

    /// The small kernel with an address of its symbol table beyond the file.
    fn damaged() -> Vec<u8> {
        let mut elf = SEED.to_vec();
        elf[40..48].copy_from_slice(&(1u64 << 40).to_le_bytes());
        elf
    }

    /// The small kernel without its symbol table, the second section.
    fn stripped() -> Vec<u8> {
        let mut elf = SEED.to_vec();
        let headers = usize::from_le_bytes(elf[40..48].try_into().unwrap());
        let kind = &mut elf[headers + 2 * 64 + 4];
        assert_eq!(std::mem::replace(kind, 1), 2);
        elf
    }

    fn bzimage() -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image
    }

    #[test]
    fn a_file_that_was_asked_for_must_be_whole() {
        let folder = folder();
        let kernel = folder.file("vmlinux", SEED);
        for (name, contents) in [("damaged", damaged()), ("image", bzimage())] {
            let wrong = folder.file(name, &contents);
            let (files, _) = load(Some(&wrong), None, &kernel);
            assert!(matches!(files, Err(StartError::Symbols(_))), "{name}");
            let (files, _) = load(None, Some(&wrong), &kernel);
            assert!(matches!(files, Err(StartError::DebugInfo(_))), "{name}");
        }
        let missing = folder.0.path().join("missing");
        assert!(load(Some(&missing), None, &kernel).0.is_err());
        assert!(load(None, Some(&missing), &kernel).0.is_err());
    }

    #[test]
    fn a_kernel_without_symbols_is_none_and_a_damaged_one_is_told() {
        let folder = folder();
        for (name, contents) in [("bzImage", bzimage()), ("stripped", stripped())] {
            let (files, log) = load(None, None, &folder.file(name, &contents));
            let files = files.unwrap();
            assert!(files.symbols.is_none() && files.lines.is_none() && log.is_empty(), "{log}");
        }
        let wrong = [folder.file("damaged", &damaged()), folder.0.path().join("missing")];
        for kernel in wrong {
            let (files, log) = load(None, None, &kernel);
            assert!(files.unwrap().symbols.is_none());
            assert!(log.contains("WARN") && log.contains(kernel.to_str().unwrap()), "{log}");
        }
    }

    #[test]
    fn lines_come_from_the_symbols_file_or_from_one_of_the_same_kernel() {
        let folder = folder();
        let vmlinux = folder.file("vmlinux", SEED);
        let map = folder.file("System.map", MAP.as_bytes());
        let image = folder.file("bzImage", &bzimage());
        for (symbols, debug_info, kernel, has_lines) in [
            (None, None, &vmlinux, true),
            (Some(&vmlinux), None, &image, true),
            (Some(&map), None, &vmlinux, false),
            (Some(&map), Some(&vmlinux), &image, true),
            (None, Some(&vmlinux), &image, true),
        ] {
            let (files, log) = load(symbols.map(|p| &**p), debug_info.map(|p| &**p), kernel);
            assert_eq!(files.unwrap().lines.is_some(), has_lines);
            assert!(log.is_empty(), "{log}");
        }
        let other = folder.file("other", MAP.replace("81000040", "81000050").as_bytes());
        let refused = load(Some(&other), Some(&vmlinux), &image).0.unwrap_err().to_string();
        assert!(refused.contains("another kernel"), "{refused}");
    }

    #[test]
    fn types_near_a_kernel_are_found_and_other_files_are_only_logged() {
        // The smallest BTF: a header, no type, and the empty string.
        let btf = [&[0x9f, 0xeb, 1, 0, 24, 0, 0, 0][..], &[0; 12], &[1, 0, 0, 0], &[0]].concat();
        let near = |files: &[(&str, &[u8])]| {
            let folder = folder();
            for (name, contents) in files {
                folder.file(name, contents);
            }
            let kernel = folder.0.path().join("bzImage");
            let (found, log) = logged(|| types_near(&kernel));
            let name = |found: FoundTypes| found.file.file_name().map(|n| n.to_owned());
            (found.and_then(name).map(|n| n.into_string().unwrap()), log)
        };
        assert_eq!(near(&[]), (None, String::new()));
        let (found, log) = near(&[("vmlinux.btf", &btf)]);
        assert_eq!((found.as_deref(), &*log), (Some("vmlinux.btf"), ""));
        let (found, _) = near(&[("vmlinux.btf", &btf), ("bzImage.btf", &btf)]);
        assert_eq!(found.as_deref(), Some("bzImage.btf"));
        let (found, log) = near(&[("vmlinux.btf", b"hello")]);
        assert_eq!(found, None);
        assert!(log.contains("WARN") && log.contains("vmlinux.btf is not used"), "{log}");
        let (found, log) = near(&[("vmlinux.btf", &btf), ("bzImage.btf", &btf[..10])]);
        assert_eq!(found.as_deref(), Some("vmlinux.btf"));
        assert!(log.contains("bzImage.btf is not used"), "{log}");
    }
}
