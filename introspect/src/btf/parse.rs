//! Parses BTF into checked tables.

use super::id::TypeId;
use super::kind::{Code, RECORD_WORDS};
use super::names::TypeNames;
use super::table::Btf;

/// Most bytes of BTF that are read: ten times a distribution kernel's.
pub const BTF_MAX: usize = 64 << 20;
/// Most types (BTF_MAX_TYPE is 1,048,575).
pub const TYPES_MAX: usize = 1 << 20;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Bytes of the header as it is in version 1; later ones may be longer.
const HEADER_LEN: usize = 24;
const WORD: usize = 4;

/// Reasons why bytes are not BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It is larger than any kernel's.
    #[error("it is larger than {BTF_MAX} bytes, or has more than {TYPES_MAX} types")]
    TooLarge,
    /// It does not begin as BTF does.
    #[error("it does not begin with BTF's mark")]
    Magic,
    /// It is of another version, or of the other order of bytes.
    #[error("its version {0} is not known")]
    Version(u8),
    /// A section reaches over the end.
    #[error("its sections reach over its end")]
    Sections,
    /// Its names are not UTF-8, or have no terminating NUL.
    #[error("its names are no text")]
    Strings,
    /// A type is truncated.
    #[error("type {0} reaches over the end")]
    Truncated(u32),
    /// Its kind is not known, so that its length is unknown, too.
    #[error("type {id} is of the unknown kind {kind}")]
    Kind {
        /// The type's number.
        id: u32,
        /// The kind's number.
        kind: u32,
    },
    /// It refers to a type or a name that does not exist.
    #[error("type {0} refers to a type or a name that does not exist")]
    Reference(u32),
}

struct Header {
    types: std::ops::Range<usize>,
    strings: std::ops::Range<usize>,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        if bytes.len() > BTF_MAX {
            return Err(BtfError::TooLarge);
        }
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(BtfError::Magic)?;
        let magic = u16::from_le_bytes([header[0], header[1]]);
        if magic != MAGIC {
            return Err(if magic == MAGIC.swap_bytes() {
                BtfError::Version(0)
            } else {
                BtfError::Magic
            });
        }
        if header[2] != VERSION {
            return Err(BtfError::Version(header[2]));
        }
        let (words, _) = header.as_chunks::<WORD>();
        let word = |at: usize| usize::try_from(u32::from_le_bytes(words[at])).ok();
        let begin = word(1).filter(|len| *len >= HEADER_LEN);
        let section = |offset, len| {
            let start = begin?.checked_add(word(offset)?)?;
            let end = start.checked_add(word(len)?)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let (types, strings) = (section(2, 3), section(4, 5));
        let (Some(types), Some(strings)) = (types, strings) else { return Err(BtfError::Sections) };
        match types.len() % WORD {
            0 => Ok(Self { types, strings }),
            _ => Err(BtfError::Sections),
        }
    }
}

impl Btf {
    /// Checks and indexes BTF.
    ///
    /// # Errors
    /// [`BtfError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let header = Header::parse(bytes)?;
        let strings = str::from_utf8(&bytes[header.strings]).map_err(|_| BtfError::Strings)?;
        if !(strings.starts_with('\0') && strings.ends_with('\0')) {
            return Err(BtfError::Strings);
        }
        let words =
            bytes[header.types].as_chunks::<WORD>().0.iter().copied().map(u32::from_le_bytes);
        let words: Vec<u32> = words.collect();
        let starts = starts(&words)?;
        let names = TypeNames::default();
        let btf = Self { words, starts, strings: strings.to_owned(), names };
        btf.check()?;
        let names = TypeNames::of(btf.last(), |id| btf.name(id));
        Ok(Self { names, ..btf })
    }

    /// Checks that all names and types exist that types refer to.
    fn check(&self) -> Result<(), BtfError> {
        let (count, strings) = (self.starts.len(), self.strings.len());
        for id in self.ids() {
            let (mut names, mut types) = (true, true);
            let is_string = |at: usize| at < strings && self.strings.is_char_boundary(at);
            self.each_reference(id, &mut |name| names &= is_string(name as usize), &mut |other| {
                types &= other.0 as usize <= count
            });
            if !(names && types) {
                return Err(BtfError::Reference(id.0));
            }
        }
        Ok(())
    }

    fn last(&self) -> u32 {
        u32::try_from(self.starts.len()).expect("at most TYPES_MAX")
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (1..=self.last()).map(TypeId)
    }
}

/// Where each type begins.
fn starts(words: &[u32]) -> Result<Vec<u32>, BtfError> {
    let mut starts = Vec::with_capacity(words.len() / (RECORD_WORDS + 1));
    let (mut at, mut id) = (0, 1);
    while at < words.len() {
        if starts.len() == TYPES_MAX {
            return Err(BtfError::TooLarge);
        }
        let info = *words.get(at + 1).ok_or(BtfError::Truncated(id))?;
        let code = Code::of(info).ok_or(BtfError::Kind { id, kind: info >> 24 & 0x1f })?;
        starts.push(u32::try_from(at).map_err(|_| BtfError::TooLarge)?);
        at += RECORD_WORDS + code.more_words(info);
        if at > words.len() {
            return Err(BtfError::Truncated(id));
        }
        id += 1;
    }
    Ok(starts)
}
