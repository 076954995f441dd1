//! A recorded hit.

use std::sync::Arc;

use super::origin::Origin;
use super::ring::Record;

/// A hit that was recorded.
#[derive(Clone)]
pub(crate) struct Hit {
    pub(crate) origin: Arc<Origin>,
    pub(crate) vcpu: u8,
    pub(crate) record: Record,
}
