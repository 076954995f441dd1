//! How long a search of RAM stops the guest, and its work, against the size of RAM: a guest of a
//! few instructions that writes some pages again and again.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use exoprobe_guest::kvm::{KvmGuest, Request, VcpuThread, prepare_vcpu, register_memory};
use exoprobe_guest::memory::ram_ranges;
use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_guest::{
    Gpa, Guest, GuestClock, GuestRam, GuestTime, Gva, HiddenMemory, KvmError, cpuid,
};
use exoprobe_probes::SearchStatistics;
use exoprobe_probes::search::{Addresses, Search, TimedGuest};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::figure::figure;

const PAGE: u64 = 4096;
const CODE: u64 = 0x1000;
const TABLES: u64 = 0x2000;
/// The first page that the guest writes, and their number.
const START: u64 = 0x20_0000;
const WRITTEN: [u64; 2] = [16, 4096];
/// Sizes of RAM, in MiB, and how much of it is touched.
const SIZES: [(u64, u64); 6] =
    [(32, 32), (1024, 32), (1024, 1024), (8192, 32), (8192, 4096), (65536, 32)];
/// No register: the thread ends with the request for it.
const LAST_MSR: u32 = 0xdead_beef;
const ROUNDS: u32 = 10;

/// Measures and prints.
pub(crate) fn run() {
    for (mib, touched) in SIZES {
        for written in WRITTEN {
            let name = format!("stop, {mib} MiB, {touched} touched, {written} pages written");
            match Machine::new(mib, touched, written) {
                Ok(machine) => machine.measure(&name),
                Err(error) => figure(&name, "none", &error.to_string()),
            }
        }
    }
}

/// A guest in 64-bit kernel mode, which runs until it is dropped.
struct Machine {
    guest: Arc<KvmGuest>,
}

impl Machine {
    fn new(mib: u64, touched: u64, written: u64) -> Result<Self, KvmError> {
        let kvm = Kvm::new()?;
        let ram = GuestRam::anonymous(&ram_ranges(mib)).expect("address space");
        let hidden = HiddenMemory::new(&ram, 1).expect("30 MiB");
        let store = |at: u64, word: u64| ram.store_u64(Gpa(at), word).expect("in RAM");
        for at in (0..touched << 20).step_by(4096) {
            // A page of a large guest may lie beyond the gap below 4 GiB.
            let beyond = at.saturating_sub(ram.ranges()[0].len);
            store(if beyond > 0 || at == ram.ranges()[0].len { (4 << 30) + beyond } else { at }, 1);
        }
        store(TABLES, (TABLES + PAGE) | 0x63);
        store(TABLES + PAGE, (TABLES + 2 * PAGE) | 0x63);
        (0..512).for_each(|entry| store(TABLES + 2 * PAGE + entry * 8, (entry << 21) | 0xe3));
        // mov edi, START; inc qword [rdi]; add rdi, 4096; cmp rdi, END; jb -16; jmp -23
        let end = u32::try_from(START + written * PAGE).expect("below 4 GiB").to_le_bytes();
        let mut code = vec![0xbf, 0, 0, 0x20, 0, 0x48, 0xff, 0x07, 0x48, 0x81, 0xc7, 0, 0x10, 0, 0];
        code.extend([0x48, 0x81, 0xff]);
        code.extend(end);
        code.extend([0x72, 0xed, 0xeb, 0xe6]);
        ram.write(Gpa(CODE), &code).expect("in RAM");
        let is_software = Path::new("/sys/module/kvm_pvm").exists();
        let software =
            is_software.then_some(SoftwareKvm { syscall_faults: true, host_cpuid: true });
        let vm = Arc::new(kvm.create_vm()?);
        vm.set_tss_address(0xfffb_d000)?;
        // SAFETY: the machine has both as long as its vCPU runs.
        unsafe { register_memory(&vm, &ram, &hidden)? };
        let vcpu = create_vcpu(&kvm, &vm, software)?;
        let thread =
            VcpuThread::spawn(0, vcpu, |fd, requests| serve(fd, &requests)).expect("a thread");
        // SAFETY: as just mapped.
        let guest = unsafe { KvmGuest::new(vm, ram, hidden, vec![thread]) };
        Ok(Self { guest: Arc::new(guest) })
    }

    fn measure(&self, name: &str) {
        let mut among = Addresses::default();
        among.add(Gva(0xffff_ffff_8100_1001), Gva(0xffff_ffff_8100_1005), 0);
        let guest = TimedGuest::new(Arc::clone(&self.guest) as Arc<dyn Guest>);
        let mut statistics = SearchStatistics::default();
        let begun = Instant::now();
        let mut failed = 0;
        for _ in 0..ROUNDS {
            let mut search = Search::new(&guest, &among, &mut statistics);
            failed += usize::from(search.stop(&mut |_| ()).is_err());
        }
        let took = begun.elapsed().as_secs_f64() * 1000.0 / f64::from(ROUNDS);
        let (stops, longest) = guest.stops();
        figure(name, &format!("{:.2} ms", longest.as_secs_f64() * 1000.0), "<= 2 ms");
        let SearchStatistics { pages_running, most_pages_stopped, all_stopped, .. } = statistics;
        let running = pages_running / u64::from(ROUNDS);
        figure("  pages looked at in the last stop", &most_pages_stopped.to_string(), "<= 512");
        figure("  pages looked at while it ran", &running.to_string(), "");
        figure("  a search", &format!("{took:.1} ms"), "");
        let rest = format!("{stops}, {failed}, {all_stopped}");
        figure(&format!("  of {ROUNDS} searches: stops, failed, all in a stop"), &rest, "");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for vcpu in self.guest.threads() {
            let _ = vcpu.msr(LAST_MSR);
            let _ = vcpu.join();
        }
    }
}

fn create_vcpu(kvm: &Kvm, vm: &VmFd, software: Option<SoftwareKvm>) -> Result<VcpuFd, KvmError> {
    let mut vcpu = vm.create_vcpu(0)?;
    let mut supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    cpuid::hide_unfit_features(&mut supported, software);
    vcpu.set_cpuid2(&supported)?;
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..kvm_segment::default() };
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs = kvm_segment { selector: 0x10, type_: 0xb, l: 1, ..flat };
    let data = kvm_segment { selector: 0x18, type_: 0x3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    (sregs.cr0, sregs.cr3, sregs.cr4) = (sregs.cr0 | 0x8000_0001, TABLES, sregs.cr4 | 0x20);
    sregs.efer |= 0x500;
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs { rip: CODE, rflags: 2, ..kvm_regs::default() })?;
    prepare_vcpu(&mut vcpu)?;
    Ok(vcpu)
}

/// Runs the guest and answers requests, up to one for [`LAST_MSR`].
fn serve(mut vcpu: VcpuFd, requests: &Receiver<Request>) {
    let clock = GuestClock::new(GuestTime(0), 1_000_000);
    while vcpu.run().is_err_and(|error| error.errno() == libc::EINTR) {
        vcpu.set_kvm_immediate_exit(0);
        while let Ok(request) = requests.try_recv() {
            let is_last = matches!(request, Request::Msr(LAST_MSR, _));
            request.serve(&vcpu, &clock);
            if is_last {
                return;
            }
        }
    }
}
