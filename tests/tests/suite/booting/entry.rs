//! The moment at which the guest's kernel begins, before any of its C code.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use exoprobe_guest::layout::HIDDEN_GVA;
use exoprobe_guest::paging::{PagingMode, translate};
use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry, kvm_regs};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, TestGuest, cases, host, kernel_symbols};
use exoprobe_vmm::{HostSides, Vm};

use crate::support::planted::{Planted, plant};

pub(crate) const CASES: &[Case] = cases![
    kernel_entry_is_reported_once_and_hidden_memory_lasts_from_then_on needs [Kvm, Smp, QuickKernel],
    a_guest_whose_snapshot_was_taken_at_its_beginning_boots_on needs [Kvm, QuickKernel],
];

/// The kernel's first C function at its own addresses.
const FIRST_C: &str = "x86_64_start_kernel";
/// wrmsr_safe_regs(registers): eight words, of which the first three are EAX, ECX and EDX; gives
/// -EIO for a #GP.
const WRITE_MSR: &str = "wrmsr_safe_regs";
const GETPID: &str = "__x64_sys_getpid";
const MSR_GS_BASE: u32 = 0xc000_0101;
const MINUS_EIO: u32 = 5u32.wrapping_neg();
const NON_CANONICAL_HIGH: u32 = 0x8000_0000;
/// Where hidden memory may be written by the guest.
const DATA: u64 = 1 << 20;
/// Long enough that a pause which was asked for comes before the guest goes on.
const HOLD: Duration = Duration::from_millis(300);

/// Does at the kernel's beginning what an engine would: maps hidden memory and sets a breakpoint.
struct Watcher {
    vm: Weak<Vm>,
    first_c: Gva,
    said: Mutex<Sender<Said>>,
    getpid: Gva,
    write_msr: Gva,
    /// Registers of the call that the write of a register takes the place of, to go on with.
    interrupted: Mutex<Option<kvm_regs>>,
    /// The int3 that is in the guest.
    planted: Mutex<Option<Planted>>,
    /// Stays out of the guest for a moment.
    hold: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Entered {
        rip: Gva,
        hidden: Gva,
    },
    HitFirstC,
    HitTrampoline,
    /// The result of writing the register.
    WroteMsr(u32),
}

impl Watcher {
    fn start(vm: &Arc<Vm>, hold: bool) -> (Arc<Self>, Receiver<Said>) {
        let (sender, said) = channel();
        let symbols = kernel_symbols();
        let address = |name| symbols.lookup_function(name).unwrap().address;
        let watcher = Arc::new(Self {
            vm: Arc::downgrade(vm),
            first_c: address(FIRST_C),
            getpid: address(GETPID),
            write_msr: address(WRITE_MSR),
            said: Mutex::new(sender),
            interrupted: Mutex::default(),
            planted: Mutex::default(),
            hold,
        });
        vm.start(Arc::clone(&watcher) as Arc<dyn ExitHook>).unwrap();
        (watcher, said)
    }

    fn plant(&self, vm: &Vm, mode: PagingMode, at: Gva) {
        *self.planted.lock().unwrap() = Some(plant(vm, mode, at));
    }

    fn remove(&self) {
        let planted = self.planted.lock().unwrap().take().expect("one is in the guest");
        planted.remove(&self.vm.upgrade().unwrap());
    }

    fn say(&self, what: Said) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        drop(said.send(what));
    }

    fn trampoline(&self) -> Gva {
        let vm = self.vm.upgrade().unwrap();
        vm.hidden().trampoline_window().unwrap().gva.wrapping_add(0x123)
    }

    /// The second trampoline.
    fn way_back(&self) -> Gva {
        self.trampoline().wrapping_add(1)
    }

    /// Has the vCPU call [`WRITE_MSR`] and return to a trampoline.
    fn call_write_msr(&self, context: &mut HitContext<'_>) {
        let vm = self.vm.upgrade().unwrap();
        *self.interrupted.lock().unwrap() = Some(*context.regs);
        context.regs.rsp -= 8;
        let mode = PagingMode::of(&context.sregs().unwrap()).unwrap();
        let stack = translate(vm.ram(), mode, Gva(context.regs.rsp)).unwrap().gpa;
        vm.ram().store_u64(stack, self.way_back().0).unwrap();
        context.regs.rdi = vm.hidden().base().unwrap().0 + DATA;
        context.regs.rip = self.write_msr.0;
    }
}

