//! The MP table (Intel MultiProcessor Specification 1.4): one processor entry a vCPU, an ISA bus,
//! an I/O APIC and its sixteen lines. It announces more than one vCPU to Linux without ACPI.

use crate::layout::{IO_APIC, LOCAL_APIC, MP_POINTER, MP_TABLE};
use exoprobe_guest::{GuestRam, OutsideMemory};

const SPEC_REVISION: u8 = 4;
const APIC_VERSION: u8 = 0x14;
const ISA_IRQS: u8 = 16;
const HEADER_LEN: usize = 44;

const ENTRY_PROCESSOR: u8 = 0;
const ENTRY_BUS: u8 = 1;
const ENTRY_IO_APIC: u8 = 2;
const ENTRY_IO_INTERRUPT: u8 = 3;
const ENTRY_LOCAL_INTERRUPT: u8 = 4;
const INTERRUPT_INT: u8 = 0;
const INTERRUPT_NMI: u8 = 1;
const INTERRUPT_EXTINT: u8 = 3;
const CPU_ENABLED: u8 = 1;
const CPU_BOOTSTRAP: u8 = 2;
/// Family 6, as every 64-bit Intel CPU; Linux takes the real one from CPUID.
const CPU_SIGNATURE: u32 = 0x600;
/// FPU and APIC on chip.
const CPU_FEATURES: u32 = 0x201;

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

fn entries(vcpus: u8) -> (Vec<u8>, u16) {
    let mut table = Vec::new();
    let mut count = 0;
    let mut add = |bytes: &[u8]| {
        table.extend_from_slice(bytes);
        count += 1;
    };
    for id in 0..vcpus {
        let flags = CPU_ENABLED | if id == 0 { CPU_BOOTSTRAP } else { 0 };
        let mut cpu = vec![ENTRY_PROCESSOR, id, APIC_VERSION, flags];
        cpu.extend_from_slice(&CPU_SIGNATURE.to_le_bytes());
        cpu.extend_from_slice(&CPU_FEATURES.to_le_bytes());
        cpu.extend_from_slice(&[0; 8]);
        add(&cpu);
    }
    // The first that no vCPU has.
    let io_apic_id = vcpus;
    add(&[ENTRY_BUS, 0, b'I', b'S', b'A', b' ', b' ', b' ']);
    let mut io_apic = vec![ENTRY_IO_APIC, io_apic_id, APIC_VERSION, CPU_ENABLED];
    io_apic.extend_from_slice(&IO_APIC.to_le_bytes());
    add(&io_apic);
    for irq in 0..ISA_IRQS {
        add(&[ENTRY_IO_INTERRUPT, INTERRUPT_INT, 0, 0, 0, irq, io_apic_id, irq]);
    }
    add(&[ENTRY_LOCAL_INTERRUPT, INTERRUPT_EXTINT, 0, 0, 0, 0, 0, 0]);
    add(&[ENTRY_LOCAL_INTERRUPT, INTERRUPT_NMI, 0, 0, 0, 0, 0xff, 1]);
    (table, count)
}

fn build(vcpus: u8) -> Vec<u8> {
    let (entries, count) = entries(vcpus);
    let len = u16::try_from(HEADER_LEN + entries.len()).expect("255 vCPUs take less than 6 KiB");
    let mut table = Vec::with_capacity(usize::from(len));
    table.extend_from_slice(b"PCMP");
    table.extend_from_slice(&len.to_le_bytes());
    table.extend_from_slice(&[SPEC_REVISION, 0]);
    table.extend_from_slice(b"EXOPROBEMICROVM     ");
    table.extend_from_slice(&[0; 6]);
    table.extend_from_slice(&count.to_le_bytes());
    table.extend_from_slice(&LOCAL_APIC.to_le_bytes());
    table.extend_from_slice(&[0; 4]);
    table.extend_from_slice(&entries);
    table[7] = checksum(&table);
    table
}

/// Writes the floating pointer and the table.
pub(super) fn write(ram: &GuestRam, vcpus: u8) -> Result<(), OutsideMemory> {
    let mut pointer = Vec::with_capacity(16);
    pointer.extend_from_slice(b"_MP_");
    pointer.extend_from_slice(&u32::try_from(MP_TABLE.0).expect("below 1 MiB").to_le_bytes());
    pointer.extend_from_slice(&[1, SPEC_REVISION, 0, 0, 0, 0, 0, 0]);
    pointer[10] = checksum(&pointer);
    ram.write(MP_POINTER, &pointer)?;
    ram.write(MP_TABLE, &build(vcpus))
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::Gpa;
    use exoprobe_guest::memory::ram_ranges;

    use super::*;
    use crate::config::MAX_VCPUS;
    use crate::layout::{LOW_RAM_END, MP_TABLE_END};

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte))
    }

    /// Entries of a table, by their types: processors have 20 bytes, all others 8.
    fn split(mut entries: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while let Some(kind) = entries.first() {
            let (entry, rest) = entries.split_at(if *kind == ENTRY_PROCESSOR { 20 } else { 8 });
            found.push(entry);
            entries = rest;
        }
        found
    }

    #[test]
    fn the_pointer_leads_to_a_table_in_which_each_vcpu_has_its_own_apic() {
        for vcpus in [1, 2, MAX_VCPUS] {
            let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
            write(&ram, vcpus).unwrap();
            let mut pointer = [0; 16];
            ram.read(LOW_RAM_END, &mut pointer).unwrap();
            assert_eq!((&pointer[..4], sum(&pointer)), (&b"_MP_"[..], 0));
            let at = u32::from_le_bytes(pointer[4..8].try_into().unwrap()).into();
            let mut table = vec![0; 44 + 20 * usize::from(vcpus) + 8 * (2 + 16 + 2)];
            ram.read(Gpa(at), &mut table).unwrap();
            assert_eq!((&table[..4], sum(&table)), (&b"PCMP"[..], 0));
            assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
            assert!(Gpa(at) >= MP_TABLE && at + table.len() as u64 <= MP_TABLE_END.0);
            let entries = split(&table[HEADER_LEN..]);
            assert_eq!(entries.len(), usize::from(u16::from_le_bytes([table[34], table[35]])));
            let of = |kind| entries.iter().filter(move |entry| entry[0] == kind);
            let ids: Vec<u8> = of(ENTRY_PROCESSOR).map(|entry| entry[1]).collect();
            assert_eq!(ids, (0..vcpus).collect::<Vec<_>>());
            let io_apic: Vec<u8> = of(ENTRY_IO_APIC).map(|entry| entry[1]).collect();
            assert!(io_apic.len() == 1 && !ids.contains(&io_apic[0]), "{io_apic:?}");
            assert!(of(ENTRY_IO_INTERRUPT).all(|entry| entry[6] == io_apic[0]));
        }
    }
}
