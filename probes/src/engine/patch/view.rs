//! The guest's own text: memory without the bytes written for probes.

use exoprobe_guest::Gva;
use exoprobe_introspect::{VirtualMemory, VirtualReadError};

use crate::engine::kernel::view::KernelView;

/// Longest function that is decoded, in bytes.
const FUNCTION_MAX: u64 = 1 << 20;

/// Bytes written over the guest's text.
pub(crate) trait Overlay {
    /// Puts the original bytes back into `bytes`, which were read at `start`.
    fn restore(&self, start: Gva, bytes: &mut [u8]);
}

/// The guest's text without breakpoints and jmps.
#[derive(Clone, Copy)]
pub(crate) struct GuestText<'a> {
    breakpoints: &'a dyn Overlay,
    jumps: &'a dyn Overlay,
}

impl<'a> GuestText<'a> {
    /// `jumps` are restored after `breakpoints`: a jmp replaces the int3 of its place.
    pub(crate) fn new(breakpoints: &'a dyn Overlay, jumps: &'a dyn Overlay) -> Self {
        Self { breakpoints, jumps }
    }

    /// Reads the guest's own text from `start` to `end`: a function or a part of it, at most 1 MiB.
    ///
    /// # Errors
    /// [`VirtualReadError`] if nothing is mapped.
    pub(crate) fn original(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        start: Gva,
        end: Gva,
    ) -> Result<Vec<u8>, VirtualReadError> {
        let len = end.0.wrapping_sub(start.0).min(FUNCTION_MAX);
        let mut bytes = vec![0; usize::try_from(len).expect("at most 1 MiB")];
        memory.read(start, &mut bytes)?;
        self.restore(start, &mut bytes);
        Ok(bytes)
    }

    /// Puts the original bytes back into `bytes`, which were read at `start`.
    pub(crate) fn restore(&self, start: Gva, bytes: &mut [u8]) {
        self.breakpoints.restore(start, bytes);
        self.jumps.restore(start, bytes);
    }
}
