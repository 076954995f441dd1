//! The only module that writes the guest's text: one byte, atomically, or several while no vCPU
//! runs. It writes only over the bytes that the engine expects.

use std::time::Duration;

use exoprobe_guest::memory::LoggedBytes;
use exoprobe_guest::paging::PAGE_SIZE;
use exoprobe_guest::{Gpa, GuestRam, Gva, OutsideMemory};

use crate::detour::JMP_LEN;
use crate::engine::patch::error::TextError;

/// INT3: the breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// Delay between retries while the guest seems to be in text_poke.
const CHANGE: Duration = Duration::from_millis(1);
/// Maximum number of retries.
const CHANGES: u32 = 20;

/// Writes an int3 over the first byte of the instruction `original`. All its bytes must be there
/// (as far as its page extends: the next page need not follow in physical memory).
///
/// # Errors
/// [`TextError::Clobbered`] if other bytes are there.
pub(crate) fn arm(ram: &GuestRam, gpa: Gpa, at: Gva, original: &[u8]) -> Result<(), TextError> {
    check(ram, gpa, at, original)?;
    exchange(ram, gpa, at, original[0], INT3)
}

/// Checks that [`arm`] could write its int3 there.
///
/// # Errors
/// As [`arm`].
pub(crate) fn check(ram: &GuestRam, gpa: Gpa, at: Gva, original: &[u8]) -> Result<(), TextError> {
    let in_page = PAGE_SIZE - gpa.offset_in(PAGE_SIZE);
    for (offset, expected) in (0..in_page).zip(original) {
        let found = ram.load_byte(gpa.wrapping_add(offset))?;
        if found != *expected {
            let (at, expected) = (at.wrapping_add(offset), *expected);
            return Err(TextError::Clobbered { at, found, expected });
        }
    }
    Ok(())
}

/// Writes the first byte of `original` back over an int3.
///
/// The guest changes text in this order: an int3, the rest, the first byte (text_poke_bp). If the
/// rest differs from the original, this function waits for the end of such a change. An int3 that
/// remains after that is the engine's.
///
/// # Errors
/// [`TextError::Clobbered`] if other bytes are there.
pub(crate) fn disarm(ram: &GuestRam, gpa: Gpa, at: Gva, original: &[u8]) -> Result<(), TextError> {
    for _ in 0..CHANGES {
        if holds(ram, gpa, original) != Holds::RestChanged {
            break;
        }
        std::thread::sleep(CHANGE);
    }
    exchange(ram, gpa, at, INT3, original[0])
}

fn exchange(ram: &GuestRam, gpa: Gpa, at: Gva, expected: u8, byte: u8) -> Result<(), TextError> {
    let found = ram.exchange_byte(gpa, expected, byte)?;
    if found == expected { Ok(()) } else { Err(TextError::Clobbered { at, found, expected }) }
}

/// The bytes that a jmp takes, looked up: the stop in which they are replaced is shorter then.
pub(crate) struct JmpBytes<'a> {
    at: Gva,
    /// Those of one page, and their number.
    first: LoggedBytes<'a>,
    in_first: usize,
    /// The others, if they are in another page.
    second: Option<LoggedBytes<'a>>,
}

impl<'a> JmpBytes<'a> {
    /// Looks up the bytes at `places`, from `at` on.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub(crate) fn find(
        ram: &'a GuestRam,
        places: &[Gpa; JMP_LEN],
        at: Gva,
    ) -> Result<Self, OutsideMemory> {
        let is_next = |pair: &&[Gpa]| pair[1] == pair[0].wrapping_add(1);
        let in_first = 1 + places.windows(2).take_while(is_next).count();
        let bytes = |gpa: Gpa, len| ram.logged_bytes(gpa, len).ok_or(OutsideMemory { gpa, len });
        let rest = places.get(in_first);
        let second = rest.map(|gpa| bytes(*gpa, JMP_LEN - in_first)).transpose()?;
        Ok(Self { at, first: bytes(places[0], in_first)?, in_first, second })
    }

    /// Replaces the bytes; all of them must equal `from`. Every vCPU must stand still, so that none
    /// sees a part of the change.
    ///
    /// # Errors
    /// [`TextError::Clobbered`] if other bytes are there; nothing was written in that case.
    pub(crate) fn replace(
        &self,
        from: &[u8; JMP_LEN],
        to: &[u8; JMP_LEN],
    ) -> Result<(), TextError> {
        let second = self.second.iter().flat_map(LoggedBytes::load);
        for (offset, (found, expected)) in (0u64..).zip(self.first.load().chain(second).zip(from)) {
            if found != *expected {
                let (at, expected) = (self.at.wrapping_add(offset), *expected);
                return Err(TextError::Clobbered { at, found, expected });
            }
        }
        self.first.store(to);
        if let Some(second) = &self.second {
            second.store(&to[self.in_first..]);
        }
        Ok(())
    }
}

