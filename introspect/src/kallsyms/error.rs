//! Why there are no symbols in a kernel's memory.

use crate::kernel_image::ImageError;
use crate::symbols::ListingError;

/// Why a guest's memory gives no symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KallsymsError {
    /// Where the kernel is cannot be told.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no table of tokens.
    #[error("its image has no table of names (CONFIG_KALLSYMS)")]
    NoTokens,
    /// What is before the tokens are no names.
    #[error("its table of names is of no known form")]
    NoNames,
    /// There are no addresses for them.
    #[error("its table of symbols' addresses is of no known form")]
    NoAddresses,
    /// They make no table.
    #[error("its symbols make no table: {0}")]
    Listing(#[from] ListingError),
}
