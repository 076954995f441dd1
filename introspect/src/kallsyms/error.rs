//! Why there are no symbols in a kernel's memory.

use crate::kernel_image::ImageError;
use crate::symbols::ListingError;

/// Reasons why a guest's memory has no symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KallsymsError {
    /// The kernel's image was not found.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no table of tokens.
    #[error("its image has no table of names (CONFIG_KALLSYMS)")]
    NoTokens,
    /// The data before the tokens are not names.
    #[error("its table of names is of no known form")]
    NoNames,
    /// There are no addresses for them.
    #[error("its table of symbols' addresses is of no known form")]
    NoAddresses,
    /// The symbols do not form a table.
    #[error("its symbols make no table: {0}")]
    Listing(#[from] ListingError),
}
