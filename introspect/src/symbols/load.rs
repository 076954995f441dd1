//! Loads symbol tables from files and buffers, by their content.

use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use object::read::ReadCache;

use super::{ElfError, SymbolTable, SystemMapError, elf, system_map};
use crate::regular_file::{self, OpenError};

/// Largest file read for symbols or types, in bytes. A distribution's `vmlinux` with debug
/// information has some 400 to 900 MB.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// Bytes that identify the kind of a file: a bzImage's setup header ends within.
const HEAD_BYTES: usize = 0x206;

/// Offset and value of the `header` field of Linux's x86 boot protocol, in a bzImage.
const BZIMAGE_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");

/// Reasons why contents have no usable symbol table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The contents are empty.
    #[error("it is empty")]
    Empty,
    /// A compressed, bootable kernel.
    #[error("a bzImage holds no symbols: give the vmlinux or System.map of the same build")]
    BzImage,
    /// Neither an ELF file nor text that could be a `System.map`.
    #[error("neither an ELF vmlinux nor a System.map")]
    Unrecognized,
    /// An ELF file that cannot be used.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// A `System.map` that cannot be used.
    #[error("System.map: {0}")]
    SystemMap(#[from] SystemMapError),
}

/// Reasons why a file has no usable symbol table.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No such file.
    #[error("symbol file {} does not exist", path.display())]
    Missing {
        /// The file asked for.
        path: PathBuf,
    },
    /// A directory, device, pipe or socket.
    #[error("symbol file {} is not a regular file", path.display())]
    NotAFile {
        /// The file asked for.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot read symbol file {}: {source}", path.display())]
    Unreadable {
        /// The file asked for.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// Larger than [`MAX_FILE_BYTES`].
    #[error("symbol file {} has {bytes} bytes, more than the limit of {max}", path.display())]
    TooLarge {
        /// The file asked for.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The file was read, but cannot be used.
    #[error("symbol file {}: {source}", path.display())]
    Content {
        /// The file asked for.
        path: PathBuf,
        /// The fault.
        source: ContentError,
    },
}

impl LoadError {
    /// Returns true if the file is, or may be, an intact kernel without symbols: a bzImage, a
    /// stripped vmlinux.
    #[must_use]
    pub fn is_without_symbols(&self) -> bool {
        use ContentError::{BzImage, Elf, Unrecognized};
        let Self::Content { source, .. } = self else { return false };
        matches!(source, BzImage | Unrecognized | Elf(ElfError::NoSymbolTable))
    }
}

impl SymbolTable {
    /// The table of an ELF kernel held in memory; x86-64 only.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn from_elf(bytes: &[u8]) -> Result<Self, ElfError> {
        elf::parse(bytes).map(Self::from_tables)
    }

    /// The table of a `System.map`'s text.
    ///
    /// # Errors
    /// [`SystemMapError`], with the line where one is to blame.
    pub fn from_system_map(text: &str) -> Result<Self, SystemMapError> {
        system_map::parse(text)
    }

    /// Loads the table of either, which the content identifies.
    ///
    /// # Errors
    /// [`ContentError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ContentError> {
        match recognize(bytes)? {
            Content::Elf => Ok(Self::from_elf(bytes)?),
            Content::Text => Self::from_text(bytes),
        }
    }

    /// Loads the table of a file, whose kind the content identifies, not the name. Of an ELF file
    /// only headers and symbols are read.
    ///
    /// # Errors
    /// [`LoadError`], which names the file.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LoadError::Missing { path: path.to_owned() },
            _ => LoadError::Unreadable { path: path.to_owned(), source },
        };
        let (mut file, bytes) = regular_file::open(path).map_err(|error| match error {
            OpenError::NotAFile => LoadError::NotAFile { path: path.to_owned() },
            OpenError::Io(source) => unreadable(source),
        })?;
        let max = MAX_FILE_BYTES;
        if bytes > max {
            return Err(LoadError::TooLarge { path: path.to_owned(), bytes, max });
        }
        let mut head = Vec::new();
        (&file).take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(unreadable)?;
        let content = |source| LoadError::Content { path: path.to_owned(), source };
        match recognize(&head).map_err(content)? {
            Content::Elf => elf::parse(&ReadCache::new(file))
                .map(Self::from_tables)
                .map_err(|error| content(error.into())),
            Content::Text => {
                let mut text = Vec::new();
                file.rewind().map_err(unreadable)?;
                file.take(max).read_to_end(&mut text).map_err(unreadable)?;
                Self::from_text(&text).map_err(content)
            }
        }
    }

    fn from_text(bytes: &[u8]) -> Result<Self, ContentError> {
        let text = str::from_utf8(bytes).map_err(|_| ContentError::Unrecognized)?;
        Ok(Self::from_system_map(text)?)
    }

    fn from_tables(tables: super::build::Tables) -> Self {
        Self::of(tables)
    }
}

enum Content {
    Elf,
    Text,
}

fn recognize(head: &[u8]) -> Result<Content, ContentError> {
    let (offset, magic) = BZIMAGE_MAGIC;
    if head.is_empty() {
        Err(ContentError::Empty)
    } else if head.starts_with(elf::MAGIC) {
        Ok(Content::Elf)
    } else if head.get(offset..offset + magic.len()) == Some(magic) {
        Err(ContentError::BzImage)
    } else if head.iter().take(HEAD_BYTES).all(|byte| is_text(*byte)) {
        Ok(Content::Text)
    } else {
        Err(ContentError::Unrecognized)
    }
}

fn is_text(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte.is_ascii_whitespace()
}
