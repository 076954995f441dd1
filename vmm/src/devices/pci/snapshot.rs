//! The state of the bus in a snapshot.

/// The bus and its functions, by slot.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct PciSnapshot {
    pub(super) address: u32,
    pub(super) functions: Vec<FunctionSnapshot>,
}

/// One function.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct FunctionSnapshot {
    /// Its configuration space.
    pub(crate) registers: Vec<u32>,
    /// Its own state, in its own form.
    pub(crate) state: serde_json::Value,
}

/// A state that the device cannot be in: the snapshot it came from is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot's state of a PCI device is not valid: {0}")]
pub(crate) struct InvalidState(pub(crate) String);
