//! A kernel's ORC tables, read once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use exoprobe_introspect::{BannerError, OrcError, OrcTables};

/// How often tables are read that may be there another time: the kernel maps and sorts them when it
/// begins.
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

/// A kernel's ORC tables, once somebody has asked.
#[derive(Clone, Default)]
pub(crate) struct OrcCache {
    /// `None` where it has none.
    tables: OnceLock<Option<Arc<OrcTables>>>,
    /// How often they could not be read.
    failed: Arc<AtomicU32>,
}

impl OrcCache {
    pub(crate) fn tables(&self) -> Option<&Arc<OrcTables>> {
        self.tables.get()?.as_ref()
    }

    /// Says whether there are tables now that were not there before.
    pub(crate) fn learn(&self, read: impl FnOnce() -> Result<OrcTables, NoTables>) -> bool {
        if self.tables.get().is_some() {
            return false;
        }
        match read() {
            Ok(tables) => {
                tracing::debug!(entries = tables.len(), layout = ?tables.layout(), "ORC tables");
                self.tables.set(Some(Arc::new(tables))).is_ok()
            }
            Err(error) => {
                tracing::debug!(%error, "back-traces go by frame pointers");
                if !error.may_pass() || self.failed.fetch_add(1, Ordering::Relaxed) >= TRIES {
                    let _ = self.tables.set(None);
                }
                false
            }
        }
    }
}
