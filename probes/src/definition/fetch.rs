//! Fetch arguments: values that are looked up at a hit (kprobetrace.rst, "FETCHARGS").

use std::fmt;

use exoprobe_guest::Gva;
use serde::{Deserialize, Serialize};

use super::names::{is_arg_name, unnamed};
use super::register::{Register, Segment};
use super::value::ValueType;

/// Most dereferences in one another, as the tracer's budget of steps allows.
pub const NESTING_MAX: usize = 12;

/// The source of a value. Numbers are 64 bits wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// `%REG`.
    Register(Register),
    /// `%cs`, `%ss`.
    Segment(Segment),
    /// `%orig_ax`: the number of the system call for which the registers were saved; -1, as for a
    /// breakpoint.
    OrigAx,
    /// `$stackN`: the Nth word from the stack pointer on.
    Stack(u16),
    /// `$stack`: the stack pointer.
    StackPointer,
    /// `$retval`: the function's return value. Return probes only.
    ReturnValue,
    /// `$argN`: the function's Nth argument, from 1, at its entry; at a return, its value at the
    /// entry.
    Argument(u16),
    /// `$arg*`: all parameters, as at the function's entry. Stands for several values.
    AllParameters,
    /// `$comm`: the current task's name.
    Comm,
    /// `$current`: the address of the current task's `task_struct`. The kernel's tracer has it not.
    CurrentTask,
    /// `\NUM`: the number itself.
    Constant(u64),
    /// `\"text"`: the text itself.
    ConstantText(String),
    /// `@ADDR`: memory at an address.
    Memory(Gva),
    /// `@SYM[+-OFFS]`: memory at a symbol of the kernel.
    Symbol {
        /// Its name.
        name: String,
        /// Bytes from its start.
        offset: i64,
    },
    /// `NAME`: the function's parameter of this name, at its entry; its place is known once the
    /// kernel's types are. If the function has no such parameter: a value in the syntax of the
    /// tracer's first version, `aN`, `sN`, `sa`, `rv`, `ra`.
    Parameter(String),
    /// `BODY->MEMBER.MEMBER->MEMBER`: a member of the struct that a parameter or the returned value
    /// points to.
    Member {
        /// The pointer: a parameter or `$retval`.
        base: Box<Fetch>,
        /// The path after the first `->`.
        path: String,
    },
    /// `BODY:%pd`, `BODY:%pD`: the name of the object at the value; its place is known once the
    /// kernel's types are.
    NameOf {
        /// Its type.
        what: Named,
        /// Source of the address.
        base: Box<Fetch>,
    },
    /// `+OFFS(BODY)`, `-OFFS(BODY)`: memory at the value of BODY plus or minus OFFS bytes.
    Deref {
        /// Bytes added to the inner value.
        offset: i64,
        /// Source of the address.
        base: Box<Fetch>,
        /// `+uOFFS(BODY)`: user memory; no kernel address is read.
        user: bool,
    },
}

/// Objects of the kernel's file systems that have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// `%pd`: a `struct dentry`.
    Dentry,
    /// `%pD`: a `struct file`.
    File,
}

impl Named {
    /// Both.
    pub const ALL: &[Self] = &[Self::Dentry, Self::File];

    /// As the type of an argument.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Dentry => "%pd",
            Self::File => "%pD",
        }
    }

    /// The dereferences that its name takes.
    pub(super) fn steps(self) -> usize {
        match self {
            Self::Dentry => 2,
            Self::File => 3,
        }
    }
}

impl Fetch {
    /// Returns true if it reads memory, which may not be mapped at a hit.
    #[must_use]
    pub fn reads_memory(&self) -> bool {
        matches!(
            self,
            Self::Stack(_)
                | Self::Memory(_)
                | Self::Symbol { .. }
                | Self::Member { .. }
                | Self::NameOf { .. }
                | Self::Deref { .. }
        )
    }

    /// Returns true if it may have no value at a hit.
    #[must_use]
    pub fn may_fault(&self) -> bool {
        self.reads_memory()
            || matches!(self, Self::Segment(_) | Self::Argument(_) | Self::CurrentTask)
    }

    /// Returns true if it is valid only at a function's return.
    #[must_use]
    pub fn is_of_return(&self) -> bool {
        match self {
            Self::ReturnValue => true,
            Self::Deref { base, .. } | Self::Member { base, .. } | Self::NameOf { base, .. } => {
                base.is_of_return()
            }
            _ => false,
        }
    }

    /// Returns true if it is resolved by the kernel's types.
    #[must_use]
    pub fn asks_for_types(&self) -> bool {
        match self {
            Self::Parameter(_)
            | Self::AllParameters
            | Self::Member { .. }
            | Self::NameOf { .. } => true,
            Self::Deref { base, .. } => base.asks_for_types(),
            _ => false,
        }
    }

