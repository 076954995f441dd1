//! Types of recorded values (kprobetrace.rst, "Types").

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// Most bytes of a text that are recorded, its end included (PATH_MAX).
pub const TEXT_MAX: usize = 4096;

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

    /// The width of so many bytes, where it is one.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|width| u64::from(width.bits()) == bytes * 8)
    }
}

/// What a recorded value is, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `u8` to `u64`: a number.
    Unsigned(Width),
    /// `s8` to `s64`: a number with a sign.
    Signed(Width),
    /// `x8` to `x64`: a number, in hexadecimal digits.
    Hex(Width),
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
    /// Its value is text, not a number.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::UserText)
    }

    /// Its numbers have signs.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_))
    }

    /// How many bits count; those of a text's address.
    #[must_use]
    pub fn width(self) -> Width {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Hex(width) => width,
            Self::Text | Self::UserText => Width::Quad,
        }
    }

    /// The number that a word's bits are: those that do not count follow the sign, or are clear.
    #[must_use]
    pub fn narrow(self, word: u64) -> u64 {
        let unused = 64 - self.width().bits();
        match self.is_signed() {
            true => ((word << unused).cast_signed() >> unused).cast_unsigned(),
            false => word << unused >> unused,
        }
    }

    /// A number of this type as JSON: what is shown in hexadecimal digits is text, for a double holds only 53 bits.
    #[must_use]
    pub fn number(self, word: u64) -> Value {
        let number = self.narrow(word);
        match self {
            Self::Unsigned(_) => number.into(),
            Self::Signed(_) => number.cast_signed().into(),
            Self::Hex(_) | Self::Text | Self::UserText => format!("{number:#x}").into(),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self {
            Self::Unsigned(_) => 'u',
            Self::Signed(_) => 's',
            Self::Hex(_) => 'x',
            Self::Text => return f.write_str("string"),
            Self::UserText => return f.write_str("ustring"),
        };
        write!(f, "{letter}{}", self.width().bits())
    }
}

/// Not the name of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such type: `u8` to `u64`, `s8` to `s64`, `x8` to `x64`, `string` and `ustring` are")]
pub struct NoSuchType;

impl FromStr for ValueType {
    type Err = NoSuchType;
    fn from_str(text: &str) -> Result<Self, NoSuchType> {
        let numbers = Width::ALL
            .into_iter()
            .flat_map(|width| [Self::Unsigned(width), Self::Signed(width), Self::Hex(width)]);
        let mut all = numbers.chain([Self::Text, Self::UserText]);
        all.find(|kind| kind.to_string() == text).ok_or(NoSuchType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_wide_as_their_type() {
        let show =
            |name: &str, word: u64| name.parse::<ValueType>().unwrap().number(word).to_string();
        let word = 0xffff_ffff_ffff_ff9c;
        assert_eq!(show("s32", word), "-100");
        assert_eq!(show("u32", word), "4294967196");
        assert_eq!(show("s8", 0x17f), "127");
        assert_eq!(show("u16", 0x1_ffff), "65535");
        assert_eq!(show("x8", word), "\"0x9c\"");
        assert_eq!(show("u64", word), "18446744073709551516");
        assert_eq!(show("s64", word), "-100");
        assert_eq!(ValueType::default().number(31).to_string(), "\"0x1f\"");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["u8", "s16", "x32", "u64", "string", "ustring"] {
            assert_eq!(name.parse::<ValueType>().unwrap().to_string(), name);
        }
        for name in ["", "u7", "int", "String", "u64 "] {
            assert_eq!(name.parse::<ValueType>(), Err(NoSuchType));
        }
        assert_eq!((Width::of_bytes(4), Width::of_bytes(3)), (Some(Width::Double), None));
    }
}
