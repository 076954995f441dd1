//! Types of recorded values (kprobetrace.rst, "Types").

use std::fmt;
use std::str::FromStr;

/// Most bytes of a text that are recorded, its end included (PATH_MAX).
pub const TEXT_MAX: usize = 4096;
/// Most values of an array (MAX_ARRAY_LEN of the tracer).
pub const ARRAY_MAX: u8 = 64;

/// Bytes of a text's place in a record: offset and length, 16 bits each.
const DATA_LOC: usize = 4;

/// How many bits of a value count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 8.
    Byte,
    /// 16.
    Word,
    /// 32.
    Double,
    /// 64.
    Quad,
}

impl Width {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Byte, Self::Word, Self::Double, Self::Quad];

    /// In bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::Byte => 8,
            Self::Word => 16,
            Self::Double => 32,
            Self::Quad => 64,
        }
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Double => 4,
            Self::Quad => 8,
        }
    }

    /// The width of so many bytes, where it is one.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|width| u64::from(width.bits()) == bytes * 8)
    }
}

/// Some bits of a number: `bW@O/C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bits {
    width: u8,
    offset: u8,
    container: Width,
}

impl Bits {
    /// `width` bits, at least one, above the `offset` lowest of a number; `None` where it has not
    /// as many.
    #[must_use]
    pub fn new(width: u32, offset: u32, container: Width) -> Option<Self> {
        let end = width.checked_add(offset).filter(|_| width > 0)?;
        (end <= container.bits()).then_some(())?;
        Some(Self {
            width: u8::try_from(width).ok()?,
            offset: u8::try_from(offset).ok()?,
            container,
        })
    }

    fn of(self, word: u64) -> u64 {
        word >> self.offset & (u64::MAX >> (64 - u32::from(self.width)))
    }
}

/// Type of a recorded value, and its form as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `u8` to `u64`: a number.
    Unsigned(Width),
    /// `s8` to `s64`: a number with a sign.
    Signed(Width),
    /// `x8` to `x64`: a number, in hexadecimal digits.
    Hex(Width),
    /// `char`: a character of one byte.
    Char,
    /// `bW@O/C`: some bits of a number.
    Bits(Bits),
    /// `symbol`: an address of the kernel, shown by the symbol it is in.
    Symbol,
    /// `symstr`: the same, as text.
    SymbolText,
    /// `string`: text in memory, the kernel's or, at a user's address, the user's.
    Text,
    /// `ustring`: text in the memory of a user.
    UserText,
}

impl Default for ValueType {
    fn default() -> Self {
        Self::Hex(Width::Quad)
    }
}

impl ValueType {
    /// Its value is text in memory, not a number.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::UserText)
    }

    /// It is shown as text, which numbers cannot be compared with.
    #[must_use]
    pub fn shows_text(self) -> bool {
        matches!(self, Self::Text | Self::UserText | Self::SymbolText)
    }

    /// Its numbers have signs.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_))
    }

    /// How wide the number is that it is taken from; of a text, its address.
    #[must_use]
    pub fn width(self) -> Width {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Hex(width) => width,
            Self::Bits(bits) => bits.container,
            Self::Char => Width::Byte,
            Self::Symbol | Self::SymbolText | Self::Text | Self::UserText => Width::Quad,
        }
    }

    /// Bytes that one value has in a record of the tracer's: of a text, where it is and how long.
    #[must_use]
    pub fn record_bytes(self) -> usize {
        if self.shows_text() { DATA_LOC } else { self.width().bytes() }
    }

    /// The number that a word's bits are: those that do not count follow the sign, or are clear.
    #[must_use]
    pub fn narrow(self, word: u64) -> u64 {
        let unused = 64 - self.width().bits();
        let plain = word << unused >> unused;
        match self {
            Self::Signed(_) => ((word << unused).cast_signed() >> unused).cast_unsigned(),
            Self::Bits(bits) => bits.of(plain),
            _ => plain,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(width) => write!(f, "u{}", width.bits()),
            Self::Signed(width) => write!(f, "s{}", width.bits()),
            Self::Hex(width) => write!(f, "x{}", width.bits()),
            Self::Bits(Bits { width, offset, container }) => {
                write!(f, "b{width}@{offset}/{}", container.bits())
            }
            Self::Char => f.write_str("char"),
            Self::Symbol => f.write_str("symbol"),
            Self::SymbolText => f.write_str("symstr"),
            Self::Text => f.write_str("string"),
            Self::UserText => f.write_str("ustring"),
        }
    }
}

