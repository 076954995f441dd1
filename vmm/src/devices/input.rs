//! Bytes on their way to the guest, as many as there is room for.

use std::collections::VecDeque;

/// Most bytes that wait.
pub(crate) const INPUT_MAX: usize = 64 << 10;

/// The input queue is full: the guest does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest is not reading its input: {waiting} bytes are waiting already")]
pub struct InputFull {
    /// Bytes in the queue.
    pub waiting: usize,
}

/// Bytes that wait for the guest.
#[derive(Debug, Default)]
pub(crate) struct InputQueue(VecDeque<u8>);

impl InputQueue {
    /// The queue of a snapshot.
    pub(crate) fn restored(bytes: &[u8]) -> Self {
        Self(bytes.iter().copied().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`InputFull`]: nothing was added.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), InputFull> {
        if self.0.len() + bytes.len() > INPUT_MAX {
            return Err(InputFull { waiting: self.0.len() });
        }
        self.0.extend(bytes);
        Ok(())
    }

    /// All bytes that wait, in order.
    pub(crate) fn waiting(&mut self) -> &[u8] {
        self.0.make_contiguous()
    }

    /// Removes the first bytes, which the guest has.
    pub(crate) fn consume(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// A copy of all bytes, for a snapshot.
    pub(crate) fn save(&self) -> Vec<u8> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_in_order_and_have_a_bound() {
        let mut queue = InputQueue::default();
        queue.push(b"abc").unwrap();
        queue.consume(2);
        queue.push(&vec![b'x'; INPUT_MAX - 1]).unwrap();
        assert_eq!(&queue.waiting()[..2], b"cx");
        assert_eq!(queue.push(b"y"), Err(InputFull { waiting: INPUT_MAX }));
        queue.push(b"").unwrap();
        let mut restored = InputQueue::restored(&queue.save());
        assert_eq!(restored.waiting(), queue.waiting());
        queue.consume(INPUT_MAX);
        assert!(queue.is_empty());
    }
}
