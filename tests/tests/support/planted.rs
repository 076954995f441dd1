//! Probes by hand, for tests of what the engine stands on.

use std::collections::BTreeMap;

use exoprobe_guest::hidden::SLOT_SIZE;
use exoprobe_guest::paging::{PagingMode, translate};
use exoprobe_guest::{Gva, kvm_sregs};
use exoprobe_probes::insn::{Assurances, SlotKind, analyze};
use exoprobe_tests::{TestGuest, host};
use exoprobe_vmm::{HostSides, Vm};

const INT3: u8 = 0xcc;

/// A guest as it was after boot, which does not run yet, with hidden memory mapped.
pub(crate) struct Stopped {
    pub(crate) guest: TestGuest,
    pub(crate) sregs: kvm_sregs,
    pub(crate) mode: PagingMode,
}

impl Stopped {
    pub(crate) fn restored(vcpus: u8) -> Self {
        let guest = TestGuest::new(
            Vm::restore(host(), &TestGuest::snapshot(vcpus), &HostSides::default()).unwrap(),
        );
        let sregs = guest.vm.registers(0).unwrap().sregs;
        let mode = PagingMode::of(&sregs).unwrap();
        guest.vm.hidden().map(guest.vm.ram(), mode).unwrap();
        Self { guest, sregs, mode }
    }

    /// Puts an int3 over each instruction, and the instruction with its address into a slot; gives
    /// the slots by instruction.
    pub(crate) fn divert(&self, all: &[Gva]) -> BTreeMap<u64, u64> {
        let hidden = self.guest.vm.hidden();
        let window = hidden.code_window().unwrap();
        let mut slots = BTreeMap::new();
        for (at, offset) in all.iter().zip((0u64..).map(|slot| slot * SLOT_SIZE)) {
            let insn = analyze(&self.guest.bytes(*at, 16), *at, Assurances::ALL).unwrap();
            let slot = window.gva.wrapping_add(offset);
            let code = insn.assemble(SlotKind::Boosted, slot).unwrap();
            hidden.write(window.offset + offset, &code.image(*at));
            plant(&self.guest.vm, self.mode, *at);
            slots.insert(at.0, slot.0);
        }
        slots
    }
}

/// Puts an int3 into the guest; gives what takes it out again.
pub(crate) fn plant(vm: &Vm, mode: PagingMode, at: Gva) -> Planted {
    let gpa = translate(vm.ram(), mode, at).unwrap().gpa;
    let planted = Planted { gpa, byte: vm.ram().load_byte(gpa).unwrap() };
    vm.ram().store_byte(gpa, INT3).unwrap();
    planted
}

/// An int3 in the guest's text.
#[derive(Clone, Copy)]
pub(crate) struct Planted {
    gpa: exoprobe_guest::Gpa,
    byte: u8,
}

impl Planted {
    pub(crate) fn remove(self, vm: &Vm) {
        vm.ram().store_byte(self.gpa, self.byte).unwrap();
    }
}
