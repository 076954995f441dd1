//! Snapshot files and the devices that they restore, without a machine: for fuzz targets.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use exoprobe_guest::layout::HIDDEN_SIZE;
use exoprobe_guest::memory::RamRange;
use exoprobe_guest::paging::PAGE_SIZE;
use exoprobe_guest::{Gpa, GuestRam, GuestTime};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;
use vmm_sys_util::eventfd::EventFd;

use super::error::SnapshotError;
use super::file::{self, HEADER_LEN, Header, seal};
use super::memory::Sum;
use super::meta::{Chips, SnapshotMeta};
use crate::config::{HostSides, MIN_MEMORY_MIB, VmConfig};
use crate::devices::{
    BAR_LEN, ConsoleWatch, Ioevents, Message, PciBus, PciFunction, PowerManagement, PowerSnapshot,
    Rng, SerialPort, SerialSnapshot, VirtioConsole, VirtioDevice, VirtioPci,
};
use crate::layout::PCI_BARS;
use crate::threads::Threads;
use crate::vcpu::VcpuState;

/// Bytes of RAM that the restored devices see.
const RAM: u64 = 0x4_0000;
/// Where the numbers of a header are, and their bytes.
const NUMBERS: [(usize, usize); 6] = [(8, 4), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4)];

/// Takes no notification: the driver's writes reach the device as exits.
struct NoIoevents;

impl Ioevents for NoIoevents {
    fn place(&self, _: u64, _: &EventFd) -> bool {
        false
    }

    fn remove(&self, _: u64, _: &EventFd) {}
}

/// A snapshot file without a name, which is written anew for each input. Its guest has the least
/// RAM and a virtio console.
pub struct DrivenSnapshot {
    file: File,
    ram: GuestRam,
    meta: Value,
    /// Checksum of memory that is zero.
    memory_crc: u32,
}

/// Bytes of memory in the file.
const MEMORY_LEN: u64 = (MIN_MEMORY_MIB << 20) + HIDDEN_SIZE;

impl Default for DrivenSnapshot {
    fn default() -> Self {
        let file = memfd_create("snapshot", MemfdFlags::CLOEXEC).expect("a file in memory");
        let ram = [RamRange { start: Gpa(0), len: RAM }];
        let ram = GuestRam::anonymous(&ram).expect("some memory");
        let meta = serde_json::to_value(power_on(&ram)).expect("plain data");
        let memory_crc = Sum::default().finish();
        Self { file: file.into(), ram, meta, memory_crc }
    }
}

/// The state of a machine that has not run.
fn power_on(ram: &GuestRam) -> SnapshotMeta {
    let config = VmConfig {
        kernel: PathBuf::from("vmlinux"),
        initramfs: None,
        cmdline: String::new(),
        memory_mib: MIN_MEMORY_MIB,
        hugepages: false,
        vcpus: 1,
        disks: Vec::new(),
        nets: Vec::new(),
        virtio_console: true,
        vsock: None,
    };
    let console = VirtioConsole::new(Arc::default(), None).expect("a descriptor");
    let console = Arc::new(console);
    let pci = bus(ram, Some(&console));
    let serial = [(); 2].map(|()| serial(None).expect("a new port").snapshot());
    SnapshotMeta {
        config,
        time: GuestTime(0),
        tsc_khz: 1,
        hidden_base: None,
        vcpus: vec![VcpuState::default()],
        serial,
        pci: pci.save(),
        power: PowerSnapshot::default(),
        disks: Vec::new(),
        console: Some(console.save()),
        chips: Chips::default(),
        clock: kvm_bindings::kvm_clock_data::default(),
    }
}

fn serial(from: Option<&SerialSnapshot>) -> Result<SerialPort, String> {
    SerialPort::new(Arc::new(|| Ok(())), None, from).map_err(|error| error.to_string())
}

/// A bus with random numbers and, if there is one, the console.
fn bus(ram: &GuestRam, console: Option<&Arc<VirtioConsole>>) -> PciBus {
    let rng: Arc<dyn VirtioDevice> = Arc::new(Rng::default());
    let console = console.map(|console| Arc::clone(console) as Arc<dyn VirtioDevice>);
    let devices = std::iter::once(rng).chain(console);
    let function = |(slot, device)| {
        let (messages, bar) = (Arc::new(|_: Message| ()), PCI_BARS.0 + slot * BAR_LEN);
        let ioevents = Arc::new(NoIoevents);
        let (class, threads) = ([0xff, 0], Threads::default());
        Arc::new(VirtioPci::new(messages, ioevents, ram.clone(), device, class, bar, threads))
            as Arc<dyn PciFunction>
    };
    PciBus::new((1..).zip(devices).map(function).collect())
}

/// Changes to a snapshot file, one a line.
#[derive(Default)]
struct Edits<'a> {
    /// `/a/b VALUE` sets a member of the metadata; `/a/b` alone removes it.
    members: Vec<(&'a str, Option<Value>)>,
    /// `OFFSET NUMBER` sets a number of the header.
    numbers: Vec<(usize, u64)>,
    /// `whole`: the file has its memory.
    whole: bool,
}

