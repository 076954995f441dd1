//! Fields of histograms, as they are written.

use std::fmt;

/// Name of the field with the duration of a return probe's call, in nanoseconds.
pub const LATENCY_FIELD: &str = "common_latency";
/// Name of the count of hits, which is a value of every histogram.
pub(crate) const HITCOUNT_FIELD: &str = "hitcount";
/// Name of the time of a hit, as a field.
pub(crate) const TIME_FIELD: &str = "common_timestamp";

/// A field in a histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistField {
    /// Its name.
    pub name: String,
    /// Its modifier.
    pub modifier: Modifier,
}

/// The way in which a field of a histogram is counted or shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Modifier {
    /// As it is.
    #[default]
    None,
    /// `.hex`: in hexadecimal digits.
    Hex,
    /// `.sym`: by the function that contains it.
    Sym,
    /// `.sym-offset`: by the function, with the offset in it.
    SymOffset,
    /// `.execname`: a task's number with its name.
    Execname,
    /// `.log2`: grouped by powers of two.
    Log2,
    /// `.buckets=N`: grouped by multiples of N.
    Buckets(u64),
    /// `.usecs`: in microseconds.
    Usecs,
    /// `.syscall`: a system call's number with its name.
    Syscall,
    /// `.percent`: a value's share in the sum of all entries.
    Percent,
    /// `.graph`: a value as a bar, beside the largest one.
    Graph,
    /// `.stacktrace`: a back-trace.
    Stacktrace,
}

impl Modifier {
    /// Its name in commands; empty for none.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Hex => "hex",
            Self::Sym => "sym",
            Self::SymOffset => "sym-offset",
            Self::Execname => "execname",
            Self::Log2 => "log2",
            Self::Buckets(_) => "buckets",
            Self::Usecs => "usecs",
            Self::Syscall => "syscall",
            Self::Percent => "percent",
            Self::Graph => "graph",
            Self::Stacktrace => "stacktrace",
        }
    }

    /// Returns true if values are shown in this way.
    pub(crate) fn is_of_values(self) -> bool {
        matches!(self, Self::None | Self::Hex | Self::Usecs | Self::Percent | Self::Graph)
    }

    /// Returns true if keys are shown in this way.
    pub(crate) fn is_of_keys(self) -> bool {
        !matches!(self, Self::Percent | Self::Graph)
    }
}

impl HistField {
    /// Returns true for the count of hits as it is.
    pub(crate) fn is_hitcount(&self) -> bool {
        self.name == HITCOUNT_FIELD && self.modifier == Modifier::None
    }
}

impl fmt::Display for HistField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.modifier {
            Modifier::None => Ok(()),
            Modifier::Buckets(size) => write!(f, ".buckets={size}"),
            other => write!(f, ".{}", other.name()),
        }
    }
}
