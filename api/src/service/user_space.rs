//! Whether a guest has started its first program, of whatever kernel and init it is made.

use exoprobe_guest::{Gpa, GuestRam};
use exoprobe_vmm::Vm;

/// Bits of CR3 with the top page table's address.
const TABLE: u64 = 0x000f_ffff_ffff_f000;
/// Entries of the top page table for the lower, the user's half of addresses.
const LOWER_ENTRIES: usize = 256;
/// Bits of an entry: it is there, and user mode may follow it.
const PRESENT_USER: u64 = 0b101;
/// The privilege level of user mode, the two lowest bits of CS.
const USER_MODE: u16 = 3;

/// Whether a vCPU is in user mode, or has the page tables of a process: those alone have entries
/// for user mode, and an idle kernel keeps the last ones loaded. The kernel's own table for
/// patching text has one as well, for moments: two looks in turn must agree.
///
/// Waits for each vCPU, so not to be called on an async thread.
pub(super) fn runs(vm: &Vm) -> bool {
    (0..vm.config().vcpus).any(|vcpu| {
        vm.registers(vcpu).is_ok_and(|registers| {
            let sregs = &registers.sregs;
            let in_user_mode = sregs.cs.selector & USER_MODE == USER_MODE;
            in_user_mode || has_user_entries(vm.ram(), sregs.cr3)
        })
    })
}

fn has_user_entries(ram: &GuestRam, cr3: u64) -> bool {
    let mut table = [0; LOWER_ENTRIES * 8];
    // Where there is no memory, there is no table either.
    ram.read(Gpa(cr3 & TABLE), &mut table).is_ok()
        && table
            .as_chunks::<8>()
            .0
            .iter()
            .any(|entry| u64::from_le_bytes(*entry) & PRESENT_USER == PRESENT_USER)
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::memory::ram_ranges;

    use super::*;

    #[test]
    fn only_the_tables_of_processes_have_entries_for_user_mode() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        let table = 0x2000;
        assert!(!has_user_entries(&ram, table), "an empty table");
        ram.write(Gpa(table), &0x3003_u64.to_le_bytes()).unwrap();
        assert!(!has_user_entries(&ram, table), "the identity map of a kernel that begins");
        ram.write(Gpa(table + 256 * 8), &0x3007_u64.to_le_bytes()).unwrap();
        assert!(!has_user_entries(&ram, table), "the kernel's half");
        ram.write(Gpa(table + 255 * 8), &0x3007_u64.to_le_bytes()).unwrap();
        assert!(has_user_entries(&ram, table | 0x818), "bits for caching and process ids");
        assert!(!has_user_entries(&ram, 1 << 40), "no memory there");
    }
}
