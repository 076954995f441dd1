//! Types of the kernel: BTF, which kernels with CONFIG_DEBUG_INFO_BTF have in their memory, and which pahole makes of
//! others (Documentation/bpf/btf.rst).
//!
//! What it says is the guest's, or a user's: references are checked once, when it is parsed; chains of them may still be
//! circles, and every walk along them is bounded.

mod declare;
mod field;
mod function;
mod kind;
mod layout;
mod parse;
#[doc(hidden)]
pub mod sample;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::Path;

use exoprobe_guest::Gva;
use object::{Object, ObjectSection};

use crate::name_hash::NameHash;
use crate::regular_file::{self, OpenError};
use crate::symbols::{MAX_FILE_BYTES, SymbolTable, glob};
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

pub use field::{FieldError, FieldPlace};
pub use function::{ArgumentPlace, Parameter};
pub use kind::{Composite, EnumValue, Kind, Member, Prototype, Qualifier};
pub use layout::{Layout, MemberLayout};
pub use parse::{BTF_MAX, BtfError, TYPES_MAX};

/// Longest chain of types that refer to one another: those of kernels have some ten.
const DEPTH_MAX: usize = 64;
/// Begin and end of the kernel's own BTF.
const START: &str = "__start_BTF";
const STOP: &str = "__stop_BTF";
/// Where files have it.
const SECTION: &str = ".BTF";

/// A type's number; 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

/// All types of a kernel, by number and by name.
#[derive(Debug)]
pub struct Btf {
    /// The types, as BTF has them.
    words: Vec<u32>,
    /// By number less one: where each begins in `words`.
    starts: Vec<u32>,
    strings: String,
    /// Numbers of types that have a name, by name and then by number.
    by_name: Vec<u32>,
    names: NameHash,
}

/// Why a running kernel's types are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTypes {
    /// It has none.
    #[error(
        "the kernel has no BTF in its memory (CONFIG_DEBUG_INFO_BTF): give its types with --btf FILE, made by \
        `pahole --btf_encode_detached FILE vmlinux`, or call it vmlinux.btf and put it into the kernel's folder"
    )]
    None,
    /// There is not as much as its symbols say.
    #[error("the kernel's BTF cannot be read: {0}")]
    Read(#[from] VirtualReadError),
    /// It is none.
    #[error("the kernel's BTF is broken: {0}")]
    Parse(#[from] BtfError),
}

/// Why types are not those of a kernel.
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
    /// It is no BTF.
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

    /// How many types there are, without `void`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// A type's own name; empty where it has none.
    #[must_use]
    pub fn name(&self, id: TypeId) -> &str {
        self.words_of(id).and_then(|words| words.first()).map_or("", |at| self.string(*at))
    }

    /// All types of exactly this name, by number: a struct and a typedef may share one.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = TypeId> + use<'a> {
        let name_at = |at: usize| self.name(TypeId(self.by_name[at]));
        let from = self.names.find(name, name_at).unwrap_or(self.by_name.len());
        let same = self.by_name[from..].iter().map(|id| TypeId(*id));
        let name = same.clone().next().map_or("", |id| self.name(id));
        same.take_while(move |id| self.name(*id) == name)
    }

    /// Names of structs, unions, enums and typedefs, in order, each once.
    pub fn type_names(&self) -> impl Iterator<Item = &str> {
        let of_types = self.by_name.iter().map(|id| TypeId(*id)).filter(|id| {
            matches!(self.kind(*id), Kind::Composite(_) | Kind::Enum { .. } | Kind::Typedef(_))
        });
        let mut last = "";
        of_types
            .map(|id| self.name(id))
            .filter(move |name| std::mem::replace(&mut last, *name) != *name)
    }

    /// Names of functions, in order.
    fn function_names(&self) -> impl Iterator<Item = &str> {
        let ids = self.by_name.iter().map(|id| TypeId(*id));
        ids.filter(|id| matches!(self.kind(*id), Kind::Function(_))).map(|id| self.name(id))
    }

    /// Whether these can be the types of the kernel that `symbols` are of: pahole describes only
    /// functions that the kernel has symbols for, with or without a compiler's suffix (`.isra.0`).
    /// Other kernels lack some of them.
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

    /// The types among [`Self::type_names`] whose names match: `*` stands for any run of characters, `?` for any one.
    pub fn search<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a str, TypeId)> {
        let matching = move |name: &&str| glob::matches(pattern.as_bytes(), name.as_bytes());
        self.type_names().filter(matching).filter_map(|name| Some((name, self.find(name)?)))
    }

    /// All about the type that a user means by `name`, or else the function of this name.
    #[must_use]
    pub fn about(&self, name: &str) -> Option<Layout> {
        let found = self.find(name).or_else(|| self.function(name))?;
        Some(self.layout(found, name))
    }

    /// The type that a user means by `name`: `struct file`, `union x`, `enum y`, or a bare name, which is a
    /// struct's, a union's, an enum's, or a typedef's.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TypeId> {
        let (tag, name) = name.trim().split_once(char::is_whitespace).unwrap_or(("", name.trim()));
        let fits = |id: &TypeId| match self.kind(*id) {
            Kind::Composite(it) => tag.is_empty() || tag == it.tag(),
            Kind::Enum { .. } => matches!(tag, "" | "enum"),
            Kind::Typedef(_) | Kind::Int { .. } => tag.is_empty(),
            _ => false,
        };
        // BTF may have a name twice; what has most to tell is meant.
        let rank = |id: &TypeId| match self.kind(*id) {
            Kind::Composite(it) => (2, it.size),
            Kind::Enum { .. } => (1, 0),
            _ => (0, 0),
        };
        let found = self.named(name.trim_start()).filter(fits);
        found.max_by_key(|id| (rank(id), std::cmp::Reverse(*id)))
    }

    /// The type behind typedefs and qualifiers; `void` where they are a circle.
    #[must_use]
    pub fn resolve(&self, mut id: TypeId) -> TypeId {
        for _ in 0..DEPTH_MAX {
            match self.kind(id) {
                Kind::Typedef(to) | Kind::Qualified(_, to) | Kind::Tag(to) => id = to,
                _ => return id,
            }
        }
        TypeId(0)
    }

    /// Bytes of a value of the type; `None` where it has no values.
    #[must_use]
    pub fn size_of(&self, mut id: TypeId) -> Option<u64> {
        let mut count = 1u64;
        for _ in 0..DEPTH_MAX {
            let size = match self.kind(id) {
                Kind::Typedef(to) | Kind::Qualified(_, to) | Kind::Tag(to) | Kind::Variable(to) => {
                    id = to;
                    continue;
                }
                Kind::Array { element, len } => {
                    count = count.checked_mul(len.into())?;
                    id = element;
                    continue;
                }
                Kind::Int { size, .. } | Kind::Float { size } | Kind::Enum { size, .. } => size,
                Kind::Composite(it) => it.size,
                Kind::Pointer(_) => 8,
                _ => return None,
            };
            return count.checked_mul(size.into());
        }
        None
    }
}