/// Not the name of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchType {
    /// It names none.
    #[error(
        "no such type: `u8` to `u64`, `s8` to `s64`, `x8` to `x64`, `char`, `symbol`, `symstr`, `string`, `ustring`, `%pd`, \
        `%pD` and `bWIDTH@OFFSET/CONTAINER` are"
    )]
    Unknown,
    /// It begins as a bit-field.
    #[error(
        "no bit-field: write `b4@8/32` for four bits above the lowest eight of 32; containers have 8, 16, 32 or 64"
    )]
    BitField,
    /// A bit-field without a container, or with one of another size.
    #[error(
        "no bit-field: its container is missing or has another size than 8, 16, 32 or 64: write `b4@8/32`"
    )]
    Container,
}

impl FromStr for ValueType {
    type Err = NoSuchType;
    fn from_str(text: &str) -> Result<Self, NoSuchType> {
        if let Some(rest) = text.strip_prefix('b') {
            return bit_field(rest).map(Self::Bits);
        }
        let numbers = Width::ALL
            .into_iter()
            .flat_map(|width| [Self::Unsigned(width), Self::Signed(width), Self::Hex(width)]);
        let others = [Self::Char, Self::Symbol, Self::SymbolText, Self::Text, Self::UserText];
        let mut all = numbers.chain(others);
        all.find(|kind| kind.to_string() == text).ok_or(NoSuchType::Unknown)
    }
}

/// `W@O/C`.
fn bit_field(text: &str) -> Result<Bits, NoSuchType> {
    let number = |text: &str| u32::try_from(super::number::parse_number(text)?).ok();
    let (place, container) = text.split_once('/').ok_or(NoSuchType::Container)?;
    let container = number(container);
    let container = Width::ALL.into_iter().find(|width| Some(width.bits()) == container);
    let container = container.ok_or(NoSuchType::Container)?;
    let bits = place
        .split_once('@')
        .and_then(|(width, offset)| Bits::new(number(width)?, number(offset)?, container));
    bits.ok_or(NoSuchType::BitField)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_wide_as_their_type() {
        let narrow = |name: &str, word: u64| name.parse::<ValueType>().unwrap().narrow(word);
        let word = 0xffff_ffff_ffff_ff9c;
        assert_eq!(narrow("s32", word).cast_signed(), -100);
        assert_eq!(narrow("u32", word), 4_294_967_196);
        assert_eq!(narrow("s8", 0x17f), 127);
        assert_eq!(narrow("x8", word), 0x9c);
        assert_eq!(narrow("char", 0x1241), 0x41);
        assert_eq!(narrow("b4@8/16", 0x7_5a00), 0xa);
        assert_eq!(narrow("b64@0/64", word), word);
        assert_eq!(narrow("b1@31/32", 0xffff_ffff_7fff_ffff), 0);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let names =
            ["u8", "s16", "x32", "u64", "string", "ustring", "char", "symbol", "symstr", "b3@5/8"];
        for name in names {
            assert_eq!(name.parse::<ValueType>().unwrap().to_string(), name);
        }
        for name in ["", "u7", "int", "String", "u64 "] {
            assert_eq!(name.parse::<ValueType>(), Err(NoSuchType::Unknown));
        }
        for name in ["b0@0/8", "b9@0/8", "b4@5/8", "b4/8", "b1@-1/8", "bx@0/8", "b99999999999@0/8"]
        {
            assert_eq!(name.parse::<ValueType>(), Err(NoSuchType::BitField), "{name}");
        }
        for name in ["b4@0/24", "b4@0", "b4", "bx", "b"] {
            assert_eq!(name.parse::<ValueType>(), Err(NoSuchType::Container), "{name}");
        }
        assert_eq!((Width::of_bytes(4), Width::of_bytes(3)), (Some(Width::Double), None));
    }
}