/// The bytes at the place of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The instruction.
    Original,
    /// The instruction with an int3 over its first byte.
    Int3,
    /// An int3, followed by other bytes than the instruction's.
    RestChanged,
    /// Other bytes.
    Other,
}

/// Compares the bytes at `gpa` with `original` (as far as its page extends).
pub(crate) fn holds(ram: &GuestRam, gpa: Gpa, original: &[u8]) -> Holds {
    let in_page = PAGE_SIZE - gpa.offset_in(PAGE_SIZE);
    let is = |offset: u64, byte: u8| ram.load_byte(gpa.wrapping_add(offset)) == Ok(byte);
    let mut tail = (0..in_page).zip(original).skip(1);
    let same = tail.all(|(offset, byte)| is(offset, *byte));
    match (is(0, INT3), same) {
        (true, true) => Holds::Int3,
        (true, false) => Holds::RestChanged,
        (false, true) if is(0, original[0]) => Holds::Original,
        (false, _) => Holds::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_guest::memory::ram_ranges;

    const AT: Gva = Gva(0xffff_ffff_8100_0ffe);

    #[test]
    fn nothing_but_the_expected_bytes_is_overwritten() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, mov) = (Gpa(0x1000), [0x48, 0x89, 0xe5]);
        ram.write(gpa, &mov).unwrap();
        arm(&ram, gpa, AT, &mov).unwrap();
        assert_eq!(ram.load_byte(gpa), Ok(INT3));
        assert_eq!(holds(&ram, gpa, &mov), Holds::Int3);
        assert!(matches!(arm(&ram, gpa, AT, &mov), Err(TextError::Clobbered { .. })));
        disarm(&ram, gpa, AT, &mov).unwrap();
        assert_eq!(holds(&ram, gpa, &mov), Holds::Original);
        ram.store_byte(gpa, 0x0f).unwrap();
        assert_eq!(holds(&ram, gpa, &mov), Holds::Other);
        let error = disarm(&ram, gpa, AT, &mov);
        assert!(matches!(error, Err(TextError::Clobbered { found: 0x0f, .. })));
        assert_eq!(ram.load_byte(gpa), Ok(0x0f));
    }

    #[test]
    fn a_changed_tail_is_seen_before_arming_and_no_page_end_is_crossed() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, mov) = (Gpa(0x1ffe), [0x48, 0x89, 0xe5]);
        ram.write(gpa, &[0x48, 0x8b, 0xe5]).unwrap();
        let error = arm(&ram, gpa, AT, &mov);
        assert!(matches!(error, Err(TextError::Clobbered { found: 0x8b, .. })));
        assert_eq!(ram.load_byte(gpa), Ok(0x48));
        ram.write(gpa, &[0x48, 0x89, 0x00]).unwrap();
        arm(&ram, gpa, AT, &mov).unwrap();
    }

    #[test]
    fn an_int3_of_the_engines_is_taken_out_also_where_the_rest_has_changed() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, mov) = (Gpa(0x1000), [0x48, 0x89, 0xe5]);
        ram.write(gpa, &mov).unwrap();
        arm(&ram, gpa, AT, &mov).unwrap();
        ram.write(gpa.wrapping_add(1), &[0x8b]).unwrap();
        assert_eq!(holds(&ram, gpa, &mov), Holds::RestChanged);
        disarm(&ram, gpa, AT, &mov).unwrap();
        assert_eq!(ram.load_byte(gpa), Ok(0x48));
    }

    #[test]
    fn a_jmp_in_two_pages_is_replaced_whole_or_not_at_all() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let places = [0x1ffe, 0x1fff, 0x5000, 0x5001, 0x5002].map(Gpa);
        let bytes = || places.map(|place| ram.load_byte(place).unwrap());
        let jmp = JmpBytes::find(&ram, &places, AT).unwrap();
        let (old, new) = ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]);
        places.iter().zip(old).for_each(|(place, byte)| ram.store_byte(*place, byte).unwrap());
        for wrong in [[0, 2, 3, 4, 5], [1, 2, 3, 4, 0]] {
            let error = jmp.replace(&wrong, &new);
            assert!(matches!(error, Err(TextError::Clobbered { expected: 0, .. })), "{error:?}");
            assert_eq!(bytes(), old);
        }
        jmp.replace(&old, &new).unwrap();
        assert_eq!(bytes(), new);
        assert_eq!((ram.load_byte(Gpa(0x2000)), ram.load_byte(Gpa(0x4fff))), (Ok(0), Ok(0)));
        let outside = [0xf_fffe, 0xf_ffff, 1 << 20, 0x5001, 0x5002].map(Gpa);
        let error = JmpBytes::find(&ram, &outside, AT).err();
        assert_eq!(error, Some(OutsideMemory { gpa: outside[0], len: 3 }));
    }
}