impl<'a> Edits<'a> {
    /// Reads those that are well-formed.
    fn read(text: &'a str) -> Self {
        let mut edits = Self::default();
        for line in text.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if line == "whole" {
                edits.whole = true;
            } else if first.starts_with('/') {
                let value = serde_json::from_str(rest);
                if rest.is_empty() || value.is_ok() {
                    edits.members.push((first, value.ok()));
                }
            } else if let (Ok(at), Ok(number)) = (first.parse(), rest.parse()) {
                edits.numbers.push((at, number));
            }
        }
        edits
    }

    fn apply(&self, meta: &mut Value) {
        for (path, value) in &self.members {
            let Some((parent, name)) = path.rsplit_once('/') else { continue };
            match (meta.pointer_mut(parent), value) {
                (Some(Value::Object(members)), Some(value)) => {
                    members.insert(name.to_owned(), value.clone());
                }
                (Some(Value::Object(members)), None) => drop(members.remove(name)),
                (Some(Value::Array(items)), value) => match (name.parse::<usize>(), value) {
                    (Ok(at), Some(value)) if at < items.len() => items[at] = value.clone(),
                    (Ok(at), None) if at < items.len() => drop(items.remove(at)),
                    (_, Some(value)) => items.push(value.clone()),
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn apply_to_header(&self, header: &mut [u8; HEADER_LEN]) {
        for (at, number) in &self.numbers {
            if let Some((at, len)) = NUMBERS.iter().find(|(start, _)| start == at) {
                header[*at..at + len].copy_from_slice(&number.to_le_bytes()[..*len]);
            }
        }
    }
}

impl DrivenSnapshot {
    fn path(&self) -> PathBuf {
        let descriptor: RawFd = self.file.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{descriptor}"))
    }

    fn write(&self, parts: &[&[u8]]) {
        self.file.set_len(0).expect("a file in memory");
        self.file.write_all_at(&parts.concat(), 0).expect("room");
    }

    /// Reads a file of these bytes.
    ///
    /// # Errors
    /// [`SnapshotError`], as [`crate::Vm::restore`] has it.
    pub fn read(&self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.write(&[bytes]);
        file::open(&self.path()).map(drop)
    }

    /// Reads a file whose checksums are right and whose metadata and header have the `edits`, and
    /// restores the devices from it.
    ///
    /// # Panics
    /// When what is read or restored is not as the metadata say.
    pub fn restore(&self, edits: &str) {
        let edits = Edits::read(edits);
        let mut meta = self.meta.clone();
        edits.apply(&mut meta);
        let json = serde_json::to_vec(&meta).expect("it was JSON");
        let memory_offset = (HEADER_LEN as u64 + json.len() as u64).next_multiple_of(PAGE_SIZE);
        let header = Header {
            meta_len: json.len() as u64,
            memory_offset,
            memory_len: MEMORY_LEN,
            meta_crc: crc32fast::hash(&json),
            memory_crc: self.memory_crc,
        };
        let mut bytes = header.encode();
        edits.apply_to_header(&mut bytes);
        seal(&mut bytes);
        self.write(&[&bytes, &json]);
        if edits.whole {
            self.file.set_len(memory_offset + MEMORY_LEN).expect("pages that are not there");
        }
        let read = file::open(&self.path());
        let meta = serde_json::from_slice::<SnapshotMeta>(&json).ok();
        let meta = meta.filter(|meta| meta.config.validate().is_ok());
        let fits = meta.as_ref().is_some_and(|meta| meta.config.memory_mib == MIN_MEMORY_MIB);
        let is_right = bytes == header.encode();
        assert!(read.is_err() || edits.whole, "a file without memory was taken");
        assert!(!is_right || read.is_ok() == (edits.whole && fits), "{:?}", read.err());
        if let Some(meta) = meta {
            self.restore_devices(meta);
        }
    }

    fn restore_devices(&self, mut meta: SnapshotMeta) {
        let sides = HostSides {
            disks: meta.config.disks.clone(),
            links: meta.config.nets.iter().map(|net| net.link.clone()).collect(),
            vsock: meta.config.vsock.as_ref().map(|vsock| vsock.socket.clone()),
        };
        meta.set_host_sides(&sides).expect("as many as it has");
        let _ = (meta.is_settled(), meta.check_rate(1).is_ok());
        for port in &meta.serial {
            // Refused or taken.
            drop(serial(Some(port)));
        }
        let power = PowerManagement::new(meta.power, |_| ());
        assert_eq!(power.save(), meta.power);
        let watch = Arc::<ConsoleWatch>::default();
        let console = VirtioConsole::new(watch, meta.console.as_ref()).expect("a descriptor");
        let console = meta.config.virtio_console.then(|| Arc::new(console));
        let bus = bus(&self.ram, console.as_ref());
        if bus.restore(&meta.pci).is_ok() {
            bus.resume();
            bus.pause();
            bus.restore(&bus.save()).expect("what is saved can be restored");
            bus.resume();
        }
        bus.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_taken_only_as_they_were_written() {
        let driven = DrivenSnapshot::default();
        for edits in [
            "whole",
            "",
            "whole\n/config/memory_mib 25",
            "whole\n/config/vcpus 0",
            "whole\n/pci",
            "whole\n/config/disks [{\"path\":\"/etc/passwd\"}]",
            "whole\n/pci/functions/0/registers/1 4294967295",
            "whole\n/serial/0/in_buffer [1,2]\n/power/status 65535",
            "whole\n24 18446744073709551615",
            "whole\n16 18446744073709551615",
            "whole\n32 0\n8 1",
        ] {
            driven.restore(edits);
        }
        assert!(matches!(driven.read(b""), Err(SnapshotError::NotASnapshot(_))));
        assert!(matches!(driven.read(&[0; 64]), Err(SnapshotError::NotASnapshot(_))));
    }
}
