//! Reads of actions without a hit: memory at fixed addresses of the kernel, nothing of a task.

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_probes::KernelMemory;
use exoprobe_script::{Attachment, Base, Chain, MemoryKind, OwnedDatum, Read};

use super::error::ScriptError;

/// Longest text that is read at once.
const TEXT_MAX: u32 = 4096;
/// A text ends within a page, or goes on in the next one.
const PAGE: u64 = 4096;

/// A value that an action without a hit reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FixedRead {
    /// Of bpftrace itself, which is no task of the guest: 0.
    Nothing,
    /// The address of a symbol of the kernel, as it is now.
    Symbol(Arc<str>),
    /// The kernel's memory.
    Memory {
        /// The symbol that its first address is relative to; 0 if there is none.
        from: Option<Arc<str>>,
        /// Its first address.
        at: u64,
        /// For each the word at the address, and the offset that is added to it.
        offsets: Vec<i64>,
        /// How much, and its form.
        what: MemoryKind,
    },
}

impl FixedRead {
    /// Plans the reads of an attachment's action.
    ///
    /// # Errors
    /// [`ScriptError::Unserved`].
    pub(super) fn plan(attachment: &Attachment, reads: &[Read]) -> Result<Vec<Self>, ScriptError> {
        let plan = |read: &Read| match read {
            Read::Pid | Read::Tid | Read::Uid | Read::Gid | Read::NumaNode | Read::Comm => {
                Ok(Self::Nothing)
            }
            Read::Base(Base::Symbol(name)) => Ok(Self::Symbol(Arc::clone(name))),
            Read::Memory { address: Chain { base: Base::Address(at), offsets }, what } => {
                Ok(Self::memory(None, *at, offsets, *what))
            }
            Read::Memory { address: Chain { base: Base::Symbol(name), offsets }, what } => {
                Ok(Self::memory(Some(Arc::clone(name)), 0, offsets, *what))
            }
            other => {
                let (place, what) = (attachment.name.to_string(), other.to_string());
                Err(ScriptError::Unserved { place, what })
            }
        };
        reads.iter().map(plan).collect()
    }

    fn memory(from: Option<Arc<str>>, at: u64, offsets: &[i64], what: MemoryKind) -> Self {
        let (first, rest) = offsets.split_first().unwrap_or((&0, &[]));
        Self::Memory { from, at: at.wrapping_add_signed(*first), offsets: rest.to_vec(), what }
    }

    /// Reads the value; a fault if the kernel has not begun. `address_of` finds symbols.
    pub(super) fn read(
        &self,
        memory: Option<&KernelMemory>,
        address_of: &dyn Fn(&str) -> Option<u64>,
    ) -> OwnedDatum {
        let (from, at, offsets, what) = match self {
            Self::Nothing => return OwnedDatum::Int(0),
            Self::Symbol(name) => {
                return address_of(name).map_or(OwnedDatum::Fault, OwnedDatum::Int);
            }
            Self::Memory { from, at, offsets, what } => (from, at, offsets, what),
        };
        let start = from.as_ref().map_or(Some(0), |name| address_of(name));
        let (Some(memory), Some(start)) = (memory, start) else { return OwnedDatum::Fault };
        let at = start.wrapping_add(*at);
        let word = |at: u64| {
            let mut bytes = [0; 8];
            memory.read(Gva(at), &mut bytes).ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let follow = |at: u64, offset: &i64| Some(word(at)?.wrapping_add_signed(*offset));
        let value = offsets.iter().try_fold(at, follow).and_then(|at| value(memory, at, *what));
        value.unwrap_or(OwnedDatum::Fault)
    }
}

fn value(memory: &KernelMemory, at: u64, what: MemoryKind) -> Option<OwnedDatum> {
    let bytes = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        memory.read(Gva(at), &mut bytes).ok()?;
        Some(bytes)
    };
    Some(match what {
        MemoryKind::Int { bytes: count, signed } => {
            let mut word = [0; 8];
            let count = usize::from(count).min(word.len());
            word[..count].copy_from_slice(&bytes(at, count)?);
            let unused = u32::try_from((word.len() - count) * 8).ok()?;
            let number = u64::from_le_bytes(word);
            OwnedDatum::Int(match signed {
                // Extends the sign.
                true if unused < 64 => ((number << unused).cast_signed() >> unused).cast_unsigned(),
                _ => number,
            })
        }
        MemoryKind::Bytes(len) => OwnedDatum::Bytes(bytes(at, len as usize)?),
        MemoryKind::Text(max) => {
            let max = u64::from(max.min(TEXT_MAX));
            let mut text = Vec::new();
            while (text.len() as u64) < max {
                let from = at.wrapping_add(text.len() as u64);
                let part = (PAGE - from % PAGE).min(max - text.len() as u64);
                let part = bytes(from, usize::try_from(part).ok()?)?;
                let end = part.iter().position(|byte| *byte == 0);
                text.extend_from_slice(&part[..end.unwrap_or(part.len())]);
                if end.is_some() {
                    break;
                }
            }
            OwnedDatum::Bytes(text)
        }
    })
}
