//! Threads and exits of vCPUs over KVM, with guests of a few instructions. Each test is skipped by
//! name without /dev/kvm.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exoprobe_guest::dirty::PageSet;
use exoprobe_guest::kvm::{
    AfterExit, KvmGuest, ProbeExit, ProbeExits, Reinjection, Request, VcpuThread, prepare_vcpu,
    register_memory, with_vcpus_still,
};
use exoprobe_guest::memory::RamRange;
use exoprobe_guest::quirks::SoftwareKvm;
use exoprobe_guest::{
    BreakpointAction, ExitHook, Gpa, Guest, GuestClock, GuestRam, GuestTime, Gva, HiddenMemory,
    HitContext, KernelEntry, VcpuError, cpuid,
};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

const CODE: u64 = 0x1000;
const PML4: u64 = 0x2000;
const STACK: u64 = 0x8000;
const INT3: u8 = 0xcc;
const HLT: u8 = 0xf4;
const JMP_SELF: [u8; 2] = [0xeb, 0xfe];
/// Time for some loops of a guest.
const RUN: Duration = Duration::from_millis(1);

/// A guest in 64-bit kernel mode whose vCPUs are at [`CODE`]. Fields are dropped in this order.
struct Tiny {
    vcpus: Vec<VcpuFd>,
    vm: Arc<VmFd>,
    ram: GuestRam,
    hidden: HiddenMemory,
    software: Option<SoftwareKvm>,
}

impl Tiny {
    fn new(code: &[u8], vcpus: u64) -> Option<Self> {
        let Ok(kvm) = Kvm::new() else {
            let thread = std::thread::current();
            eprintln!("skipped, without /dev/kvm: {}", thread.name().unwrap_or_default());
            return None;
        };
        let ram = GuestRam::anonymous(&[RamRange { start: Gpa(0), len: 1 << 20 }]).unwrap();
        let hidden = HiddenMemory::new(&ram, 1).unwrap();
        ram.write(Gpa(CODE), code).unwrap();
        ram.store_u64(Gpa(PML4), (PML4 + 0x1000) | 3).unwrap();
        ram.store_u64(Gpa(PML4 + 0x1000), (PML4 + 0x2000) | 3).unwrap();
        ram.store_u64(Gpa(PML4 + 0x2000), 0x83).unwrap();
        let is_software = Path::new("/sys/module/kvm_pvm").exists();
        let software =
            is_software.then_some(SoftwareKvm { syscall_faults: true, host_cpuid: true });
        let vm = kvm.create_vm().unwrap();
        vm.set_tss_address(0xfffb_d000).unwrap();
        vm.set_identity_map_address(0xfffb_c000).unwrap();
        if let Some(quirk) = software {
            vm.enable_cap(&quirk.capability()).unwrap();
        }
        // SAFETY: `Self` keeps both, and threads that take the vCPUs are joined before it ends.
        unsafe { register_memory(&vm, &ram, &hidden) }.unwrap();
        let vcpus = (0..vcpus).map(|index| create_vcpu(&kvm, &vm, index, software)).collect();
        Some(Self { vcpus, vm: Arc::new(vm), ram, hidden, software })
    }

    /// Runs the vCPUs on threads of their own, until [`end`].
    fn run(&mut self) -> KvmGuest {
        let spawn = |(index, fd)| {
            VcpuThread::spawn(index, fd, |fd, requests| serve(fd, &requests)).unwrap()
        };
        let vcpus = (0..).zip(self.vcpus.drain(..)).map(spawn).collect();
        let (ram, hidden) = (self.ram.clone(), self.hidden.clone());
        // SAFETY: `new` has mapped both.
        unsafe { KvmGuest::new(Arc::clone(&self.vm), ram, hidden, vcpus) }
    }

    fn exits(&self) -> ProbeExits {
        let software = self.software;
        ProbeExits {
            vcpu: 0,
            clock: GuestClock::new(GuestTime(0), 1_000_000),
            reinjection: software.map_or(Reinjection::OnInt3, |_| Reinjection::AfterInt3),
            software,
            entry: Arc::default(),
            ram: self.ram.clone(),
            hidden: self.hidden.clone(),
        }
    }
}