impl ExitHook for Watcher {
    fn kernel_entered(&self, entry: &KernelEntry) -> bool {
        let vm = self.vm.upgrade().unwrap();
        let mode = PagingMode::of(&entry.sregs).unwrap();
        let hidden = vm.hidden().map(vm.ram(), mode).unwrap();
        self.say(Said::Entered { rip: entry.rip, hidden });
        if self.hold {
            std::thread::sleep(HOLD);
            return true;
        }
        self.plant(&vm, mode, self.first_c);
        true
    }

    fn release(&self, _: &mut HitContext<'_>) {
        unreachable!("it holds no vCPU")
    }

    fn reset(&self) {
        unreachable!("it is not booted again")
    }

    /// From the kernel's first C function by way of a trampoline, where the kernel has no IDT yet.
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        if context.rip() == self.first_c {
            self.say(Said::HitFirstC);
            self.remove();
            context.regs.rip = self.trampoline().0;
        } else if context.rip() == self.trampoline() {
            self.say(Said::HitTrampoline);
            context.regs.rip = self.first_c.0;
        } else if context.rip() == self.getpid {
            self.remove();
            self.call_write_msr(context);
        } else if context.rip() == self.way_back() {
            let result =
                u32::from_le_bytes(context.regs.rax.to_le_bytes()[..4].try_into().unwrap());
            self.say(Said::WroteMsr(result));
            *context.regs = self.interrupted.lock().unwrap().take().unwrap();
        } else {
            return BreakpointAction::PassToGuest;
        }
        BreakpointAction::Resume
    }
}

/// `said` is that of the kernel's beginning; gives where hidden memory is.
fn check_entry(said: &Said) -> Gva {
    let Said::Entered { rip, hidden } = *said else { panic!("{said:?}") };
    let symbols = kernel_symbols();
    let function = symbols.function_at(rip).expect("in the kernel's text");
    assert!(function.name.starts_with("secondary_startup_64"), "{rip}: {}", function.name);
    assert_eq!(hidden, HIDDEN_GVA);
    hidden
}

fn kernel_entry_is_reported_once_and_hidden_memory_lasts_from_then_on() {
    let vm = Vm::create(host(), &TestGuest::config("vmlinux", 2)).unwrap();
    assert!(vm.reports_kernel_entry());
    let guest = TestGuest::new(vm);
    let (watcher, said) = Watcher::start(&guest.vm, false);
    guest.wait_for_prompt();
    let hidden = check_entry(&said.try_recv().unwrap());
    let rest: Vec<Said> = said.try_iter().collect();
    assert_eq!(rest, [Said::HitFirstC, Said::HitTrampoline], "and nothing twice");
    assert_eq!(guest.vm.hidden().map(guest.vm.ram(), guest.paging_mode()), Ok(hidden));
    guest.assert_unharmed();

    // The register by which that is known refuses a bad value as ever: by a #GP.
    let registers = [0, MSR_GS_BASE, NON_CANONICAL_HIGH].map(u32::to_le_bytes);
    guest.vm.hidden().write(DATA, registers.as_flattened());
    watcher.plant(&guest.vm, guest.paging_mode(), watcher.getpid);
    assert_eq!(guest.work("getpid 1"), 1);
    assert_eq!(said.try_iter().collect::<Vec<_>>(), [Said::WroteMsr(MINUS_EIO)]);
    guest.assert_unharmed();
}

/// Then the kernel has not set its system-call entry yet, which some hosts must see.
fn a_guest_whose_snapshot_was_taken_at_its_beginning_boots_on() {
    let vm = Arc::new(Vm::create(host(), &TestGuest::config("bzImage", 1)).unwrap());
    let (_, said) = Watcher::start(&vm, true);
    let hidden = check_entry(&said.recv_timeout(PATIENCE).unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    vm.snapshot(file.path()).unwrap();
    drop(vm);
    let guest = TestGuest::start(Vm::restore(host(), file.path(), &HostSides::default()).unwrap());
    assert_eq!(guest.vm.hidden().base(), Some(hidden));
    guest.wait_for_prompt();
    assert_eq!(guest.vm.hidden().map(guest.vm.ram(), guest.paging_mode()), Ok(hidden));
    guest.assert_unharmed();
}
