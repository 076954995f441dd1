//! Errors of reading source lines.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::symbols::{ElfError, LoadError};

/// Why a file tells no lines.
#[derive(Clone, Debug, thiserror::Error)]
#[error("debug information of {}: {problem}", path.display())]
pub struct LinesError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: LinesProblem,
}

/// What is wrong with a file that should tell lines.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinesProblem {
    /// The operating system refused.
    #[error("cannot read it: {0}")]
    Unreadable(Arc<io::Error>),
    /// It is no ELF file of use.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its symbols, which tell whose kernel's it is, are of no use.
    #[error("{0}")]
    Symbols(Arc<LoadError>),
    /// The kernel was built without, or the file was stripped.
    #[error(
        "it has none (built without CONFIG_DEBUG_INFO, or stripped): give the vmlinux of the debug \
         package of the same build"
    )]
    NoDebugInfo,
    /// More than this program reads.
    #[error("it has {bytes} bytes of it, more than the limit of {max}")]
    TooLarge {
        /// Bytes of the sections, unpacked.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// It belongs to another kernel.
    #[error(
        "it is of another kernel than the one that runs ({name} is elsewhere, or not there): give \
         the vmlinux of the same build"
    )]
    OtherKernel {
        /// A function that shows it.
        name: String,
    },
    /// The DWARF is truncated or damaged.
    #[error("it is damaged, or not as compilers write it: {0}")]
    Damaged(gimli::Error),
}

/// Why a source line stands for no code.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LineError {
    /// No file that has code at or after the line ends with the name.
    #[error("no source file `{file}` of the kernel has code at line {line} or after it")]
    NoFile {
        /// As it was asked for.
        file: String,
        /// As it was asked for.
        line: u32,
    },
    /// More than one file ends with the name.
    #[error("`{file}` may be {}: give more of its path", files.join(", "))]
    Ambiguous {
        /// As it was asked for.
        file: String,
        /// Some of those that it may be.
        files: Vec<String>,
    },
    /// The compiler made no code of the line.
    #[error("line {line} of {file} has no code of its own; the next that has is {next}")]
    NoCode {
        /// The file, as the kernel's build has it.
        file: String,
        /// As it was asked for.
        line: u32,
        /// The next line with code.
        next: u32,
    },
    /// The DWARF is of no use.
    #[error(transparent)]
    Lines(#[from] LinesError),
}
