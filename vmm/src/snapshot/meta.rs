//! The state of a machine without its memory.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_state2,
};
use kvm_ioctls::{Error, VmFd};

use super::error::SnapshotError;
use crate::config::{HostSides, VmConfig};
use crate::devices::{ConsoleSnapshot, DiskIdentity, PciSnapshot, PowerSnapshot, SerialSnapshot};
use crate::vcpu::VcpuState;
use exoprobe_guest::GuestTime;
use exoprobe_guest::Gva;
use exoprobe_guest::msr::MSR_LSTAR;

const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];
/// Difference of clock rates that Linux corrects by itself, in parts per million, and four times
/// that.
const RATE_TOLERANCE_PPM: u64 = 1000;

/// A machine's state without its memory, whose layout follows from the configuration.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct SnapshotMeta {
    pub(crate) config: VmConfig,
    pub(crate) time: GuestTime,
    pub(crate) tsc_khz: u32,
    pub(crate) hidden_base: Option<Gva>,
    pub(crate) vcpus: Vec<VcpuState>,
    pub(crate) serial: [SerialSnapshot; 2],
    pub(crate) pci: PciSnapshot,
    pub(crate) power: PowerSnapshot,
    /// In the order of the configuration.
    pub(crate) disks: Vec<DiskIdentity>,
    /// Of the virtio console, if the configuration has one.
    pub(crate) console: Option<ConsoleSnapshot>,
    pub(crate) chips: Chips,
    pub(crate) clock: kvm_clock_data,
}

/// Interrupt controllers and timer.
#[derive(Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Chips {
    controllers: Vec<kvm_irqchip>,
    pit: kvm_pit_state2,
}

impl Chips {
    pub(crate) fn save(fd: &VmFd) -> Result<Self, Error> {
        let mut controllers = Vec::new();
        for chip_id in CHIPS {
            let mut chip = kvm_irqchip { chip_id, ..kvm_irqchip::default() };
            fd.get_irqchip(&mut chip)?;
            controllers.push(chip);
        }
        Ok(Self { controllers, pit: fd.get_pit2()? })
    }

    pub(crate) fn restore(&self, fd: &VmFd) -> Result<(), Error> {
        for chip in &self.controllers {
            fd.set_irqchip(chip)?;
        }
        fd.set_pit2(&self.pit)
    }
}

fn joined(names: impl Iterator<Item = impl ToString>) -> String {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}

impl SnapshotMeta {
    /// Returns true if no exit at a write of a model-specific register is needed any more: the
    /// kernel has set its system-call entry, which it does after its beginning, and the registers
    /// of a host's quirk are set then.
    pub(crate) fn is_settled(&self) -> bool {
        self.vcpus.first().and_then(|vcpu| vcpu.msr(MSR_LSTAR)).is_some_and(|entry| entry != 0)
    }

    /// Sets the host's sides of the devices: those that the snapshot names are not opened.
    pub(crate) fn set_host_sides(&mut self, sides: &HostSides) -> Result<(), SnapshotError> {
        let VmConfig { disks, nets, vsock, .. } = &mut self.config;
        if disks.len() != sides.disks.len() {
            let names = joined(disks.iter().map(|disk| disk.path.display()));
            let (taken, given) = (disks.len(), sides.disks.len());
            return Err(SnapshotError::Disks { taken, given, names });
        }
        if nets.len() != sides.links.len() {
            let names = joined(nets.iter().map(|net| &net.link));
            let (taken, given) = (nets.len(), sides.links.len());
            return Err(SnapshotError::Nets { taken, given, names });
        }
        disks.clone_from(&sides.disks);
        for (net, link) in nets.iter_mut().zip(&sides.links) {
            net.link = link.clone();
        }
        match (vsock, &sides.vsock) {
            (None, None) => {}
            (Some(vsock), Some(socket)) => vsock.socket.clone_from(socket),
            (Some(vsock), None) => return Err(SnapshotError::Vsock(vsock.socket.clone())),
            (None, Some(_)) => return Err(SnapshotError::NoVsock),
        }
        Ok(())
    }

    /// Checks the rate of the clock: a guest that measured it on one host cannot continue on a host
    /// with another rate.
    pub(crate) fn check_rate(&self, khz: u32) -> Result<(), SnapshotError> {
        let apart = u64::from(self.tsc_khz.abs_diff(khz));
        if apart * 1_000_000 > u64::from(khz) * RATE_TOLERANCE_PPM {
            let text = format!("taken at a clock of {} kHz, here it is {khz}", self.tsc_khz);
            return Err(SnapshotError::Content(text));
        }
        Ok(())
    }

    /// Sets kvm-clock to the saved time.
    pub(crate) fn restore_clock(&self, fd: &VmFd) -> Result<(), Error> {
        // Flags say how the clock was read; on setting it they must be clear (api.rst, 4.29).
        fd.set_clock(&kvm_clock_data { clock: self.clock.clock, ..kvm_clock_data::default() })
    }
}
