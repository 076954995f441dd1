//! Functions in filters: `NAME.function == FUNCTION`.

use std::fmt;
use std::ops::Range;

use exoprobe_guest::Gva;
use exoprobe_introspect::{LookupError, SymbolTable};

/// The function of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilterFunction {
    /// That of this name; of several the first.
    Named(Box<str>),
    /// That which has this address.
    At(u64),
}

impl FilterFunction {
    /// Its addresses in a kernel; `None` if there is no such function.
    pub(crate) fn addresses(&self, symbols: &SymbolTable) -> Option<Range<u64>> {
        let at = match self {
            Self::At(at) => Gva(*at),
            Self::Named(name) => match symbols.lookup(name) {
                Ok(found) => found.address,
                Err(LookupError::Ambiguous { addresses, .. }) => *addresses.first()?,
                Err(LookupError::Unknown { .. } | LookupError::NoModule { .. }) => return None,
            },
        };
        let found = symbols.function_at(at)?;
        Some(found.start.0..found.end.0)
    }
}

impl fmt::Display for FilterFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::At(at) => write!(f, "{at:#x}"),
        }
    }
}