fn create_vcpu(kvm: &Kvm, vm: &VmFd, index: u64, software: Option<SoftwareKvm>) -> VcpuFd {
    let mut vcpu = vm.create_vcpu(index).unwrap();
    let mut supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
    cpuid::hide_unfit_features(&mut supported, software);
    vcpu.set_cpuid2(&supported).unwrap();
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..kvm_segment::default() };
    let mut sregs = vcpu.get_sregs().unwrap();
    sregs.cs = kvm_segment { selector: 0x10, type_: 0xb, l: 1, ..flat };
    let data = kvm_segment { selector: 0x18, type_: 0x3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    (sregs.cr0, sregs.cr3, sregs.cr4) = (sregs.cr0 | 0x8000_0001, PML4, sregs.cr4 | 0x20);
    sregs.efer |= 0x500;
    vcpu.set_sregs(&sregs).unwrap();
    let regs = kvm_regs { rip: CODE, rsp: STACK, rflags: 2, ..kvm_regs::default() };
    vcpu.set_regs(&regs).unwrap();
    prepare_vcpu(&mut vcpu).unwrap();
    vcpu
}

/// Runs the guest and answers requests, up to one for [`LAST_MSR`].
fn serve(mut vcpu: VcpuFd, requests: &Receiver<Request>) {
    let clock = GuestClock::new(GuestTime(0), 1_000_000);
    loop {
        let error = vcpu.run().expect_err("a guest without exits");
        assert_eq!(error.errno(), libc::EINTR);
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

fn end(guest: &KvmGuest) {
    for vcpu in guest.threads() {
        assert!(matches!(vcpu.msr(LAST_MSR), Err(VcpuError::Kvm(_))), "an answer, not a hang");
        vcpu.join().unwrap();
    }
}

/// No register: KVM refuses it.
const LAST_MSR: u32 = 0xdead_beef;

#[test]
fn threads_are_taken_out_of_the_guest_and_stand_still() {
    let Some(mut tiny) = Tiny::new(&JMP_SELF, 2) else { return };
    let guest = tiny.run();
    assert_eq!((guest.vcpus(), guest.stopped()), (2, false));
    for _ in 0..100 {
        guest.sync_vcpus().unwrap();
        with_vcpus_still(guest.threads(), |registers| {
            assert_eq!(registers.len(), 2);
            assert!(registers.iter().all(|vcpu| vcpu.regs.rip == CODE), "{registers:x?}");
        })
        .unwrap();
    }
    assert_eq!(guest.sregs().unwrap().cr3, PML4);
    guest.tsc_offset().unwrap();
    end(&guest);
    assert!(guest.stopped());
    assert!(matches!(guest.sync_vcpus(), Err(VcpuError::Gone(0))));
}

/// The engine relies on it: a store that the log misses is a frame that a search misses.
#[test]
fn every_kind_of_store_is_in_the_dirty_log_each_time_it_was_cleared() {
    // push rax; pop rax; mov [0xa000], rax; rep stosq of one word to 0xb000; lock cmpxchg of
    // [0xc000] to what it is; xchg [0xd000], rax; call the next, which drops the return address
    // with the stack at 0xf000; again, with the stack at STACK
    let code = [
        &[0x50, 0x58][..],
        &[0x48, 0x89, 0x04, 0x25, 0, 0xa0, 0, 0],
        &[0xbf, 0, 0xb0, 0, 0, 0xb9, 1, 0, 0, 0, 0xf3, 0x48, 0xab],
        &[0x48, 0x8b, 0x04, 0x25, 0, 0xc0, 0, 0, 0xf0, 0x48, 0x0f, 0xb1, 0x04, 0x25, 0, 0xc0, 0, 0],
        &[0x48, 0x87, 0x04, 0x25, 0, 0xd0, 0, 0],
        &[0xbc, 0, 0xf0, 0, 0, 0xe8, 0, 0, 0, 0, 0xbc, 0, 0x80, 0, 0],
    ]
    .concat();
    let back = 0_u8.wrapping_sub(u8::try_from(code.len()).unwrap() + 2);
    let code = [code, vec![0xeb, back]].concat();
    let stored = [STACK - 0x1000, 0xa000, 0xb000, 0xc000, 0xd000, 0xe000].map(Gpa);
    let Some(mut tiny) = Tiny::new(&code, 1) else { return };
    let guest = tiny.run();
    for _ in 0..3 {
        let mut log = guest.log_writes().unwrap();
        let mut pages = PageSet::all(guest.ram());
        for _ in 0..5 {
            while let Some(run) = pages.take_run(100) {
                log.clear(&run).unwrap();
            }
            let missing = |pages: &BTreeSet<Gpa>| stored.iter().any(|page| !pages.contains(page));
            let mut found = BTreeSet::new();
            while missing(&found) {
                // An emulated guest makes no progress if it is stopped all the time.
                std::thread::sleep(RUN);
                guest.sync_vcpus().unwrap();
                log.read(&mut pages).unwrap();
                while let Some(run) = pages.take_run(2) {
                    found.extend(run.pages());
                }
            }
            // The CPU marks entries of page tables as used.
            found.retain(|page| !(PML4..PML4 + 0x3000).contains(&page.0));
            assert_eq!(found.into_iter().collect::<Vec<_>>(), stored, "no page that is only read");
            stored.iter().for_each(|page| pages.insert(*page));
        }
    }
    end(&guest);
}

#[test]
fn a_page_that_was_cleared_and_not_stored_to_is_not_in_the_dirty_log() {
    let Some(mut tiny) = Tiny::new(&JMP_SELF, 1) else { return };
    let guest = tiny.run();
    let mut log = guest.log_writes().unwrap();
    let mut pages = PageSet::all(guest.ram());
    while let Some(run) = pages.take_run(usize::MAX) {
        log.clear(&run).unwrap();
    }
    guest.sync_vcpus().unwrap();
    log.read(&mut pages).unwrap();
    assert_eq!(pages.count(), 0);
    drop(log);
    end(&guest);
}

#[test]
fn a_request_just_before_the_guest_is_entered_is_not_lost() {
    let Some(mut tiny) = Tiny::new(&JMP_SELF, 1) else { return };
    let (go, gate) = channel::<()>();
    let body = move |fd, requests: Receiver<Request>| {
        gate.recv().unwrap();
        serve(fd, &requests);
    };
    let thread = VcpuThread::spawn(0, tiny.vcpus.remove(0), body).unwrap();
    // The thread is outside KVM_RUN when the signal comes, and has not looked at its queue.
    let pending = thread.begin(|reply| Request::Msr(LAST_MSR, reply)).unwrap();
    go.send(()).unwrap();
    assert!(matches!(pending.wait(), Err(VcpuError::Kvm(_))));
    thread.join().unwrap();
}

/// Answers each int3 by an action.
struct Hook {
    action: BreakpointAction,
    seen: Mutex<Vec<(&'static str, Gva)>>,
}

impl Hook {
    fn new(action: BreakpointAction) -> Self {
        Self { action, seen: Mutex::default() }
    }
}

impl ExitHook for Hook {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        self.seen.lock().unwrap().push(("breakpoint", context.rip()));
        context.regs.rax = 40;
        context.regs.rip += u64::from(self.action == BreakpointAction::Resume);
        self.action
    }

    fn release(&self, context: &mut HitContext<'_>) {
        self.seen.lock().unwrap().push(("release", context.rip()));
        context.regs.rax += 2;
        context.regs.rip += 1;
    }

    fn reset(&self) {}

    fn kernel_entered(&self, _: &KernelEntry) -> bool {
        true
    }
}

/// Runs the vCPU until an exit that concerns the engine; `None` at HLT.
fn next_exit(vcpu: &mut VcpuFd) -> Option<ProbeExit> {
    match vcpu.run().unwrap() {
        VcpuExit::Hlt => None,
        exit => Some(ProbeExit::of(&exit).unwrap_or_else(|| panic!("{exit:?}"))),
    }
}

#[test]
fn an_int3_goes_to_the_hook_and_its_registers_to_the_guest() {
    let Some(mut tiny) = Tiny::new(&[INT3, HLT], 1) else { return };
    let (exits, hook) = (tiny.exits(), Hook::new(BreakpointAction::Resume));
    let vcpu = &mut tiny.vcpus[0];
    let exit = next_exit(vcpu).unwrap();
    assert!(exit == ProbeExit::Breakpoint || exits.is_breakpoint(vcpu), "{exit:?}");
    let after = exits.handle(vcpu, exit, Some(&hook)).unwrap();
    assert!(matches!(after, AfterExit::Run));
    assert_eq!(next_exit(vcpu), None);
    let regs = vcpu.get_regs().unwrap();
    assert_eq!((regs.rax, regs.rip), (40, CODE + 2));
    assert_eq!(*hook.seen.lock().unwrap(), [("breakpoint", Gva(CODE))]);
}

#[test]
fn a_held_vcpu_has_its_registers_in_kvm_and_is_released() {
    let Some(mut tiny) = Tiny::new(&[INT3, HLT], 1) else { return };
    let (exits, hook) = (tiny.exits(), Hook::new(BreakpointAction::Hold));
    let vcpu = &mut tiny.vcpus[0];
    let exit = next_exit(vcpu).unwrap();
    let AfterExit::Hold(time) = exits.handle(vcpu, exit, Some(&hook)).unwrap() else {
        panic!("not held");
    };
    let regs = vcpu.get_regs().unwrap();
    assert_eq!((regs.rax, regs.rip), (40, CODE), "as the hook left them");
    exits.release(vcpu, &hook, time).unwrap();
    assert_eq!(next_exit(vcpu), None);
    let regs = vcpu.get_regs().unwrap();
    assert_eq!((regs.rax, regs.rip), (42, CODE + 2));
    let seen = [("breakpoint", Gva(CODE)), ("release", Gva(CODE))];
    assert_eq!(*hook.seen.lock().unwrap(), seen);
}

#[test]
fn an_int3_of_the_guests_own_comes_to_its_handler() {
    const HANDLER: u64 = CODE + 8;
    const IDT: u64 = 0x6000;
    const GDT: u64 = 0x5000;
    let code = [INT3, HLT, HLT, HLT, HLT, HLT, HLT, HLT, HLT];
    for action in [None, Some(BreakpointAction::PassToGuest)] {
        let Some(mut tiny) = Tiny::new(&code, 1) else { return };
        // A 64-bit interrupt gate for vector 3, and the segments of the selectors in use.
        tiny.ram.store_u64(Gpa(IDT + 3 * 16), 0x8e00_0010_0000 | HANDLER).unwrap();
        tiny.ram.store_u64(Gpa(GDT + 0x10), 0x00af_9b00_0000_ffff).unwrap();
        tiny.ram.store_u64(Gpa(GDT + 0x18), 0x00cf_9300_0000_ffff).unwrap();
        let (exits, hook) = (tiny.exits(), action.map(Hook::new));
        let vcpu = &mut tiny.vcpus[0];
        let mut sregs = vcpu.get_sregs().unwrap();
        (sregs.idt.base, sregs.idt.limit) = (IDT, 0xfff);
        (sregs.gdt.base, sregs.gdt.limit) = (GDT, 0x1f);
        vcpu.set_sregs(&sregs).unwrap();
        let exit = next_exit(vcpu).unwrap();
        let hook = hook.as_ref().map(|hook| hook as &dyn ExitHook);
        assert!(matches!(exits.handle(vcpu, exit, hook).unwrap(), AfterExit::Run));
        assert_eq!(next_exit(vcpu), None);
        let regs = vcpu.get_regs().unwrap();
        let rax = if action.is_some() { 40 } else { 0 };
        assert_eq!((regs.rip, regs.rax), (HANDLER + 1, rax), "all but RIP as the hook left it");
        let mut pushed = [0; 8];
        tiny.ram.read(Gpa(regs.rsp), &mut pushed).unwrap();
        assert_eq!(u64::from_le_bytes(pushed), CODE + 1, "the handler returns after the int3");
    }
}
