//! The ACPI tables (ACPI 6.5, 5.2): the vCPUs and interrupt controllers, the power button, reset
//! and power-off, the PCI bus and the serial ports. Kernels without ACPI take the MP table.

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Name, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace as RegisterSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use exoprobe_guest::{Gpa, GuestRam, OutsideMemory};

use crate::layout::{
    ACPI_TABLES, ACPI_TABLES_END, I8042_COMMAND, I8042_RESET, IO_APIC, LOCAL_APIC, PCI_BARS,
    PCI_BARS_END, PM1_CONTROL, PM1_EVENT, SCI, SERIAL_LEN, SERIAL0, SERIAL1, SLEEP_TYPE_OFF,
};

const OEM: [u8; 6] = *b"EXOPRB";
const OEM_TABLE: [u8; 8] = *b"EXOPROBE";
const OEM_REVISION: u32 = 1;
/// Each table begins at a multiple of this; the FACS must (5.2.10).
const ALIGNMENT: u64 = 64;
/// Length of a table's header.
const HEADER_LEN: u32 = 36;
/// There are also the two interrupt controllers of a PC (5.2.12, PCAT_COMPAT).
const PCAT_COMPAT: u32 = 1;
/// IAPC_BOOT_ARCH (5.2.9.3): devices of a PC; and that there is no VGA, and no clock of a PC.
const BOOT_ARCH: u16 = 1 | 1 << 2 | 1 << 5;
/// Latencies by which there are no states C2 and C3 (5.2.9).
const NO_C2: u16 = 101;
const NO_C3: u16 = 1001;

/// Writes the tables. Returns the address of the first, the RSDP.
pub(super) fn write(ram: &GuestRam, vcpus: u8) -> Result<Gpa, OutsideMemory> {
    let mut area = Area { ram, next: ACPI_TABLES.0 + ALIGNMENT };
    let dsdt = area.add(&dsdt())?;
    let facs = area.add(&FACS::new())?;
    let fadt = area.add(&fadt(dsdt, facs))?;
    let madt = area.add(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = area.add(&xsdt)?;
    ram.write(ACPI_TABLES, &bytes(&Rsdp::new(OEM, xsdt.0)))?;
    Ok(ACPI_TABLES)
}

/// Memory that is filled with tables.
struct Area<'a> {
    ram: &'a GuestRam,
    next: u64,
}

impl Area<'_> {
    fn add(&mut self, table: &dyn Aml) -> Result<Gpa, OutsideMemory> {
        let (at, table) = (Gpa(self.next), bytes(table));
        self.next = (self.next + table.len() as u64).next_multiple_of(ALIGNMENT);
        assert!(self.next <= ACPI_TABLES_END.0, "the tables of 255 vCPUs fit");
        self.ram.write(at, &table)?;
        Ok(at)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

fn low(address: Gpa) -> u32 {
    u32::try_from(address.0).expect("tables lie below 1 MiB")
}

/// The fixed hardware: the registers of [`crate::devices::PowerManagement`], and the i8042's line
/// for reset.
fn fadt(dsdt: Gpa, facs: Gpa) -> impl Aml {
    let mut table = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt.0)
        .firmware_ctrl_32(low(facs))
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        .flag(Flags::ResetRegSup);
    table.dsdt = low(dsdt).into();
    table.sci_int = u16::try_from(SCI).expect("9").into();
    table.pm1a_evt_blk = u32::from(PM1_EVENT).into();
    table.pm1_evt_len = 4;
    table.pm1a_cnt_blk = u32::from(PM1_CONTROL).into();
    table.pm1_cnt_len = 2;
    table.p_lvl2_lat = NO_C2.into();
    table.p_lvl3_lat = NO_C3.into();
    table.iapc_boot_arch = BOOT_ARCH.into();
    let port = u64::from(I8042_COMMAND);
    table.reset_reg = GAS::new(RegisterSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port);
    table.reset_value = I8042_RESET;
    table.finalize()
}

