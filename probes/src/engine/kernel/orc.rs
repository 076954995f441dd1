//! A kernel's ORC tables, read once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use exoprobe_introspect::{BannerError, OrcError, OrcTables};

/// Maximum number of attempts to read tables that may appear later: the kernel maps and sorts them
/// when it begins.
const TRIES: u32 = 20;

/// Why there are no ORC tables.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoTables {
    #[error(transparent)]
    Banner(#[from] BannerError),
    #[error(transparent)]
    Orc(#[from] OrcError),
}

impl NoTables {
    fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Banner(BannerError::Read(_))
                | Self::Orc(OrcError::Unsorted(_) | OrcError::Read(_))
        )
    }
}

/// A kernel's ORC tables, read on the first request.
#[derive(Clone, Default)]
pub(crate) struct OrcCache {
    /// `None` if it has none.
    tables: OnceLock<Option<Arc<OrcTables>>>,
    /// Number of failed reads.
    failed: Arc<AtomicU32>,
}

impl OrcCache {
    pub(crate) fn tables(&self) -> Option<&Arc<OrcTables>> {
        self.tables.get()?.as_ref()
    }

    /// Reads the tables.
    pub(crate) fn learn(&self, read: impl FnOnce() -> Result<OrcTables, NoTables>) {
        if self.tables.get().is_some() {
            return;
        }
        match read() {
            Ok(tables) => {
                tracing::debug!(entries = tables.len(), layout = ?tables.layout(), "ORC tables");
                let _ = self.tables.set(Some(Arc::new(tables)));
            }
            Err(error) => {
                tracing::debug!(%error, "back-traces use frame pointers");
                if !error.may_pass() || self.failed.fetch_add(1, Ordering::Relaxed) >= TRIES {
                    let _ = self.tables.set(None);
                }
            }
        }
    }
}
