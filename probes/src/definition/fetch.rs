//! Fetch arguments: values that are looked up at a hit (kprobetrace.rst, "FETCHARGS").

use std::fmt;
use std::str::FromStr;

use exoprobe_vmm::Gva;
use serde::{Deserialize, Serialize};

use super::{ParseError, Register, ValueType, text};

/// Most dereferences in one another, as the tracer's budget of steps allows.
pub const NESTING_MAX: usize = 12;

/// Where a value comes from. All are 64 bits wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// `%REG`.
    Register(Register),
    /// `$stackN`: the Nth word from the stack pointer on.
    Stack(u16),
    /// `$stack`: the stack pointer.
    StackPointer,
    /// `$retval`: what the function returned. Return probes only.
    ReturnValue,
    /// `@ADDR`: memory at an address.
    Memory(Gva),
    /// `NAME`: the function's parameter of this name, at its entry. What it is in is known once the kernel's types
    /// are.
    Parameter(String),
    /// `+OFFS(BODY)`, `-OFFS(BODY)`: memory at the value of BODY plus or minus OFFS bytes.
    Deref {
        /// Bytes added to the inner value.
        offset: i64,
        /// What gives the address.
        base: Box<Fetch>,
    },
}

impl Fetch {
    /// Reads memory, which may not be there at a hit.
    #[must_use]
    pub fn reads_memory(&self) -> bool {
        matches!(self, Self::Stack(_) | Self::Memory(_) | Self::Deref { .. })
    }

    /// Has a meaning at a function's return only.
    #[must_use]
    pub fn is_of_return(&self) -> bool {
        match self {
            Self::ReturnValue => true,
            Self::Deref { base, .. } => base.is_of_return(),
            _ => false,
        }
    }

    /// The parameter that it is, or begins with.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Parameter(name) => Some(name),
            Self::Deref { base, .. } => base.parameter(),
            _ => None,
        }
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => write!(f, "%{register}"),
            Self::Stack(n) => write!(f, "$stack{n}"),
            Self::StackPointer => f.write_str("$stack"),
            Self::ReturnValue => f.write_str("$retval"),
            Self::Memory(addr) => write!(f, "@{addr}"),
            Self::Parameter(name) => f.write_str(name),
            Self::Deref { offset, base } => write!(f, "{offset:+}({base})"),
        }
    }
}

impl FromStr for Fetch {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        text::parse_fetch(text)
    }
}

/// One recorded value: `[NAME=]BODY[:TYPE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchArg {
    /// Name of the field; a parameter's own, or `argN` (N from 1), when the definition gives none.
    pub name: Option<String>,
    /// Where its value comes from.
    pub body: Fetch,
    /// What it is; when the definition does not say, what the kernel's types say of a parameter, else `x64`.
    pub kind: Option<ValueType>,
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        self.body.fmt(f)?;
        match self.kind {
            Some(kind) => write!(f, ":{kind}"),
            None => Ok(()),
        }
    }
}

impl FromStr for FetchArg {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        text::parse_arg(text)
    }
}

macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(Fetch, FetchArg);
