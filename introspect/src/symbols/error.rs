//! Errors of look-ups by name.

use exoprobe_guest::Gva;

/// Reasons why a name does not identify one symbol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No symbol has this name.
    #[error("no symbol named {name:?}{}", suggest(name, near))]
    Unknown {
        /// The name asked for.
        name: String,
        /// Up to three names like it, the likeliest first.
        near: Vec<String>,
    },
    /// A symbol of a module was asked for (`MODULE:SYMBOL`) that is not loaded.
    #[error("no module named {module:?} is loaded")]
    NoModule {
        /// The module asked for.
        module: String,
    },
    /// Several symbols at different addresses have this name; an address must be given instead.
    #[error("{} symbols are named {name:?}, the first at {}", addresses.len(), first(addresses))]
    Ambiguous {
        /// The name asked for.
        name: String,
        /// Where they lie, ascending.
        addresses: Vec<Gva>,
    },
}

fn suggest(name: &str, near: &[String]) -> String {
    if name.contains(['*', '?']) {
        return " (a pattern is no symbol: look up those that match, or give it to `exoprobe probe add`)"
            .to_owned();
    }
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) }
}

fn first(addresses: &[Gva]) -> Gva {
    addresses.first().copied().unwrap_or_default()
}
