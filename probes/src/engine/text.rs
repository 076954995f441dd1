//! The one module that writes the guest's text. A single byte, atomically, and only over what the
//! engine believes is there.

use exoprobe_vmm::{Gpa, GuestRam, Gva};

use crate::error::ProbeError;

/// INT3: the breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// Puts an int3 in place of `original`.
///
/// # Errors
/// [`ProbeError::Clobbered`] when something else is there.
pub(crate) fn arm(ram: &GuestRam, gpa: Gpa, at: Gva, original: u8) -> Result<(), ProbeError> {
    replace(ram, gpa, at, original, INT3)
}

/// Puts `original` back in place of an int3.
///
/// # Errors
/// As [`arm`].
pub(crate) fn disarm(ram: &GuestRam, gpa: Gpa, at: Gva, original: u8) -> Result<(), ProbeError> {
    replace(ram, gpa, at, INT3, original)
}

fn replace(ram: &GuestRam, gpa: Gpa, at: Gva, expected: u8, new: u8) -> Result<(), ProbeError> {
    let found = ram.load_byte(gpa)?;
    if found != expected {
        return Err(ProbeError::Clobbered { at, found, expected });
    }
    Ok(ram.store_byte(gpa, new)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_vmm::memory::ram_ranges;

    #[test]
    fn nothing_but_the_expected_byte_is_overwritten() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let (gpa, at) = (Gpa(0x1000), Gva(0xffff_ffff_8100_0000));
        ram.store_byte(gpa, 0x55).unwrap();
        arm(&ram, gpa, at, 0x55).unwrap();
        assert_eq!(ram.load_byte(gpa), Ok(INT3));
        assert!(matches!(arm(&ram, gpa, at, 0x55), Err(ProbeError::Clobbered { .. })));
        disarm(&ram, gpa, at, 0x55).unwrap();
        ram.store_byte(gpa, 0x0f).unwrap();
        assert!(matches!(
            disarm(&ram, gpa, at, 0x55),
            Err(ProbeError::Clobbered { found: 0x0f, .. })
        ));
        assert_eq!(ram.load_byte(gpa), Ok(0x0f));
    }
}
