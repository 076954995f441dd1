//! Source files and lines of the kernel's code, from the DWARF of its vmlinux.
//!
//! DWARF is large: hundreds of megabytes in a distribution's kernel. Opening reads headers alone;
//! the first query reads the sections, which stay in memory, and a unit (a source file with its
//! includes) is parsed when it is first needed.

mod code;
mod context;
mod elf;
mod error;
mod landmarks;
mod place;
mod section;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use exoprobe_guest::Gva;
use gimli::SectionId;
use object::read::ReadCache;

use crate::regular_file::{self, OpenError};
use crate::symbols::SymbolTable;
pub use error::{LineError, LinesError, LinesProblem};
pub use place::{InlinedCall, SourceLocation, SourcePlace};

use context::DebugInfo;
use elf::Placed;
use landmarks::Landmarks;

/// Most files that an error names.
const NAMED: usize = 5;

/// The source lines of a kernel. Threads may share it; they wait for each other.
pub struct SourceLines {
    path: PathBuf,
    image: Image,
    sections: Vec<Placed>,
    landmarks: Landmarks,
    debug_info: Mutex<Option<Result<DebugInfo, LinesProblem>>>,
}

enum Image {
    File(File),
    Bytes(Vec<u8>),
}

impl std::fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLines").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SourceLines {
    /// Opens an ELF file with DWARF and symbols; of the DWARF nothing is read yet.
    ///
    /// # Errors
    /// [`LinesError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, LinesError> {
        let lines = Self::find(path)?;
        let symbols = SymbolTable::load(path).map_err(|error| LinesError {
            path: path.to_owned(),
            problem: LinesProblem::Symbols(error.into()),
        })?;
        Ok(Self { landmarks: Landmarks::of(&symbols), ..lines })
    }

    /// [`Self::open`] of a file whose symbols have been loaded already.
    ///
    /// # Errors
    /// [`LinesError`], which names the file.
    pub fn with_symbols(path: &Path, symbols: &SymbolTable) -> Result<Self, LinesError> {
        let landmarks = Landmarks::of(&symbols.with_slide(0));
        Ok(Self { landmarks, ..Self::find(path)? })
    }

    /// The lines of an ELF file held in memory, whose symbols, if it has any, may be damaged.
    ///
    /// # Errors
    /// [`LinesError`], with an empty path.
    pub fn from_elf(bytes: Vec<u8>) -> Result<Self, LinesError> {
        let path = PathBuf::new();
        let sections = match elf::find(&*bytes) {
            Ok(sections) => sections,
            Err(problem) => return Err(LinesError { path, problem }),
        };
        let symbols = SymbolTable::from_elf(&bytes).ok();
        let landmarks = symbols.as_ref().map(Landmarks::of).unwrap_or_default();
        let image = Image::Bytes(bytes);
        Ok(Self { path, image, sections, landmarks, debug_info: Mutex::default() })
    }

    fn find(path: &Path) -> Result<Self, LinesError> {
        let opened = regular_file::open(path).map_err(|error| {
            LinesProblem::Unreadable(Arc::new(match error {
                OpenError::Io(error) => error,
                OpenError::NotAFile => io::Error::other(error),
            }))
        });
        let found = opened.and_then(|(file, _)| Ok((elf::find(&ReadCache::new(&file))?, file)));
        let path = path.to_owned();
        match found {
            Ok((sections, file)) => Ok(Self {
                path,
                image: Image::File(file),
                sections,
                landmarks: Landmarks::default(),
                debug_info: Mutex::default(),
            }),
            Err(problem) => Err(LinesError { path, problem }),
        }
    }

    /// How far the kernel of these symbols was moved from where this file has it (KASLR), in bytes.
    ///
    /// # Errors
    /// [`LinesProblem::OtherKernel`] where functions of the file, as many as are looked for, were
    /// not all moved alike.
    pub fn slide(&self, running: &SymbolTable) -> Result<i64, LinesError> {
        self.landmarks.slide(running).map_err(|name| {
            let problem = LinesProblem::OtherKernel { name: name.to_owned() };
            LinesError { path: self.path.clone(), problem }
        })
    }

    /// Where the instruction at a running kernel's address comes from. `None` where it is not
    /// known: of modules, assembly without lines, and outside the text.
    ///
    /// # Errors
    /// [`LinesError`]; a failed read is not repeated.
    pub fn lookup(&self, at: Gva, slide: i64) -> Result<Option<SourceLocation>, LinesError> {
        self.ask(|debug_info| debug_info.location(linked(at, slide)))
    }

    /// The line of each of some addresses, without the inlined calls.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub fn places(
        &self,
        addresses: impl IntoIterator<Item = Gva>,
        slide: i64,
    ) -> Result<Vec<Option<SourcePlace>>, LinesError> {
        self.ask(|debug_info| debug_info.places(addresses.into_iter().map(|at| linked(at, slide))))
    }

    /// Where the code of a line begins, in each function that has it: itself, or in an inlined
    /// call. `file` is a path from where the kernel was built, or the end of one; addresses are of
    /// the running kernel, ascending.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn code(&self, file: &str, line: u32, slide: i64) -> Result<Vec<Gva>, LineError> {
        let mut found = self.ask(|debug_info| debug_info.code(file, line))?;
        // A whole path is that file, whatever others end like it.
        if let Some(exact) = found.remove(file) {
            found = [(file.to_owned(), exact)].into();
        }
        let asked = || file.to_owned();
        if found.len() > 1 {
            let files = found.into_keys().take(NAMED).collect();
            return Err(LineError::Ambiguous { file: asked(), files });
        }
        let Some((path, code)) = found.pop_first() else {
            return Err(LineError::NoFile { file: asked(), line });
        };
        match (code.addresses.is_empty(), code.next) {
            (false, _) => Ok(code.addresses.into_iter().map(|at| running(at, slide)).collect()),
            (true, Some(next)) => Err(LineError::NoCode { file: path, line, next }),
            (true, None) => Err(LineError::NoFile { file: asked(), line }),
        }
    }

    fn ask<T>(
        &self,
        question: impl FnOnce(&mut DebugInfo) -> Result<T, gimli::Error>,
    ) -> Result<T, LinesError> {
        let mut debug_info = self.debug_info.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match debug_info.get_or_insert_with(|| self.read()) {
            Ok(debug_info) => question(debug_info).map_err(LinesProblem::Damaged),
            Err(problem) => Err(problem.clone()),
        };
        answer.map_err(|problem| LinesError { path: self.path.clone(), problem })
    }

    fn read(&self) -> Result<DebugInfo, LinesProblem> {
        let mut contents: Vec<(SectionId, Vec<u8>)> = Vec::new();
        for section in &self.sections {
            let bytes = match &self.image {
                Image::File(file) => section.read(&mut &*file)?,
                Image::Bytes(bytes) => section.read(&mut Cursor::new(bytes))?,
            };
            contents.push((section.id, bytes));
        }
        let take = |wanted: SectionId| {
            let found = contents.iter_mut().find(|(id, _)| *id == wanted);
            found.map(|(_, bytes)| std::mem::take(bytes)).unwrap_or_default()
        };
        DebugInfo::new(take).map_err(LinesProblem::Damaged)
    }
}

fn running(at: u64, slide: i64) -> Gva {
    Gva(at.wrapping_add(slide.cast_unsigned()))
}

fn linked(at: Gva, slide: i64) -> u64 {
    at.0.wrapping_sub(slide.cast_unsigned())
}
