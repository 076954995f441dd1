//! The requirements of a site for a jmp, and the check of them.

use std::sync::Arc;

use exoprobe_guest::paging::PAGE_SIZE;
use exoprobe_guest::{Gpa, GuestRam, Gva, OutsideMemory};

use crate::detour::{JMP_LEN, Obstacle, Region};
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::space::Retired;
use crate::engine::optimize::text_info::TextInfo;
use crate::engine::patch::text::{self, JmpBytes};
use crate::engine::patch::view::GuestText;
use crate::engine::probe::code::Code;
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::{Probe, Returns};
use crate::engine::probe::site::Site;

/// Most bytes of text searched for a region: its last instruction begins within the jmp and has at
/// most 15 bytes.
const REGION_MAX: u64 = 64;

/// A site that is about to get a jmp, or has one.
pub(crate) struct OptimizedSite {
    pub(crate) at: Gva,
    pub(crate) region: Arc<Region>,
    /// Guest-physical address of each byte of the jmp.
    pub(crate) places: [Gpa; JMP_LEN],
    /// Addresses of the bytes after the jmp that belong to the last instruction which it covers.
    pub(crate) rest: Vec<Gpa>,
    pub(crate) jmp: [u8; JMP_LEN],
    pub(crate) code: Code,
    /// The return probes of the site.
    pub(crate) follows: Vec<(Arc<Probe>, Arc<InGuestReturns>)>,
}

impl OptimizedSite {
    /// Looks up the bytes of the jmp.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub(crate) fn bytes<'a>(&self, ram: &'a GuestRam) -> Result<JmpBytes<'a>, OutsideMemory> {
        JmpBytes::find(ram, &self.places, self.at)
    }

    /// Writes the jmp over the int3. Returns true if the int3 and the bytes that follow it were
    /// there. Every vCPU must stand still.
    pub(crate) fn write(&self, bytes: &JmpBytes<'_>) -> bool {
        self.hand_over() && bytes.replace(&self.armed(), &self.jmp).is_ok()
    }

    /// Writes the int3 back over the jmp. Returns true if the jmp was there. Every vCPU must stand
    /// still.
    pub(crate) fn take_back(&self, bytes: &JmpBytes<'_>) -> bool {
        bytes.replace(&self.jmp, &self.armed()).is_ok()
    }

    /// Makes the return probes take their instances from their pools in the guest from now on.
    /// Returns false while one has other instances in use: both together must not exceed
    /// `maxactive`.
    fn hand_over(&self) -> bool {
        let returns = || self.follows.iter().map(|(probe, own)| (probe.returns(), own));
        let is_free = |returns: &Returns| returns.in_guest().is_some() || returns.active() == 0;
        if !returns().all(|(returns, _)| returns.is_some_and(is_free)) {
            return false;
        }
        for (returns, in_guest) in returns() {
            if let Some(returns) = returns.filter(|returns| returns.in_guest().is_none()) {
                returns.in_guest.store(Some(Arc::clone(in_guest)));
            }
        }
        true
    }

    /// Turns the site into its detour, which is unlinked now.
    pub(crate) fn retire(self, site: Option<Arc<Site>>) -> Retired {
        let in_guest = self.follows.into_iter().map(|(_, in_guest)| in_guest).collect();
        Retired::Detour { code: self.code, site, in_guest }
    }

    /// The bytes of the text while the site has an int3.
    fn armed(&self) -> [u8; JMP_LEN] {
        let mut armed = *self.region.covered();
        armed[0] = text::INT3;
        armed
    }
}

pub(crate) fn assembler(error: impl std::fmt::Display) -> Arc<str> {
    format!("assembler: {error}").into()
}

pub(crate) fn check(
    text: GuestText<'_>,
    kernel: &Kernel,
    ground: &TextInfo,
    at: Gva,
) -> Result<Region, Obstacle> {
    let short = Obstacle::TooShort { end: at };
    let bounds = kernel.symbols.function_at(at).ok_or_else(|| short.clone())?;
    let end = bounds.end.min(at.wrapping_add(REGION_MAX));
    let bytes = text.original(&kernel.memory(), at, end).map_err(|_| short)?;
    Region::check(&bytes, at, ground)
}

/// Guest-physical addresses of `len` bytes at `at`: those of a jmp, and the others.
pub(crate) fn places(kernel: &Kernel, at: Gva, len: u64) -> Option<([Gpa; JMP_LEN], Vec<Gpa>)> {
    let memory = kernel.memory();
    let first = memory.translate(at).ok()?.gpa;
    let place = |offset: u64| match first.offset_in(PAGE_SIZE) + offset < PAGE_SIZE {
        true => Some(first.wrapping_add(offset)),
        false => Some(memory.translate(at.wrapping_add(offset)).ok()?.gpa),
    };
    let all: Vec<Gpa> = (0..len).map(place).collect::<Option<_>>()?;
    let (jmp, rest) = all.split_first_chunk()?;
    Some((*jmp, rest.to_vec()))
}
