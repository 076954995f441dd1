//! Counts the calls of a system call: the library in one file. Boots the tiny guest (`make guest`),
//! probes `getpid`, has the guest call it a thousand times, and prints the hits.
//!
//!     make guest; cd guest/out
//!     cargo run --bin count_getpid -- vmlinux initramfs.cpio System.map

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, KernelHints, Limits, parse_line};
use exoprobe_vmm::{DEFAULT_KVM, Host, Vm, VmConfig, VmState};

/// The guest's workload takes commands on its second serial port.
const WORKLOAD: usize = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [kernel, initramfs, symbols] = &args[..] else {
        return Err("give vmlinux, initramfs.cpio and System.map".into());
    };
    let config = VmConfig {
        kernel: kernel.clone(),
        initramfs: Some(initramfs.clone()),
        cmdline: "console=ttyS0 quiet noreplace-smp".to_owned(),
        memory_mib: 64,
        hugepages: false,
        vcpus: 1,
        disks: Vec::new(),
        nets: Vec::new(),
        virtio_console: false,
        vsock: None,
    };
    let vm = Arc::new(Vm::create(&Host::open(Path::new(DEFAULT_KVM))?, &config)?);
    let symbols = SymbolTable::from_system_map(&std::fs::read_to_string(symbols)?)?;
    let given = KernelHints { symbols: Some(symbols), ..KernelHints::default() };
    let engine = Engine::new(vm.clone(), vm.clock(), given, Limits::default());

    // The probe waits for the kernel, and counts from its first instruction on.
    let probes = engine.register_scoped(parse_line("p:getpid __x64_sys_getpid")?)?;
    vm.start(engine.exit_hook())?;
    let workload = vm.serial(WORKLOAD).ok_or("the guest has no second serial port")?;
    let wait_for = |text: &str| {
        // Waits as long as the engine's regular work can wait.
        while workload.log().wait_line(0, engine.tick(), |line| line == text).is_none() {
            if let VmState::Stopped(reason) = vm.state() {
                return Err(format!("the guest has stopped: {reason:?}"));
            }
        }
        Ok(())
    };
    wait_for("ready")?;
    workload.send(b"getpid 1000\n")?;
    wait_for("done getpid 1000")?;
    println!("getpid: {} of 1000", engine.show("kprobes", "getpid")?.hits);
    drop(probes);
    Ok(())
}
