//! A recorded hit.

use std::sync::Arc;

use super::origin::Origin;
use super::ring::Record;
use crate::definition::Argument;

/// A hit that was recorded.
#[derive(Clone)]
pub(crate) struct Hit {
    pub(crate) origin: Arc<Origin>,
    pub(crate) vcpu: u8,
    pub(crate) record: Record,
}

/// Approximate overhead of an allocation, in bytes.
const ALLOCATION: usize = 16;

impl Hit {
    /// Memory that it takes, in bytes, without its origin.
    pub(super) fn bytes(&self) -> usize {
        let Record { args, stack, text, .. } = &self.record;
        size_of::<Self>()
            + args.len() * size_of::<Option<u64>>()
            + size_of_val(stack.as_slice())
            + text.len()
            + 3 * ALLOCATION
    }
}

impl Origin {
    /// Approximate memory that it takes, in bytes. Its texts and symbols belong to the probe and
    /// the kernel.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.fields.iter().map(|field| field.name.len() + ALLOCATION).sum();
        size_of::<Self>() + self.fields.len() * 2 * size_of::<Argument>() + names + 2 * ALLOCATION
    }
}
