//! Fields of synthetic events, and their types.

use std::fmt;

use crate::definition::{Argument, Fetch, ValueType, Width};

/// A synthetic event, as it is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticDefinition {
    /// Its name.
    pub name: String,
    /// Its fields; at least one.
    pub fields: Vec<SyntheticField>,
}

/// A field of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: SyntheticType,
}

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticType {
    /// A number.
    Number(TypeName),
    /// `char[N]`: text of less than N bytes; `char[]`: text of any length.
    Text(Option<u16>),
    /// A back-trace: `unsigned long[]` or `long[]`.
    Stack(&'static str),
}

/// The types of back-traces.
const STACKS: [&str; 2] = ["unsigned long[]", "long[]"];

/// Name of a type of numbers, with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeName {
    /// As in C.
    pub name: &'static str,
    /// Its numbers.
    pub kind: ValueType,
}

const fn signed(name: &'static str, width: Width) -> TypeName {
    TypeName { name, kind: ValueType::Signed(width) }
}

const fn unsigned(name: &'static str, width: Width) -> TypeName {
    TypeName { name, kind: ValueType::Unsigned(width) }
}

/// The types of numbers.
const NUMBERS: [TypeName; 17] = [
    unsigned("u64", Width::Quad),
    signed("s64", Width::Quad),
    unsigned("u32", Width::Double),
    signed("s32", Width::Double),
    unsigned("u16", Width::Word),
    signed("s16", Width::Word),
    unsigned("u8", Width::Byte),
    signed("s8", Width::Byte),
    signed("char", Width::Byte),
    unsigned("unsigned char", Width::Byte),
    signed("int", Width::Double),
    unsigned("unsigned int", Width::Double),
    signed("long", Width::Quad),
    unsigned("unsigned long", Width::Quad),
    signed("bool", Width::Byte),
    signed("pid_t", Width::Double),
    TypeName { name: "gfp_t", kind: ValueType::Hex(Width::Double) },
];

impl TypeName {
    /// The type of a task's number.
    pub(crate) const INT: Self = signed("int", Width::Double);

    /// The type of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NUMBERS.into_iter().find(|found| found.name == name)
    }

    /// The type that the kernel's tracer has for values of this kind in a histogram.
    pub(crate) fn of(kind: ValueType) -> Self {
        let letter = if kind.is_signed() { 's' } else { 'u' };
        let name = format!("{letter}{}", kind.width().bits());
        Self::named(&name).unwrap_or(NUMBERS[0])
    }

    /// Returns true if a value of another type is taken for a field of this one. As in the kernel,
    /// a field of an event has no sign, unless both types have one name.
    pub(crate) fn takes(self, other: Self, is_field: bool) -> bool {
        let is_signed = other.kind.is_signed() && !is_field;
        self.name == other.name
            || (self.kind.width() == other.kind.width() && self.kind.is_signed() == is_signed)
    }
}

impl SyntheticType {
    /// How its values are recorded.
    #[must_use]
    pub fn kind(self) -> ValueType {
        match self {
            Self::Number(TypeName { kind, .. }) => kind,
            Self::Text(_) => ValueType::Text,
            Self::Stack(_) => ValueType::Symbol,
        }
    }

    /// The type of back-traces of this name.
    pub(super) fn stack(name: &str) -> Option<Self> {
        STACKS.into_iter().find(|found| *found == name).map(Self::Stack)
    }
}

impl SyntheticDefinition {
    /// The fields of its records. They are fetched nowhere: records are made.
    pub(crate) fn arguments(&self) -> Vec<Argument> {
        let argument = |field: &SyntheticField| match field.kind {
            SyntheticType::Stack(_) => Argument::of_stack(&field.name),
            SyntheticType::Number(_) | SyntheticType::Text(_) => Argument {
                name: field.name.clone(),
                fetch: Fetch::Constant(0),
                kind: field.kind.kind(),
                count: None,
            },
        };
        self.fields.iter().map(argument).collect()
    }
}

impl fmt::Display for SyntheticType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(found) => f.write_str(found.name),
            Self::Text(Some(size)) => write!(f, "char[{size}]"),
            Self::Text(None) => f.write_str("char[]"),
            Self::Stack(name) => f.write_str(name),
        }
    }
}

/// The definition as the file `synthetic_events` lists it.
impl fmt::Display for SyntheticDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t", self.name)?;
        for (index, field) in self.fields.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{} {}", field.kind, field.name)?;
        }
        Ok(())
    }
}
