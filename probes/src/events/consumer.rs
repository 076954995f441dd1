//! Takers of recorded hits, in place of the store.

use std::sync::Arc;

use exoprobe_guest::{GuestTime, Gva};
use exoprobe_introspect::{SymbolTable, TaskId};

use super::ring::Record;
use crate::definition::Argument;

/// Addresses of user mode do not have this bit.
const KERNEL_HALF: u64 = 1 << 63;

/// Takes the recorded hits of its probes in place of the event store, in order of guest time as far
/// as hits are drained together.
pub trait HitConsumer: Send + Sync {
    /// Takes one hit of the probe that was registered with the number `probe`. It is called while
    /// hits are drained, with the registry locked: it must not wait, and not call the engine.
    fn take(&self, probe: usize, hit: RecordedHit);

    /// Takes one hit of a probe that is [at its hits](Consumer::at_hit), on the vCPU's thread and
    /// with the guest's memory at hand. It must not call the engine. A kprobe at a function's entry
    /// leaves the function at once with the value that it returns, if any; other probes ignore it.
    fn take_at_hit(
        &self,
        probe: usize,
        hit: RecordedHit,
        memory: &mut dyn MemoryAtHit,
    ) -> Option<u64>;
}

/// The guest's memory during a hit.
pub trait MemoryAtHit {
    /// Fills all of `buf` from a virtual address. Returns false if a part is not mapped.
    fn read(&mut self, at: Gva, buf: &mut [u8]) -> bool;
}

/// The consumer of a probe's hits.
#[derive(Clone)]
pub struct Consumer {
    /// Takes them.
    pub to: Arc<dyn HitConsumer>,
    /// The number that it knows the probe by.
    pub probe: usize,
    /// It takes each hit at once, which needs an exit: [`HitConsumer::take_at_hit`].
    pub at_hit: bool,
    /// Back-traces go on in user mode: [`RecordedHit::user_stack`].
    pub user_stack: bool,
}

/// A recorded hit, with its values as they were fetched.
#[derive(Clone)]
pub struct RecordedHit {
    pub(crate) vcpu: u8,
    pub(crate) fields: Arc<[Argument]>,
    pub(crate) record: Record,
    pub(crate) symbols: Option<SymbolTable>,
}

/// A value of a recorded hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawValue<'a> {
    /// A number in 64 bits, extended by its sign if its type has one.
    Word(u64),
    /// Text without its end, or an array's elements.
    Bytes(&'a [u8]),
}

impl RecordedHit {
    /// Index of the vCPU that hit.
    #[must_use]
    pub fn vcpu(&self) -> u8 {
        self.vcpu
    }

    /// Guest time of the hit.
    #[must_use]
    pub fn time(&self) -> GuestTime {
        GuestTime(self.record.time)
    }

    /// The current task, if its location is known.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        self.record.task.as_ref()
    }

    /// The kernel's symbols, and its modules', when the hit was taken.
    #[must_use]
    pub fn symbols(&self) -> Option<&SymbolTable> {
        self.symbols.as_ref()
    }

    /// Argument `index` of the definition; `None` if it could not be read, or there is no such one.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<RawValue<'_>> {
        let field = self.fields.get(index)?;
        if field.is_in_bytes() {
            return self.record.bytes(index).map(RawValue::Bytes);
        }
        let word = self.record.args.get(index).copied().flatten()?;
        Some(RawValue::Word(field.kind.narrow(word)))
    }

    /// The back-trace, if the probe records one: the probed place, then return addresses of the
    /// kernel.
    #[must_use]
    pub fn stack(&self) -> &[u64] {
        &self.record.stack[..self.kernel_frames()]
    }

    /// The back-trace of user mode, if the consumer asked for one: where the kernel was entered,
    /// then return addresses, as far as the program has frame pointers.
    #[must_use]
    pub fn user_stack(&self) -> &[u64] {
        &self.record.stack[self.kernel_frames()..]
    }

    /// The kernel's frames come first.
    fn kernel_frames(&self) -> usize {
        let stack = &self.record.stack;
        stack.iter().position(|at| at & KERNEL_HALF == 0).unwrap_or(stack.len())
    }
}
