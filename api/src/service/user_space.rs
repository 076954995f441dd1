//! Whether a guest has started its first program, of whatever kernel and init it is made.

use exoprobe_guest::{Gpa, GuestRam};
use exoprobe_vmm::Vm;
use kvm_bindings::kvm_sregs;

/// Bit of CR0: addresses are translated by page tables.
const PAGING: u64 = 1 << 31;
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
        vm.registers(vcpu).is_ok_and(|registers| in_a_process(vm.ram(), &registers.sregs))
    })
}

/// A vCPU that waits to be started, or is in real mode, has no paging: its CR3 and the low bits of
/// its CS mean nothing.
fn in_a_process(ram: &GuestRam, sregs: &kvm_sregs) -> bool {
    let in_user_mode = sregs.cs.selector & USER_MODE == USER_MODE;
    sregs.cr0 & PAGING != 0 && (in_user_mode || has_user_entries(ram, sregs.cr3))
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
    fn vcpus_without_paging_are_in_no_process() {
        let ram = GuestRam::anonymous(&ram_ranges(1)).unwrap();
        ram.write(Gpa(0), &0x3007_u64.to_le_bytes()).unwrap();
        let mut sregs = kvm_sregs { cr3: 0, ..kvm_sregs::default() };
        assert!(!in_a_process(&ram, &sregs), "as it is before the kernel starts it");
        sregs.cr0 = PAGING;
        assert!(in_a_process(&ram, &sregs), "its table has entries for user mode");
        sregs.cr3 = 0x2000;
        assert!(!in_a_process(&ram, &sregs), "an empty table");
        sregs.cs.selector = 0x33;
        assert!(in_a_process(&ram, &sregs), "user mode");
    }

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
