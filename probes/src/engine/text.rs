//! The one module that writes the guest's text. A single byte, atomically, and only where the
//! instruction that the engine believes in is there.

use exoprobe_vmm::paging::PAGE_SIZE;
use exoprobe_vmm::{Gpa, GuestRam, Gva};

use crate::error::ProbeError;

/// INT3: the breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// Puts an int3 over the first byte of the instruction `original`, all of which must be there (as
/// far as its page goes: the next need not be the next in physical memory).
///
/// # Errors
/// [`ProbeError::Clobbered`] when something else is there.
pub(crate) fn arm(ram: &GuestRam, gpa: Gpa, at: Gva, original: &[u8]) -> Result<(), ProbeError> {
    let in_page = PAGE_SIZE - gpa.offset_in(PAGE_SIZE);
    for (offset, expected) in (0..in_page).zip(original) {
        expect(ram, gpa.wrapping_add(offset), at.wrapping_add(offset), *expected)?;
    }
    Ok(ram.store_byte(gpa, INT3)?)
}

/// Puts the first byte of `original` back in place of an int3.
///
/// # Errors
/// As [`arm`].
pub(crate) fn disarm(ram: &GuestRam, gpa: Gpa, at: Gva, original: &[u8]) -> Result<(), ProbeError> {
    expect(ram, gpa, at, INT3)?;
    Ok(ram.store_byte(gpa, original[0])?)
}

fn expect(ram: &GuestRam, gpa: Gpa, at: Gva, expected: u8) -> Result<(), ProbeError> {
    let found = ram.load_byte(gpa)?;
    if found == expected { Ok(()) } else { Err(ProbeError::Clobbered { at, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_vmm::memory::ram_ranges;

    const AT: Gva = Gva(0xffff_ffff_8100_0ffe);

    #[test]
    fn nothing_but_the_expected_bytes_is_overwritten() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, mov) = (Gpa(0x1000), [0x48, 0x89, 0xe5]);
        ram.write(gpa, &mov).unwrap();
        arm(&ram, gpa, AT, &mov).unwrap();
        assert_eq!(ram.load_byte(gpa), Ok(INT3));
        assert!(matches!(arm(&ram, gpa, AT, &mov), Err(ProbeError::Clobbered { .. })));
        disarm(&ram, gpa, AT, &mov).unwrap();
        ram.store_byte(gpa, 0x0f).unwrap();
        let error = disarm(&ram, gpa, AT, &mov);
        assert!(matches!(error, Err(ProbeError::Clobbered { found: 0x0f, .. })));
        assert_eq!(ram.load_byte(gpa), Ok(0x0f));
    }

    #[test]
    fn a_changed_tail_is_seen_before_arming_and_no_page_end_is_crossed() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, mov) = (Gpa(0x1ffe), [0x48, 0x89, 0xe5]);
        ram.write(gpa, &[0x48, 0x8b, 0xe5]).unwrap();
        let error = arm(&ram, gpa, AT, &mov);
        assert!(matches!(error, Err(ProbeError::Clobbered { found: 0x8b, .. })));
        assert_eq!(ram.load_byte(gpa), Ok(0x48));
        ram.write(gpa, &[0x48, 0x89, 0x00]).unwrap();
        arm(&ram, gpa, AT, &mov).unwrap();
    }
}
