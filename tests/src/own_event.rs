//! A guest whose kernel has kprobes of its own, with one event on a function: what benches compare
//! with.

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::SymbolTable;
use exoprobe_vmm::Vm;

use crate::{TestGuest, unfiltered_host};

/// The kernel that `guest/build.sh kprobe-events` builds.
const KERNEL: &str = "kprobe-events/vmlinux";
/// `jmp rel32`: the event is jump-optimized.
const JMP: u8 = 0xe9;
/// The jmp is five bytes.
const TEXT: usize = 5;

/// A function that has an event of the guest's own kernel.
#[derive(Clone, Copy)]
pub struct OwnEvent {
    /// Where the function is.
    pub function: Gva,
    original: [u8; TEXT],
    optimized: [u8; TEXT],
}

impl OwnEvent {
    /// Boots a guest that puts an event with these fetch arguments on `function` while it boots,
    /// and waits until its kernel has optimized it.
    ///
    /// # Panics
    /// When the guest does not get there.
    #[must_use]
    pub fn boot(function: &str, args: &[&str]) -> (TestGuest, Self) {
        let mut config = TestGuest::config(KERNEL, 1);
        // kernel-parameters.txt, kprobe_event=: commas stand for blanks.
        config.cmdline.push_str(&format!(" kprobe_event=p:own,{function},{}", args.join(",")));
        let symbols = SymbolTable::load(&config.kernel).expect("its vmlinux has symbols");
        let at = symbols.lookup_function(function).unwrap_or_else(|e| panic!("{e}")).address;
        let vm = Vm::create(&unfiltered_host(), &config).expect("the guest can be made");
        let guest = TestGuest::of_kernel(vm, symbols);
        let original = text(&guest, at);
        guest.power_on();
        guest.wait_for_prompt();
        guest.wait_until("the event's own jmp", |guest| text(guest, at)[0] == JMP);
        let optimized = text(&guest, at);
        (guest, Self { function: at, original, optimized })
    }

    /// Puts the event's jmp into the function, or takes it out, where no vCPU is in the function.
    ///
    /// # Panics
    /// Never: the function is in RAM.
    pub fn set(&self, guest: &TestGuest, present: bool) {
        let text = if present { &self.optimized } else { &self.original };
        guest.vm.ram().write(gpa(self.function), text).expect("kernel text is in RAM");
    }
}

fn gpa(at: Gva) -> Gpa {
    Gpa(at.0 - KERNEL_IMAGE_BASE.0)
}

fn text(guest: &TestGuest, at: Gva) -> [u8; TEXT] {
    let mut bytes = [0; TEXT];
    guest.vm.ram().read(gpa(at), &mut bytes).expect("kernel text is in RAM");
    bytes
}
