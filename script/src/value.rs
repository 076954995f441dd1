//! Values of a running script.

use std::sync::Arc;

/// A value. Its static type says the rest: signs, structs, modes of stacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    /// A number, an address, a symbol of the kernel or a user.
    Int(i64),
    /// Text, bytes, structs, arrays, addresses of networks.
    Bytes(Arc<[u8]>),
    /// A tuple.
    Tuple(Arc<[Value]>),
    /// A back-trace, and the process that it is of.
    Stack(Arc<[u64]>, u32),
    /// An address, and the process that it is of.
    UserSymbol(u64, u32),
    /// A time and its format.
    Timestamp(u64, Arc<str>),
}

impl Value {
    pub(crate) fn text(text: &str) -> Self {
        Self::Bytes(text.as_bytes().into())
    }

    /// The number; of text, memory and the like 0.
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::UserSymbol(address, _) => address.cast_signed(),
            _ => 0,
        }
    }

    /// Bytes that it takes beside its own size. Those that it shares with another value count as
    /// its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Int(_) | Self::UserSymbol(..) => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Tuple(all) => {
                size_of_val(&**all) + all.iter().map(Self::heap_bytes).sum::<usize>()
            }
            Self::Stack(addresses, _) => size_of_val(&**addresses),
            Self::Timestamp(_, format) => format.len(),
        }
    }

    /// The bytes of text or memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    /// Is it true as a condition?
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Int(number) => *number != 0,
            Self::Bytes(bytes) => !bytes.is_empty(),
            _ => true,
        }
    }

    /// Bytes that it takes, about.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Tuple(of) => of.iter().map(|value| value.size() + 8).sum(),
            Self::Stack(frames, _) => frames.len() * 8,
            _ => 8,
        }
    }
}
