//! Back-traces of vCPUs and tasks.

use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// A place of a back-trace.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Frame {
    /// The next instruction of the first; what a call returns to of those above.
    pub addr: Hex,
    /// Function of the kernel that it is in; null outside all symbols, and in user mode.
    #[schema(example = "vfs_read")]
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Bytes of the function; 0 where there is none.
    pub size: u64,
    /// It is of user mode.
    pub user: bool,
}

impl From<exoprobe_probes::Frame> for Frame {
    fn from(frame: exoprobe_probes::Frame) -> Self {
        let exoprobe_probes::Frame { addr, symbol_name, offset, size, user } = frame;
        Self { addr: Hex(addr.0), symbol_name, offset, size, user }
    }
}
