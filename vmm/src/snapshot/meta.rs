//! Everything of a machine but its memory.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
    kvm_pit_state2,
};
use kvm_ioctls::{Error, VmFd};

use crate::addr::Gva;
use crate::config::VmConfig;
use crate::devices::SerialSnapshot;
use crate::machine::Machine;
use crate::memory::RamRange;
use crate::time::GuestTime;
use crate::vcpu::VcpuState;

const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// A machine's state without its memory.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct SnapshotMeta {
    pub(crate) config: VmConfig,
    pub(crate) time: GuestTime,
    pub(crate) ram: Vec<RamRange>,
    pub(crate) hidden_base: Option<Gva>,
    pub(crate) vcpus: Vec<VcpuState>,
    pub(crate) serial: [SerialSnapshot; 2],
    chips: Vec<kvm_irqchip>,
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
}

impl SnapshotMeta {
    /// Reads the VM's own state and puts it beside what the vCPUs gave.
    pub(crate) fn collect(
        fd: &VmFd,
        config: VmConfig,
        time: GuestTime,
        vcpus: Vec<VcpuState>,
        serial: [SerialSnapshot; 2],
        machine: &Machine,
    ) -> Result<Self, Error> {
        let mut chips = Vec::new();
        for chip_id in CHIPS {
            let mut chip = kvm_irqchip { chip_id, ..kvm_irqchip::default() };
            fd.get_irqchip(&mut chip)?;
            chips.push(chip);
        }
        Ok(Self {
            config,
            time,
            ram: machine.ram.ranges(),
            hidden_base: machine.hidden.base(),
            vcpus,
            serial,
            chips,
            pit: fd.get_pit2()?,
            clock: fd.get_clock()?,
        })
    }

    /// Sets interrupt controllers and timer.
    pub(crate) fn restore_chips(&self, fd: &VmFd) -> Result<(), Error> {
        for chip in &self.chips {
            fd.set_irqchip(chip)?;
        }
        fd.set_pit2(&self.pit)
    }

    /// Sets kvm-clock to where it was.
    pub(crate) fn restore_clock(&self, fd: &VmFd) -> Result<(), Error> {
        // Flags say how the clock was read; on setting it they must be clear (api.rst, 4.29).
        fd.set_clock(&kvm_clock_data { clock: self.clock.clock, ..kvm_clock_data::default() })
    }
}
