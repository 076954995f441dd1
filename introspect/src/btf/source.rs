//! The types of a running kernel, and types in files.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;

use exoprobe_guest::Gva;
use object::{Object, ObjectSection};

use super::parse::{BTF_MAX, BtfError};
use super::table::Btf;
use crate::regular_file::{self, OpenError};
use crate::symbols::{MAX_FILE_BYTES, SymbolTable};
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// Begin and end of the kernel's own BTF.
const START: &str = "__start_BTF";

const STOP: &str = "__stop_BTF";

/// Where files have it.
const SECTION: &str = ".BTF";

/// Why a running kernel's types are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTypes {
    /// The kernel has no BTF.
    #[error(
        "the kernel has no BTF in its memory (CONFIG_DEBUG_INFO_BTF): give its types with --btf FILE, made by \
        `pahole --btf_encode_detached FILE vmlinux`, or call it vmlinux.btf and put it into the kernel's folder"
    )]
    None,
    /// Memory between its symbols cannot be read.
    #[error("the kernel's BTF cannot be read: {0}")]
    Read(#[from] VirtualReadError),
    /// The bytes are not BTF.
    #[error("the kernel's BTF is broken: {0}")]
    Parse(#[from] BtfError),
}

/// Reasons why types are another kernel's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Nothing to compare with the kernel's symbols.
    #[error("the types describe no function")]
    NoFunctions,
    /// A function that the kernel does not have.
    #[error("the types describe the function {0:?}, which the kernel does not have")]
    Function(String),
}

/// Why a file has no types.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A directory, device, pipe or socket.
    #[error("not a regular file")]
    NotAFile,
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is ELF, without the section.
    #[error(
        "the ELF file has no section {SECTION}: make it with `pahole -J`, or give detached BTF"
    )]
    NoSection,
    /// It is larger than any kernel's.
    #[error("the file is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// The bytes are not BTF.
    #[error(transparent)]
    Parse(#[from] BtfError),
}

impl Btf {
    /// Reads the types that a running kernel has in its memory.
    ///
    /// # Errors
    /// [`NoTypes`].
    pub fn read<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
    ) -> Result<Self, NoTypes> {
        let place = |name| symbols.address_of(name);
        let (Some(Gva(start)), Some(Gva(stop))) = (place(START), place(STOP)) else {
            return Err(NoTypes::None);
        };
        let len = stop.checked_sub(start).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|len| *len <= BTF_MAX).ok_or(BtfError::TooLarge)?;
        let mut bytes = vec![0; len];
        memory.read(Gva(start), &mut bytes)?;
        Ok(Self::parse(&bytes)?)
    }

    /// Reads a file: BTF as it is, or ELF with a section of it.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let (file, len) = regular_file::open(path).map_err(|error| match error {
            OpenError::NotAFile => FileError::NotAFile,
            OpenError::Io(error) => error.into(),
        })?;
        if len > MAX_FILE_BYTES {
            return Err(FileError::TooLarge);
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Ok(Self::parse(&bytes)?);
        }
        let elf = object::File::parse(&*bytes).map_err(|_| FileError::NoSection)?;
        let section = elf.section_by_name(SECTION).ok_or(FileError::NoSection)?;
        let section = section.data().map_err(|_| FileError::NoSection)?;
        Ok(Self::parse(section)?)
    }

    /// Checks that these can be the types of the kernel that `symbols` are of: pahole describes
    /// only functions that the kernel has symbols for, with or without a compiler's suffix
    /// (`.isra.0`). Other kernels lack some of them.
    ///
    /// # Errors
    /// [`Foreign`]
    pub fn check_kernel(&self, symbols: &SymbolTable) -> Result<(), Foreign> {
        let known: HashSet<&str> =
            symbols.iter().filter_map(|symbol| symbol.name.split('.').next()).collect();
        let mut described = 0;
        for name in self.function_names() {
            described += 1;
            if !known.contains(name) {
                return Err(Foreign::Function(name.to_owned()));
            }
        }
        if described == 0 { Err(Foreign::NoFunctions) } else { Ok(()) }
    }
}
