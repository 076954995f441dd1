//! Values of a hit: fetches its arguments as words, and as bytes if they are text or arrays.

use exoprobe_guest::Gva;

use crate::definition::{Argument, Fetch, TEXT_MAX, ValueType, Width};
use crate::engine::arguments::legacy::{KEPT_MAX, argument as place_of_argument};
use crate::engine::kernel::memory::{HitMemory, KERNEL_HALF};
use crate::engine::probe::handlers::Hit;
use crate::events::{TextList, TextPlace};

/// Bytes of a record's word.
const WORD: usize = 8;
/// Most bytes of all texts and arrays of one hit.
const BYTES_MAX: usize = 4 * TEXT_MAX;

/// Arguments of a call as they were at its entry, beginning with the first.
pub(crate) type Kept = [Option<u64>; KEPT_MAX];

/// An argument's word; `None` where memory cannot be read.
#[inline]
pub(crate) fn word(arg: &Argument, hit: &mut Hit<'_>) -> Option<u64> {
    match arg.fetch {
        Fetch::Register(register) => Some(register.of(hit.regs)),
        _ => fetch(&arg.fetch, arg.kind.width(), hit),
    }
}

/// The value of a fetch argument. Memory is read with the given width.
fn fetch(body: &Fetch, width: Width, hit: &mut Hit<'_>) -> Option<u64> {
    match body {
        Fetch::Register(register) => Some(register.of(hit.regs)),
        Fetch::Segment(segment) => Some(segment.of(&hit.memory.sregs.sregs().ok()?)),
        // No entry of a system call saved it (the kernel's int3 entry has -1 in its place).
        Fetch::OrigAx => Some(u64::MAX),
        Fetch::StackPointer => Some(hit.regs.rsp),
        Fetch::ReturnValue => Some(hit.return_value()),
        Fetch::Constant(number) => Some(*number),
        Fetch::CurrentTask => {
            let HitMemory { view, tasks, .. } = hit.memory;
            Some(tasks?.address_on(view, hit.vcpu)?.0)
        }
        // The value is shown from elsewhere.
        Fetch::Comm | Fetch::ConstantText(_) => Some(0),
        Fetch::Stack(_) | Fetch::Memory(_) | Fetch::Deref { .. } => {
            let at = place(body, hit)?;
            if width == Width::Quad {
                return hit.read_u64(at).ok();
            }
            let mut bytes = [0; WORD];
            hit.read(at, &mut bytes[..width.bytes()]).ok()?;
            Some(u64::from_le_bytes(bytes))
        }
        Fetch::Argument(n) => *hit.kept.get(usize::from(*n).checked_sub(1)?)?,
        Fetch::Parameter(_)
        | Fetch::AllParameters
        | Fetch::Symbol { .. }
        | Fetch::Member { .. }
        | Fetch::NameOf { .. } => None,
    }
}

/// Reads the wanted arguments of a call at its entry; `None` for those that are not wanted or
/// cannot be read.
pub(crate) fn keep(wanted: &[u16], hit: &mut Hit<'_>) -> Kept {
    let mut kept = Kept::default();
    for n in wanted {
        let Some(index) = n.checked_sub(1) else { continue };
        if let (Some(place), Some(slot)) =
            (place_of_argument(index), kept.get_mut(usize::from(index)))
        {
            *slot = fetch(&place, Width::Quad, hit);
        }
    }
    kept
}

/// The address that a fetch argument reads, if it reads memory. Names of parameters and symbols
/// have been resolved at registration.
pub(crate) fn place(body: &Fetch, hit: &mut Hit<'_>) -> Option<Gva> {
    match body {
        Fetch::Stack(n) => Some(Gva(hit.regs.rsp).wrapping_add(u64::from(*n) * 8)),
        Fetch::Memory(addr) => Some(*addr),
        Fetch::Deref { offset, base, user } => {
            let base = fetch(base, Width::Quad, hit)?;
            let at = Gva(base).wrapping_add(offset.cast_unsigned());
            (!user || is_users(at)).then_some(at)
        }
        _ => None,
    }
}

fn is_users(at: Gva) -> bool {
    at.0 & KERNEL_HALF == 0
}

/// The text of an argument of a text type.
pub(crate) fn read_text(arg: &Argument, hit: &mut Hit<'_>) -> Option<Vec<u8>> {
    let at = place(&arg.fetch, hit)?;
    text_at(at, arg.kind, hit)
}

/// The text at an address; user memory if the type says so.
pub(crate) fn text_at(at: Gva, kind: ValueType, hit: &mut Hit<'_>) -> Option<Vec<u8>> {
    if kind == ValueType::UserText && !is_users(at) {
        return None;
    }
    Some(hit.read_text(at, TEXT_MAX - 1).ok()?.bytes)
}

/// The texts and arrays of one hit.
#[derive(Default)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
}

impl Bytes {
    /// Reads the arguments that are text or arrays. Returns the place of each, by argument; `None`
    /// for those that cannot be read.
    pub(crate) fn fetch_all(
        &mut self,
        list: &[Argument],
        hit: &mut Hit<'_>,
    ) -> Vec<Option<TextPlace>> {
        let mut one = |arg: &Argument| {
            if !arg.is_in_bytes() {
                return None;
            }
            let found = match arg.count {
                None => read_text(arg, hit)?,
                Some(count) if arg.kind.is_text() => texts(arg, count, hit)?,
                Some(count) => {
                    let mut bytes = vec![0; usize::from(count) * arg.kind.width().bytes()];
                    let at = place(&arg.fetch, hit)?;
                    hit.read(at, &mut bytes).ok()?;
                    bytes
                }
            };
            self.put(&found)
        };
        list.iter().map(&mut one).collect()
    }

    fn put(&mut self, found: &[u8]) -> Option<TextPlace> {
        if self.bytes.len() + found.len() > BYTES_MAX {
            return None;
        }
        TextPlace::append(&mut self.bytes, found)
    }

    pub(crate) fn words(&self) -> u16 {
        u16::try_from(self.bytes.len().div_ceil(WORD)).expect("at most BYTES_MAX")
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

/// The texts that an array of pointers refers to.
fn texts(arg: &Argument, count: u8, hit: &mut Hit<'_>) -> Option<Vec<u8>> {
    let mut pointers = vec![0; usize::from(count) * WORD];
    let at = place(&arg.fetch, hit)?;
    hit.read(at, &mut pointers).ok()?;
    let mut list = TextList::default();
    for pointer in pointers.as_chunks().0 {
        let text = text_at(Gva(u64::from_le_bytes(*pointer)), arg.kind, hit);
        list.push(text.as_deref());
    }
    Some(list.into_bytes())
}
