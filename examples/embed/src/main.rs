//! A VMM of its own that embeds the probe engine: it boots a guest, puts a probe on getpid, has the
//! guest call it a thousand times, and prints the hits. docs/embedding.md walks through it.
//!
//!     embed vmlinux initramfs.cpio System.map

mod boot;
mod guest;
mod serial;
mod vcpu;

use std::error::Error;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use exoprobe_guest::msr::{EntryWatch, MSR_GS_BASE};
use exoprobe_guest::quirks::software_kvm::SoftwareKvm;
use exoprobe_guest::{GuestClock, GuestRam, GuestTime, HiddenMemory};
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, Given, Limits, parse_line};
use kvm_bindings::{
    KVM_CAP_X86_USER_SPACE_MSR, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_USE_SW_BP, KVM_MAX_CPUID_ENTRIES,
    KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_FILTER_WRITE, kvm_enable_cap, kvm_guest_debug,
    kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use guest::Machine;
use serial::Serial;
use vcpu::Vcpu;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RAM: usize = 64 << 20;
const CMDLINE: &str = "console=ttyS0 quiet noreplace-smp initcall_blacklist=slab_sysfs_init,param_sysfs_init,irq_sysfs_init";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, kernel, initramfs, system_map] = &args[..] else {
        return Err("usage: embed VMLINUX INITRAMFS SYSTEM_MAP".into());
    };
    // exoprobe-vmm finds this out by running guests of a few instructions.
    let software = Path::new("/sys/module/kvm_pvm")
        .exists()
        .then_some(SoftwareKvm { syscall_faults: true, host_cpuid: true });

    // The VMM's own memory, and the engine's view of it.
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), RAM)])?;
    let ram = GuestRam::new(memory.clone())?;
    let hidden = HiddenMemory::new(&ram)?;
    let more = software.map_or(String::new(), |quirk| quirk.cmdline(CMDLINE));
    let cmdline = format!("{CMDLINE} {more}");
    let entry = boot::load(&memory, (kernel, initramfs), &cmdline, RAM as u64)?;

    let kvm = Kvm::new()?;
    let vm = Arc::new(create_vm(&kvm, &memory, &hidden, software)?);
    let fd = create_vcpu(&kvm, &vm, software)?;
    boot::set_registers(&fd, entry)?;
    let clock = GuestClock::new(GuestTime(0), fd.get_tsc_khz()?);
    let serial = [4, 3].map(|irq| Arc::new(Mutex::new(Serial::new(Arc::clone(&vm), irq))));
    let [console, workload] = &serial;

    let (sender, commands) = channel();
    let machine = Arc::new(Machine {
        ram: ram.clone(),
        hidden: hidden.clone(),
        clock,
        commands: sender,
        thread: OnceLock::new(),
    });
    let symbols = Some(SymbolTable::from_system_map(&std::fs::read_to_string(system_map)?)?);
    let given = Given { symbols, ..Given::default() };
    let engine = Arc::new(Engine::new(machine.clone(), clock, given, Limits::default()));

    // The guest runs, the probe waits for its kernel, and the engine does its regular work.
    let vcpu = Vcpu {
        fd,
        commands,
        hook: engine.exit_hook(),
        clock,
        ram,
        hidden,
        software,
        entry: EntryWatch::default(),
        ports: [(0x3f8, Arc::clone(console)), (0x2f8, Arc::clone(workload))],
    };
    machine.start(vcpu)?;
    engine.register_probe(parse_line("p:getpid __x64_sys_getpid")?)?;
    let regular = Arc::clone(&engine);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(regular.tick());
        }
    });

    // The workload of the tiny guest.
    let wait_for = |text: &str| {
        while !workload.lock().unwrap().output().contains(text) {
            if machine.has_ended() {
                return Err(format!("the guest ended: {}", console.lock().unwrap().output()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    wait_for("ready\n")?;
    workload.lock().unwrap().type_line("getpid 1000")?;
    wait_for("done getpid 1000\n")?;
    let status = engine.show("kprobes", "getpid")?;
    println!("getpid: {} of 1000", status.hits);
    engine.unregister_all()?;
    Ok(())
}

/// A machine with KVM's interrupt chips and timer, RAM, and the hidden region as one more slot.
fn create_vm(
    kvm: &Kvm,
    memory: &GuestMemoryMmap,
    hidden: &HiddenMemory,
    software: Option<SoftwareKvm>,
) -> Result<VmFd> {
    let vm = kvm.create_vm()?;
    vm.set_tss_address(0xfffb_d000)?;
    vm.set_identity_map_address(0xfffb_c000)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config::default())?;
    let ram = memory.get_host_address(GuestAddress(0))?;
    let (hidden_host, hidden_len) = hidden.host_mapping();
    let slots = [(0, ram, RAM as u64), (hidden.gpa().0, hidden_host, hidden_len)];
    for (slot, (guest_phys_addr, host, memory_size)) in (0..).zip(slots) {
        let userspace_addr = host as u64;
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr,
            memory_size,
            userspace_addr,
        };
        // SAFETY: the mapping has that length, and the machine keeps it as long as a vCPU runs.
        unsafe { vm.set_user_memory_region(region)? };
    }
    if let Some(quirk) = software {
        vm.enable_cap(&quirk.capability())?;
    }
    // Writes of IA32_GS_BASE, by which the kernel's entry is known, and those that the host needs.
    let mut exits = kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..kvm_enable_cap::default() };
    exits.args[0] = KVM_MSR_EXIT_REASON_FILTER.into();
    vm.enable_cap(&exits)?;
    let wanted = [Some(MSR_GS_BASE), software.and_then(SoftwareKvm::wants_msr)];
    let flags = MsrFilterRangeFlags::from_bits_truncate(KVM_MSR_FILTER_WRITE);
    let range = |base| MsrFilterRange { flags, base, msr_count: 1, bitmap: &[0] };
    let ranges: Vec<_> = wanted.into_iter().flatten().map(range).collect();
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)?;
    Ok(vm)
}

/// A vCPU whose int3s come to this VMM.
fn create_vcpu(kvm: &Kvm, vm: &VmFd, software: Option<SoftwareKvm>) -> Result<VcpuFd> {
    let vcpu = vm.create_vcpu(0)?;
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            // A hypervisor with the deadline timer, and no nested virtualization.
            1 => entry.ecx = (entry.ecx | 1 << 31 | 1 << 24) & !(1 << 5),
            // No shadow stacks and branch tracking: slots and detours keep neither.
            7 => (entry.ecx, entry.edx) = (entry.ecx & !(1 << 7), entry.edx & !(1 << 20)),
            _ => {}
        }
    }
    if let Some(quirk) = software {
        quirk.adjust_cpuid(&mut cpuid);
    }
    vcpu.set_cpuid2(&cpuid)?;
    let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP;
    vcpu.set_guest_debug(&kvm_guest_debug { control, ..kvm_guest_debug::default() })?;
    Ok(vcpu)
}
