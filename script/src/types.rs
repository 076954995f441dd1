//! Types of the language's values, and of the kernel's that a script names.

use std::fmt;
use std::sync::Arc;

/// A value's type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// Not inferred yet. No checked program has it.
    Unknown,
    /// No value: the result of a statement's function, and the target of `void *`.
    Void,
    /// A number.
    Integer {
        /// Bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// It has a sign.
        signed: bool,
    },
    /// Text of at most this many bytes.
    Text(u32),
    /// Bytes of `buf()`, at most this many.
    Bytes(u32),
    /// The address of another.
    Pointer(Arc<Type>),
    /// Several of another.
    Array(Arc<Type>, u32),
    /// A struct or a union.
    Record(RecordRef),
    /// An enum of the kernel's or the script's.
    Enum {
        /// Its name.
        name: Arc<str>,
        /// Bytes.
        bytes: u8,
        /// Its values have signs.
        signed: bool,
    },
    /// Several values in parentheses.
    Tuple(Arc<[Type]>),
    /// A back-trace.
    Stack {
        /// Of the user's code, not of the kernel's.
        user: bool,
        /// How its frames are shown.
        mode: StackMode,
    },
    /// An address of the kernel, shown as a symbol: `ksym()`.
    KernelSymbol,
    /// An address of a process, shown as a symbol: `usym()`.
    UserSymbol,
    /// An address of a network: `ntop()`.
    Inet,
    /// An address of Ethernet: `macaddr()`.
    Mac,
    /// A time with a format: `strftime()`.
    Timestamp,
    /// The name of a user: `username`.
    Username,
    /// An aggregate of a map.
    Aggregate(Aggregate),
}

/// The frames of a back-trace as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackMode {
    /// `symbol+offset`, one a line.
    #[default]
    Bpftrace,
    /// `address symbol+offset`, as perf.
    Perf,
    /// Addresses alone.
    Raw,
}

/// A map's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// `count()`
    Count,
    /// `sum(n)`
    Sum {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `avg(n)`
    Avg {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `min(n)`
    Min {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `max(n)`
    Max {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `stats(n)`
    Stats {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `hist(n, bits)`
    Hist {
        /// Each power of two is divided in 2 to the power of this many buckets: 0 to 5.
        bits: u8,
    },
    /// `lhist(n, min, max, step)`
    Lhist {
        /// Start of the first bucket.
        min: i64,
        /// End of the last.
        max: i64,
        /// Size of each.
        step: i64,
    },
    /// `tseries(n, interval, number, function)`
    Tseries {
        /// Nanoseconds of a bucket.
        interval: u64,
        /// Number of buckets that are kept.
        buckets: u32,
        /// How numbers of one bucket become one.
        by: TseriesBy,
        /// Of numbers with a sign.
        signed: bool,
    },
}

/// How the numbers of a bucket of `tseries()` become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TseriesBy {
    /// The last of them.
    Last,
    /// Their average.
    Avg,
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// Their sum.
    Sum,
}

/// A struct or union: by its name, or by a number that [`crate::Kernel`] gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordRef {
    /// `struct NAME` or `union NAME`, without the word before it.
    Named(Arc<str>),
    /// One without a name.
    Numbered(u32),
}

/// The layout of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    /// It is a union.
    pub is_union: bool,
    /// Bytes.
    pub size: u32,
    /// In order. One without a name is a struct or union whose members belong to this as well.
    pub members: Vec<Member>,
}

/// A member of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    /// Its type.
    pub ty: Type,
    /// Bits from the start of the struct.
    pub bit_offset: u32,
    /// Bits, of a bit-field.
    pub bits: Option<u8>,
}

/// A function's or system call's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub ty: Type,
}

/// A function's parameters and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// In order.
    pub parameters: Vec<Parameter>,
    /// Type of its result.
    pub result: Type,
}

impl Type {
    /// `int64`, of most values.
    pub const INT64: Self = Self::Integer { bytes: 8, signed: true };
    /// `uint64`
    pub const UINT64: Self = Self::Integer { bytes: 8, signed: false };

    /// The address of a value of type `to`.
    #[must_use]
    pub fn pointer(to: Self) -> Self {
        Self::Pointer(Arc::new(to))
    }

    /// Returns true for numbers and enums.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        matches!(self, Self::Integer { .. } | Self::Enum { .. })
    }

    /// Returns true for numbers that have a sign.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        matches!(self, Self::Integer { signed: true, .. } | Self::Enum { signed: true, .. })
    }

    /// Returns true for numbers and addresses.
    #[must_use]
    pub fn is_scalar(&self) -> bool {
        self.is_integer() || matches!(self, Self::Pointer(_))
    }

    /// Bytes of a number or an address.
    #[must_use]
    pub fn scalar_bytes(&self) -> Option<u8> {
        match self {
            Self::Integer { bytes, .. } | Self::Enum { bytes, .. } => Some(*bytes),
            Self::Pointer(_) => Some(8),
            _ => None,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Void => f.write_str("void"),
            Self::Integer { bytes, signed } => {
                write!(f, "{}int{}", if *signed { "" } else { "u" }, u32::from(*bytes) * 8)
            }
            Self::Text(_) => f.write_str("string"),
            Self::Bytes(_) => f.write_str("buf"),
            Self::Pointer(to) => write!(f, "{to} *"),
            Self::Array(of, len) => write!(f, "{of}[{len}]"),
            Self::Record(RecordRef::Named(name)) => write!(f, "struct {name}"),
            Self::Record(RecordRef::Numbered(_)) => f.write_str("struct"),
            Self::Enum { name, .. } => write!(f, "enum {name}"),
            Self::Tuple(of) => {
                let names: Vec<String> = of.iter().map(ToString::to_string).collect();
                write!(f, "({})", names.join(","))
            }
            Self::Stack { user: false, .. } => f.write_str("kstack"),
            Self::Stack { user: true, .. } => f.write_str("ustack"),
            Self::KernelSymbol => f.write_str("ksym"),
            Self::UserSymbol => f.write_str("usym"),
            Self::Inet => f.write_str("inet"),
            Self::Mac => f.write_str("macaddr"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Username => f.write_str("username"),
            Self::Aggregate(aggregate) => aggregate.fmt(f),
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "count",
            Self::Sum { .. } => "sum",
            Self::Avg { .. } => "avg",
            Self::Min { .. } => "min",
            Self::Max { .. } => "max",
            Self::Stats { .. } => "stats",
            Self::Hist { .. } => "hist",
            Self::Lhist { .. } => "lhist",
            Self::Tseries { .. } => "tseries",
        })
    }
}