    /// The innermost value of all dereferences.
    #[must_use]
    pub fn innermost(&self) -> &Self {
        match self {
            Self::Deref { base, .. } | Self::Member { base, .. } | Self::NameOf { base, .. } => {
                base.innermost()
            }
            other => other,
        }
    }

    /// Returns true if it is resolved by the kernel's symbols, or by the function's arguments.
    #[must_use]
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Symbol { .. } | Self::Argument(_))
    }

    /// The parameter that it is, or begins with.
    #[must_use]
    pub fn parameter(&self) -> Option<&str> {
        match self.innermost() {
            Self::Parameter(name) => Some(name),
            _ => None,
        }
    }

    /// Number of nested dereferences.
    pub(super) fn depth(&self) -> usize {
        match self {
            Self::Deref { base, .. } => 1 + base.depth(),
            Self::Member { path, .. } => 1 + path.matches("->").count(),
            Self::NameOf { what, base } => what.steps() + base.depth(),
            _ => 0,
        }
    }

    /// Returns true if it is text that needs no memory access.
    #[must_use]
    pub fn is_known_text(&self) -> bool {
        matches!(self, Self::Comm | Self::ConstantText(_))
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => write!(f, "%{register}"),
            Self::Segment(segment) => write!(f, "%{}", segment.name()),
            Self::OrigAx => f.write_str("%orig_ax"),
            Self::Stack(n) => write!(f, "$stack{n}"),
            Self::StackPointer => f.write_str("$stack"),
            Self::ReturnValue => f.write_str("$retval"),
            Self::Argument(n) => write!(f, "$arg{n}"),
            Self::AllParameters => f.write_str("$arg*"),
            Self::Comm => f.write_str("$comm"),
            Self::CurrentTask => f.write_str("$current"),
            Self::Constant(number) => write!(f, "\\{}", shortest(*number, true)),
            Self::ConstantText(text) => write!(f, "\\\"{text}\""),
            Self::Memory(addr) => write!(f, "@{}", shortest(addr.0, false)),
            Self::Symbol { name, offset: 0 } => write!(f, "@{name}"),
            Self::Symbol { name, offset } => {
                write!(f, "@{name}{}{}", sign(*offset), shortest(offset.unsigned_abs(), false))
            }
            Self::Parameter(name) => f.write_str(name),
            Self::Member { base, path } => write!(f, "{base}->{path}"),
            Self::NameOf { what, base } => write!(f, "{base}:{}", what.suffix()),
            Self::Deref { offset, base, user } => {
                let (sign, user) = (sign(*offset), if *user { "u" } else { "" });
                write!(f, "{sign}{user}{}({base})", shortest(offset.unsigned_abs(), false))
            }
        }
    }
}

fn sign(offset: i64) -> char {
    if offset < 0 { '-' } else { '+' }
}

/// A number in the shortest form that the language accepts, so that no body becomes longer than it
/// was written: its length is limited.
fn shortest(number: u64, may_be_negative: bool) -> String {
    let (decimal, hexadecimal) = (number.to_string(), format!("{number:#x}"));
    let negative = may_be_negative.then(|| number.cast_signed().to_string());
    let all = [decimal, hexadecimal].into_iter().chain(negative);
    all.min_by_key(String::len).unwrap_or_default()
}

/// One recorded value, or several of one kind in a row: `[NAME=]BODY[:TYPE]`,
/// `[NAME=]BODY:TYPE[COUNT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchArg {
    /// Name of the field; a parameter's own, or `argN` (N from 1), when the definition gives none.
    pub name: Option<String>,
    /// Where its value comes from.
    pub body: Fetch,
    /// Its type; by default the type that the kernel's types give a parameter, `string` of text,
    /// else `x64`.
    pub kind: Option<ValueType>,
    /// For an array: number of values.
    pub count: Option<u8>,
}

impl FetchArg {
    /// The name of its field, when it is argument `index`.
    pub(super) fn name_at(&self, index: usize) -> String {
        match (&self.name, &self.body) {
            (Some(name), _) => name.clone(),
            (None, Fetch::Parameter(name)) if is_arg_name(name) => name.clone(),
            _ => unnamed(index),
        }
    }

    /// Its size in a record of the tracer, in bytes; at least, if it depends on the kernel's types.
    pub(crate) fn least_record_bytes(&self) -> usize {
        let each = match (self.kind, &self.body) {
            (_, Fetch::AllParameters) => 0,
            (Some(kind), _) => kind.record_bytes(),
            (None, Fetch::NameOf { .. }) => ValueType::Text.record_bytes(),
            (None, body) if body.is_known_text() => ValueType::Text.record_bytes(),
            (None, body) if body.asks_for_types() => 1,
            (None, _) => ValueType::default().record_bytes(),
        };
        each * self.count.map_or(1, usize::from)
    }

    /// Writes the part after the name.
    pub(super) fn fmt_value(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.body)?;
        if let Some(kind) = self.kind {
            write!(f, ":{kind}")?;
        }
        match self.count {
            Some(count) => write!(f, "[{count}]"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        self.fmt_value(f)
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
