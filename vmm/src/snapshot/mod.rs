//! A whole machine in a file.
//!
//! | offset | bytes | content |
//! |--------|-------|---------|
//! | 0      | 8     | `EXOPROBE` |
//! | 8      | 4     | format version |
//! | 12     | 4     | CRC-32 of the header's other bytes |
//! | 16     | 8     | length of the metadata (JSON) that starts at 64 |
//! | 24     | 8     | offset of memory, a multiple of 4096 |
//! | 32     | 8     | length of memory: all RAM, then the hidden region |
//! | 40     | 4     | CRC-32 of the metadata |
//! | 44     | 4     | CRC-32 of memory, in pieces of 64 KiB |
//!
//! All numbers are little-endian. Pieces of zeros are holes of the file; the checksum is over the
//! others, each after its number (8 bytes). Memory is mapped from the file when restored, so the
//! file must stay unchanged while a guest restored from it runs.

#[cfg(any(test, feature = "testing"))]
mod driven;
mod error;
mod file;
mod memory;
mod meta;

#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenSnapshot;
pub use error::SnapshotError;
pub(crate) use file::{open, write};
pub(crate) use meta::{Chips, SnapshotMeta};