/// The interrupt controllers (5.2.12).
fn madt(vcpus: u8) -> Raw {
    let mut table = Sdt::new(*b"APIC", HEADER_LEN, 5, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(&LOCAL_APIC.to_le_bytes());
    table.append_slice(&PCAT_COMPAT.to_le_bytes());
    for id in 0..vcpus {
        // Processor Local APIC, enabled.
        table.append_slice(&[0, 8, id, id, 1, 0, 0, 0]);
    }
    let mut io_apic = vec![1, 12, vcpus, 0];
    io_apic.extend_from_slice(&IO_APIC.to_le_bytes());
    io_apic.extend_from_slice(&[0; 4]);
    table.append_slice(&io_apic);
    // Interrupt Source Override: the SCI is active high and by level.
    let sci = u8::try_from(SCI).expect("9");
    table.append_slice(&[2, 10, 0, sci, sci, 0, 0, 0, 0b1101, 0]);
    // Local APIC NMI: LINT1 of each processor.
    table.append_slice(&[4, 6, 0xff, 0, 0, 1]);
    Raw(table.as_slice().to_vec())
}

/// The devices and the state "off", as AML (5.4).
fn dsdt() -> Raw {
    let mut table = Sdt::new(*b"DSDT", HEADER_LEN, 2, OEM, OEM_TABLE, OEM_REVISION);
    let root = EISAName::new("PNP0A03");
    let id = Name::new("_HID".into(), &root);
    let uid = Name::new("_UID".into(), &aml::ZERO);
    let bus = AddressSpace::new_bus_number(0_u16, 0);
    let config = IO::new(0xcf8, 0xcf8, 1, 8);
    let (first, last) = (low(PCI_BARS), low(PCI_BARS_END) - 1);
    let cacheable = AddressSpaceCacheable::NotCacheable;
    let memory = AddressSpace::new_memory(cacheable, true, first, last, None);
    let resources = ResourceTemplate::new(vec![&bus, &config, &memory]);
    let resources = Name::new("_CRS".into(), &resources);
    let pci = Device::new("PCI0".into(), vec![&id, &uid, &resources]);
    let [first, second] = [serial("COM1", 0, SERIAL0), serial("COM2", 1, SERIAL1)];
    let devices = Scope::new(Path::new("\\_SB_"), vec![&pci, &first, &second]);
    table.append_slice(&bytes(&devices));
    let off = Package::new(vec![&SLEEP_TYPE_OFF, &SLEEP_TYPE_OFF, &aml::ZERO, &aml::ZERO]);
    table.append_slice(&bytes(&Name::new("_S5_".into(), &off)));
    Raw(table.as_slice().to_vec())
}

/// Bytes that are ready: the crate's types borrow their parts.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

/// A 16550, at its port and with its interrupt.
fn serial(name: &str, number: u8, (port, irq): (u16, u32)) -> Raw {
    let uart = EISAName::new("PNP0501");
    let id = Name::new("_HID".into(), &uart);
    let uid = Name::new("_UID".into(), &number);
    let ports = IO::new(port, port, 1, u8::try_from(SERIAL_LEN).expect("8"));
    let interrupt = Interrupt::new(true, true, false, false, irq);
    let resources = ResourceTemplate::new(vec![&ports, &interrupt]);
    let resources = Name::new("_CRS".into(), &resources);
    Raw(bytes(&Device::new(name.into(), vec![&id, &uid, &resources])))
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::memory::ram_ranges;

    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn read<const LEN: usize>(ram: &GuestRam, at: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        ram.read(Gpa(at), &mut bytes).unwrap();
        bytes
    }

    /// The table at an address, whose checksum holds.
    fn table(ram: &GuestRam, at: u64) -> Vec<u8> {
        let len = u32::from_le_bytes(read(ram, at + 4));
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        ram.read(Gpa(at), &mut bytes).unwrap();
        assert_eq!(sum(&bytes), 0, "{:?}", &bytes[..4]);
        bytes
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn tables_lead_to_each_other_from_the_first() {
        for vcpus in [1, 2, u8::MAX] {
            let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
            let first = write(&ram, vcpus).unwrap();
            let rsdp: [u8; 36] = read(&ram, first.0);
            assert_eq!((&rsdp[..8], sum(&rsdp), sum(&rsdp[..20])), (&b"RSD PTR "[..], 0, 0));
            let xsdt = table(&ram, u64_at(&rsdp, 24));
            let [fadt, madt] = [36, 44].map(|at| table(&ram, u64_at(&xsdt, at)));
            assert_eq!((&fadt[..4], &madt[..4], xsdt.len()), (&b"FACP"[..], &b"APIC"[..], 52));
            assert_eq!(madt.len(), 44 + 8 * usize::from(vcpus) + 12 + 10 + 6);
            let dsdt = table(&ram, u64_at(&fadt, 140));
            assert_eq!(&dsdt[..4], b"DSDT");
            let facs = u32::from_le_bytes(fadt[36..40].try_into().unwrap());
            assert_eq!((&read::<4>(&ram, facs.into()), facs % 64), (b"FACS", 0));
        }
    }
}
