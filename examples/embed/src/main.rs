//! A VMM of its own that embeds the probe engine: boots a guest, has it call getpid a thousand
//! times, prints the hits. docs/embedding.md walks through it. Usage: embed vmlinux initramfs.cpio
//! System.map

mod boot;
mod error;
mod machine;
mod vcpu;

use std::sync::{Arc, Mutex, mpsc::channel};
use std::thread;
use std::time::Duration;

use error::Result;
use exoprobe_guest::kvm::{KvmGuest, ProbeExits, Reinjection, VcpuThread};
use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_guest::{ExitHook, Guest, GuestClock, GuestRam, GuestTime, HiddenMemory};
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, KernelHints, Limits, Selection, parse_line};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_superio::Serial;

const RAM: usize = 64 << 20;
/// Without ACPI and MP tables the guest uses the PIC alone. `nolapic`: while it set its local APIC
/// up, a tick could come that KVM then never delivers, and no later one.
const CMDLINE: &str = "console=ttyS0 quiet noreplace-smp nolapic \
    initcall_blacklist=slab_sysfs_init,param_sysfs_init,irq_sysfs_init";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, kernel, initramfs, symbols, more @ ..] = &args[..] else {
        return Err("three files, and more for the kernel's command line".into());
    };
    // exoprobe-vmm finds it out by guests of a few instructions.
    let is_software = std::path::Path::new("/sys/module/kvm_pvm").exists();
    let software = is_software.then_some(SoftwareKvm { syscall_faults: true, host_cpuid: true });

    // The VMM's memory, and the engine's views of it.
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)])?;
    let ram = GuestRam::new(memory.clone())?;
    let hidden = HiddenMemory::new(&ram, 1)?;
    let quirks = software.map_or(String::new(), |quirk| quirk.cmdline(CMDLINE, 1));
    let cmdline = format!("{CMDLINE} {quirks} {}", more.join(" "));
    let entry = boot::load(&memory, [kernel, initramfs], &cmdline, RAM as u64)?;

    let (vm, fd) = machine::create(&kvm_ioctls::Kvm::new()?, &ram, &hidden, software)?;
    let vm = Arc::new(vm);
    boot::set_registers(&fd, entry)?;
    let clock = GuestClock::new(GuestTime(0), fd.get_tsc_khz()?);
    let port = |irq| Arc::new(Mutex::new(Serial::new(machine::Line(Arc::clone(&vm), irq), vec![])));
    let (console, workload) = (port(4), port(3));
    let ports = [(0x3f8, console), (0x2f8, Arc::clone(&workload))];

    // The vCPU's thread waits for the engine's hook.
    let (start, started) = channel::<Arc<dyn ExitHook>>();
    let probes = ProbeExits {
        vcpu: 0,
        clock,
        // exoprobe-vmm finds out this, too.
        reinjection: if is_software { Reinjection::AfterInt3 } else { Reinjection::OnInt3 },
        software,
        entry: Arc::default(),
        ram: ram.clone(),
        hidden: hidden.clone(),
    };
    let vcpu = VcpuThread::spawn(0, fd, move |fd, requests| {
        let mut vcpu = vcpu::Vcpu { fd, requests, probes, ports };
        if let Ok(Err(error)) = started.recv().map(|hook| vcpu.run(&*hook)) {
            eprintln!("the guest has stopped: {error}");
        }
    })?;
    // SAFETY: `machine::create` has mapped both.
    let machine = Arc::new(unsafe { KvmGuest::new(vm, ram, hidden, vec![vcpu]) });

    // The engine: its hook, its regular work, and a probe, which waits for the kernel.
    let symbols = Some(SymbolTable::from_system_map(&std::fs::read_to_string(symbols)?)?);
    let given = KernelHints { symbols, ..KernelHints::default() };
    let engine = Arc::new(Engine::new(machine.clone(), clock, given, Limits::default()));
    start.send(engine.exit_hook())?;
    engine.register(parse_line("p:getpid __x64_sys_getpid")?)?;
    let regular = Arc::clone(&engine);
    thread::spawn(move || {
        loop {
            thread::sleep(regular.tick());
        }
    });

    // The tiny guest's workload takes commands on its second serial port.
    let wait_for = |text: &[u8]| {
        while !workload.lock().unwrap().writer().windows(text.len()).any(|it| it == text) {
            assert!(!machine.stopped(), "the guest has stopped");
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(b"ready\n");
    workload.lock().unwrap().enqueue_raw_bytes(b"getpid 1000\n").map_err(|e| format!("{e:?}"))?;
    wait_for(b"done getpid 1000\n");
    println!("getpid: {} of 1000", engine.show("kprobes", "getpid")?.hits);
    engine.unregister(Selection::all())?;
    Ok(())
}
