//! Code in hidden memory for probes at optimized places.

use std::sync::Arc;

use exoprobe_guest::hidden::Window;
use exoprobe_guest::{Gva, HiddenMemory};

use crate::detour::Detour;
use crate::engine::optimize::rings::{Rings, pool_window};
use crate::engine::patch::blocks::{Allocation, BlockAllocator};
use crate::engine::patch::text;
use crate::engine::probe::code::Code;
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::Site;

/// Most bytes by which a detour's length may differ between addresses, because of its branches.
const GROWTH: u64 = 32;

/// Bytes of a long detour.
const LONG: u64 = 4096;

/// Bytes of the first window that are kept for what cannot be elsewhere, while the extension has
/// room.
const RESERVED: u64 = 128 << 10;

/// Unlinked code that a task may still be executing or return to.
pub(crate) enum Retired {
    /// A detour, the site at the time of the jmp, and the pools and code for calls that come
    /// through it.
    Detour { code: Code, site: Option<Arc<Site>>, in_guest: Vec<Arc<InGuestReturns>> },
    /// The return code of a removed return probe.
    InGuestReturns(Arc<Probe>, Arc<InGuestReturns>),
}

impl Retired {
    pub(crate) fn code(&self) -> &Code {
        match self {
            Self::Detour { code, .. } => code,
            Self::InGuestReturns(_, in_guest) => &in_guest.code,
        }
    }

    /// Returns true if a call will return to this code. Only the pool reports this reliably: the
    /// code's address may be in a trampoline's frame or in another instance, which are not in the
    /// guest's RAM.
    pub(crate) fn awaits_calls(&self, hidden: &HiddenMemory) -> bool {
        match self {
            Self::InGuestReturns(_, in_guest) => in_guest.pool.active(hidden) > 0,
            Self::Detour { .. } => false,
        }
    }

    /// Returns true if a task in this code may continue to `other` without an address of `other` in
    /// memory yet.
    pub(crate) fn leads_to(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Detour { in_guest, .. }, Self::InGuestReturns(_, other)) => {
                in_guest.iter().any(|own| Arc::ptr_eq(own, other))
            }
            _ => false,
        }
    }
}

/// Memory for such code and for pools.
pub(crate) struct Space {
    detours: BlockAllocator,
    /// For detours that the first has no room for.
    more: BlockAllocator,
    pub(crate) pools: BlockAllocator,
}

/// Where a piece of code may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// In the first window alone: detours compare return addresses with that, and faults of guarded
    /// loads are known by it.
    First,
    /// In the extension, too.
    Anywhere,
}

impl Default for Space {
    fn default() -> Self {
        let detours: fn(&HiddenMemory) -> Option<Window> = HiddenMemory::detour_window;
        let more: fn(&HiddenMemory) -> Option<Window> = HiddenMemory::more_code_window;
        Self {
            detours: BlockAllocator::of(detours),
            more: BlockAllocator::of_unkept(more),
            pools: BlockAllocator::of(pool_window),
        }
    }
}

impl Space {
    /// Places code that `assemble` makes for an address.
    pub(crate) fn place(
        &mut self,
        hidden: &HiddenMemory,
        place: Where,
        blocks: Vec<u16>,
        assemble: impl Fn(Gva) -> Result<Detour, Arc<str>>,
    ) -> Result<Code, Arc<str>> {
        let window = self.detours.window(hidden);
        let window = window.ok_or("not-mapped: hidden memory is not mapped")?;
        // The length of the code hardly depends on its address.
        let trial = assemble(window.gva)?;
        let len = trial.bytes.len() as u64 + GROWTH;
        let spares = place == Where::Anywhere && !self.detours.has_left(RESERVED + len);
        let piece = match spares.then(|| self.more.take(hidden, len)).flatten() {
            None => self.detours.take(hidden, len),
            found => found,
        };
        let piece = piece.ok_or("no-room: the memory for detours is full")?;
        let made = assemble(piece.gva).and_then(|detour| match detour.bytes.len() <= piece.len() {
            true => Ok(detour),
            false => Err("assembler: a detour grew".into()),
        });
        let detour = match made {
            Ok(detour) => detour,
            Err(why) => {
                self.give_back(hidden, piece);
                return Err(why);
            }
        };
        // The int3s stop speculation past the end.
        let mut image = vec![text::INT3; piece.len()];
        image[..detour.bytes.len()].copy_from_slice(&detour.bytes);
        hidden.write(piece.offset, &image);
        let at = |offset: usize| piece.gva.wrapping_add(offset as u64);
        Ok(Code {
            start: piece.gva,
            end: at(detour.bytes.len()),
            entry: at(detour.entry),
            bell: detour.doorbell.map(at),
            displaced: at(detour.displaced),
            piece,
            blocks,
            pool: None,
        })
    }

    /// Returns true if there may be room for a detour that can be anywhere without the extension,
    /// or if that is mapped.
    pub(crate) fn has_room(&self, hidden: &HiddenMemory) -> bool {
        hidden.more_code_window().is_some() || self.detours.has_left(RESERVED + LONG)
    }

    fn give_back(&mut self, hidden: &HiddenMemory, piece: Allocation) {
        match is_in_more(hidden, piece.gva) {
            true => self.more.free(hidden, piece),
            false => self.detours.free(hidden, piece),
        }
    }

    /// Frees all resources of a piece of code. No task may be in it.
    pub(crate) fn free(&mut self, hidden: &HiddenMemory, rings: &mut Rings, code: Code) {
        self.give_back(hidden, code.piece);
        code.blocks.iter().for_each(|number| rings.release(hidden, *number));
        if let Some(pool) = code.pool {
            self.pools.free(hidden, pool);
        }
    }
}

/// Returns true for an address of the extension, which no snapshot has.
pub(crate) fn is_in_more(hidden: &HiddenMemory, at: Gva) -> bool {
    let window = hidden.more_code_window();
    window.is_some_and(|window| at.0.wrapping_sub(window.gva.0) < window.len)
}
