//! The machine: KVM's part of it, and the guest as the engine drives it.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_guest::{Guest, GuestClock, GuestRam, HiddenMemory, KvmError, Registers, VcpuError};
use exoprobe_guest::{kvm, msr};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vm_superio::{Serial, Trigger, serial::NoEvents};
use vmm_sys_util::signal::{Killable, SIGRTMIN};

/// Work that another thread has for the vCPU's: done outside the guest.
pub(crate) type Command = Box<dyn FnOnce(&mut VcpuFd) + Send>;
pub(crate) type Port = Arc<Mutex<Serial<Line, NoEvents, Vec<u8>>>>;

/// An ISA interrupt line.
pub(crate) struct Line(pub(crate) Arc<VmFd>, pub(crate) u32);

impl Trigger for Line {
    type E = KvmError;

    fn trigger(&self) -> Result<(), KvmError> {
        self.0.set_irq_line(self.1, true)?;
        self.0.set_irq_line(self.1, false)
    }
}

/// Makes a machine with KVM's interrupt chips and timer, RAM, and the hidden region as one more
/// slot.
pub(crate) fn create_vm(
    kvm: &Kvm,
    memory: &GuestMemoryMmap,
    hidden: &HiddenMemory,
    software: Option<SoftwareKvm>,
) -> Result<VmFd, KvmError> {
    let vm = kvm.create_vm()?;
    vm.set_tss_address(0xfffb_d000)?;
    vm.set_identity_map_address(0xfffb_c000)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    let ram = memory.iter().map(|range| (range.start_addr().0, range.as_ptr(), range.len()));
    let (host, len) = hidden.host_mapping();
    for (slot, (guest_phys_addr, host, memory_size)) in
        (0..).zip(ram.chain([(hidden.gpa().0, host, len)]))
    {
        let (flags, userspace_addr) = (0, host as u64);
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr,
            memory_size,
            userspace_addr,
        };
        // SAFETY: the mapping has that length; `main` keeps it for as long as the program runs.
        unsafe { vm.set_user_memory_region(region)? };
    }
    if let Some(quirk) = software {
        vm.enable_cap(&quirk.capability())?;
    }
    // By the first of these the engine learns of the kernel's entry; the other is the host's need.
    let msrs = [Some(msr::MSR_GS_BASE), software.and_then(SoftwareKvm::wants_msr)];
    kvm::filter_msrs(&vm, &msrs.into_iter().flatten().collect::<Vec<_>>())?;
    Ok(vm)
}

/// Makes a vCPU whose int3s exit.
pub(crate) fn create_vcpu(
    kvm: &Kvm,
    vm: &VmFd,
    software: Option<SoftwareKvm>,
) -> Result<VcpuFd, KvmError> {
    let vcpu = vm.create_vcpu(0)?;
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            // A hypervisor, with the deadline timer, without nested virtualization.
            1 => entry.ecx = (entry.ecx | 1 << 31 | 1 << 24) & !(1 << 5),
            // No shadow stacks, no branch tracking: slots and detours keep neither.
            7 => (entry.ecx, entry.edx) = (entry.ecx & !(1 << 7), entry.edx & !(1 << 20)),
            _ => {}
        }
    }
    if let Some(quirk) = software {
        quirk.adjust_cpuid(&mut cpuid);
    }
    vcpu.set_cpuid2(&cpuid)?;
    kvm::report_debug(&vcpu, false)?;
    Ok(vcpu)
}

/// The guest for the engine: its memory, and its vCPU's thread.
pub(crate) struct Machine<T> {
    pub(crate) ram: GuestRam,
    pub(crate) hidden: HiddenMemory,
    pub(crate) clock: GuestClock,
    pub(crate) commands: Sender<Command>,
    pub(crate) thread: T,
}

impl<T: Killable> Machine<T> {
    /// Has the vCPU's thread do `work` outside the guest, where it stays until `hold` is gone.
    fn ask<R: Send + 'static>(
        &self,
        hold: Receiver<()>,
        work: impl FnOnce(&mut VcpuFd) -> Result<R, KvmError> + Send + 'static,
    ) -> Result<R, VcpuError> {
        let (reply, answer) = sync_channel(1);
        let command = move |fd: &mut VcpuFd| drop((reply.send(work(fd)), hold.recv()));
        self.commands.send(Box::new(command)).map_err(|_| VcpuError::Gone(0))?;
        loop {
            // A signal that comes just before KVM_RUN is lost: another follows.
            let _ = self.thread.kill(SIGRTMIN());
            match answer.recv_timeout(Duration::from_millis(1)) {
                Ok(answer) => return Ok(answer?),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(_) => return Err(VcpuError::Gone(0)),
            }
        }
    }
}

impl<T: Killable + Send + Sync> Guest for Machine<T> {
    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    fn hidden(&self) -> &HiddenMemory {
        &self.hidden
    }

    fn vcpus(&self) -> u8 {
        1
    }

    fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.ask(channel().1, move |fd| kvm::msr(fd, index))
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        Ok(self.clock.now().0.wrapping_sub(self.msr(msr::MSR_TSC)?))
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        let (hold, released) = channel();
        let read = |fd: &mut VcpuFd| Ok(Registers { regs: fd.get_regs()?, sregs: fd.get_sregs()? });
        access(&[self.ask(released, read)?]);
        drop(hold);
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.commands.send(Box::new(|_| ())).is_err()
    }
}
