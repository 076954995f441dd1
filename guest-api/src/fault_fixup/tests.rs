use super::*;
use crate::addr::Gpa;
use crate::idt::testing::{CR3, IDT, LIMIT, guest, put, target};
use crate::layout::HIDDEN_SIZE;
use crate::paging::ReadPhys;
use crate::quirks::SoftwareKvm;
use iced_x86::{Decoder, DecoderOptions, Formatter, Mnemonic, NasmFormatter};

const PAGE_FAULT: u8 = 14;
const LSTAR: Gva = Gva(0xffff_ffff_8100_0100);

fn handler(vector: u8) -> Gva {
    Gva(0xffff_ffff_8120_0000 + u64::from(vector) * 0x10)
}

/// A guest with a handler for each of the CPU's exceptions, and mapped hidden memory.
fn booted() -> (GuestRam, PagingMode, HiddenMemory) {
    let (ram, mode) = guest();
    (0..32).for_each(|vector| put(&ram, vector, handler(vector)));
    let hidden = HiddenMemory::new(&ram, 1).unwrap();
    hidden.map(&ram, mode).unwrap();
    (ram, mode, hidden)
}

/// All state that can have changed.
fn state(ram: &GuestRam, hidden: &HiddenMemory) -> (Vec<u64>, Vec<u8>) {
    let mut bytes = vec![0; usize::try_from(HIDDEN_SIZE).unwrap()];
    hidden.read(0, &mut bytes);
    (ram_words(ram), bytes)
}

fn ram_words(ram: &GuestRam) -> Vec<u64> {
    (0..ram.size()).step_by(8).map(|at| ram.read_u64(Gpa(at)).unwrap()).collect()
}

/// The code that a gate points to, up to the padding of its cell.
fn code_at(hidden: &HiddenMemory, at: Gva) -> Vec<String> {
    let page = hidden.stub_window().unwrap();
    let mut bytes = [0; 56];
    hidden.read(page.offset + (at.0 - page.gva.0), &mut bytes);
    let mut lines = Vec::new();
    for insn in Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE) {
        if insn.mnemonic() == Mnemonic::Int3 {
            break;
        }
        let mut line = String::new();
        NasmFormatter::new().format(&insn, &mut line);
        lines.push(line);
    }
    lines
}

/// The address at which the code of a gate finally continues.
fn end_of(hidden: &HiddenMemory, at: Gva) -> Gva {
    let mut at = at;
    let page = hidden.stub_window().unwrap();
    for _ in 0..8 {
        if at.0.wrapping_sub(page.gva.0) >= page.len {
            return at;
        }
        let code = code_at(hidden, at);
        let last = code.iter().rev().find(|line| line.starts_with("jmp")).unwrap();
        let hex = last.trim_end_matches('h').trim_start_matches("jmp 0");
        at = Gva(u64::from_str_radix(hex, 16).unwrap_or_else(|e| panic!("{last}: {e}")));
    }
    panic!("the stubs go round in a circle");
}

#[test]
fn a_stub_replaces_an_address_in_the_slots_by_that_of_the_slot() {
    let (ram, mode, hidden) = booted();
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    let slots = hidden.code_window().unwrap();
    assert_eq!((slots.gva.0, slots.len), (0xffff_ffff_ff80_6000, 0x7_a000));
    let expected = |rip: &str, cs: &str, out: &str, handler: &str| {
        vec![
            "push rax".to_owned(),
            format!("mov rax,[rsp+{rip}]"),
            "sub rax,0FFFFFFFFFF806000h".to_owned(),
            "cmp rax,7A000h".to_owned(),
            format!("jae short 0{out}h"),
            format!("test byte [rsp+{cs}],3"),
            format!("jne short 0{out}h"),
            "or rax,1Fh".to_owned(),
            "mov rax,[rax-7FA007h]".to_owned(),
            format!("mov [rsp+{rip}],rax"),
            "pop rax".to_owned(),
            format!("jmp 0{handler}h"),
        ]
    };
    for (vector, rip, cs, at) in
        [(6, "8", "10h", "FFFFFFFF81200060"), (14, "10h", "18h", "FFFFFFFF812000E0")]
    {
        let stub = Stub::Fault(vector).at(&hidden).unwrap();
        let out = format!("{:X}", stub.0 + 45);
        assert_eq!(code_at(&hidden, stub), expected(rip, cs, &out, at), "{vector}");
        assert!(
            Way::from(&hidden, target(&ram, mode, vector).unwrap()).passes(Stub::Fault(vector))
        );
    }
}

#[test]
fn a_guarded_load_goes_on_after_its_fault_and_others_are_the_guests() {
    let (ram, mode, hidden) = booted();
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    let detours = hidden.detour_window().unwrap();
    assert_eq!((detours.gva.0, detours.len), (0xffff_ffff_ff88_0000, 0x8_0000));
    for vector in 0..32 {
        let way = Way::from(&hidden, target(&ram, mode, vector).unwrap());
        assert_eq!(way.passes(Stub::Load(vector)), [13, 14].contains(&vector), "{vector}");
        assert!(!way.passes(Stub::LoadFixup(vector)), "{vector}");
    }
    for vector in [13, 14] {
        let front = target(&ram, mode, vector).unwrap();
        let [slots, fixup] =
            [Stub::Fault(vector), Stub::LoadFixup(vector)].map(|stub| stub.at(&hidden).unwrap());
        let expected = [
            "push rax".to_owned(),
            "mov rax,[rsp+10h]".to_owned(),
            "sub rax,0FFFFFFFFFF880000h".to_owned(),
            "cmp rax,80000h".to_owned(),
            "pop rax".to_owned(),
            format!("jb near 0{:X}h", fixup.0),
            format!("jmp 0{:X}h", slots.0),
        ];
        assert_eq!(code_at(&hidden, front), expected, "{vector}");
        let out = format!("0{:X}h", fixup.0 + 39);
        let expected = [
            "test byte [rsp+10h],3".to_owned(),
            format!("jne short {out}"),
            "push rax".to_owned(),
            "mov rax,[rsp+10h]".to_owned(),
            "cmp dword [rax],8B483E3Eh".to_owned(),
            "pop rax".to_owned(),
            format!("jne short {out}"),
            "add qword [rsp+8],5".to_owned(),
            "or byte [rsp+18h],1".to_owned(),
            "add rsp,8".to_owned(),
            "iretq".to_owned(),
            format!("jmp 0{:X}h", slots.0),
        ];
        assert_eq!(code_at(&hidden, fixup), expected, "{vector}");
    }
}

/// As a snapshot has it that was taken before there were guarded loads.
#[test]
fn a_gate_that_has_the_one_stub_gets_the_other() {
    let (ram, mode, hidden) = booted();
    let gate = idt::gate(&ram, mode, (IDT, LIMIT), PAGE_FAULT).unwrap().unwrap();
    let slots = hidden.code_window().unwrap();
    let code = slot_stub(&hidden, slots, (PAGE_FAULT, true), gate.target()).unwrap();
    code.write(&hidden);
    gate.to(code.gva).unwrap().store(&ram).unwrap();
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    let way = Way::from(&hidden, target(&ram, mode, PAGE_FAULT).unwrap());
    assert!(way.passes(Stub::Fault(PAGE_FAULT)) && way.passes(Stub::Load(PAGE_FAULT)));
    assert_eq!(way.end, handler(PAGE_FAULT));
}

#[test]
fn the_faults_alone_are_changed_and_only_once() {
    let (ram, mode, hidden) = booted();
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    let faults = [0, 5, 6, 7, 8, 11, 12, 13, 14, 16, 17, 19];
    for vector in 0..32 {
        let now = target(&ram, mode, vector).unwrap();
        assert_eq!(now != handler(vector), faults.contains(&vector), "{vector}");
        assert_eq!(end_of(&hidden, now), handler(vector));
    }
    let before = state(&ram, &hidden);
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    assert!(state(&ram, &hidden) == before, "the second call changes nothing");

    // The kernel sets a gate anew, and takes another away.
    let new = Gva(0xffff_ffff_8177_7000);
    put(&ram, 13, new);
    ram.store_u64(Gpa(IDT.0 + 6 * 16), 0).unwrap();
    install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
    let gate = target(&ram, mode, 13).unwrap();
    assert!(gate != new && end_of(&hidden, gate) == new);
    assert_eq!(target(&ram, mode, 6), None, "not present: passed over");
}

#[test]
fn an_error_leaves_every_gate_alone() {
    let (ram, mode, hidden) = booted();
    put(&ram, 19, Gva(0xffff_fffe_8120_0000));
    let before = state(&ram, &hidden);
    let far = install(&ram, &hidden, mode, IDT, LIMIT);
    assert!(matches!(far, Err(FixupError::Stub(_) | FixupError::Idt(_))), "{far:?}");
    assert!(state(&ram, &hidden) == before);
    // Same upper half, but no rel32 reaches it.
    put(&ram, 19, Gva(0xffff_ffff_0000_0000));
    let before = state(&ram, &hidden);
    let far = install(&ram, &hidden, mode, IDT, LIMIT);
    assert!(matches!(far, Err(FixupError::Stub(StubError::Assemble(_)))), "{far:?}");
    assert!(state(&ram, &hidden) == before);

    let (ram, mode) = guest();
    let unmapped = HiddenMemory::new(&ram, 1).unwrap();
    let refused = install(&ram, &unmapped, mode, IDT, LIMIT);
    assert!(matches!(refused, Err(FixupError::Stub(StubError::NotMapped))));
}

#[test]
fn stubs_stand_one_behind_the_other_in_either_order() {
    let assist = |ram: &GuestRam, hidden: &HiddenMemory| {
        let mut sregs = kvm_bindings::kvm_sregs { cr3: CR3, cr4: 1 << 5, ..Default::default() };
        (sregs.cr0, sregs.efer) = (1 << 31, 1 << 10);
        (sregs.idt.base, sregs.idt.limit) = (IDT.0, LIMIT);
        let quirk = SoftwareKvm { syscall_faults: true, host_cpuid: false };
        quirk.install_assist(ram, hidden, &sregs, LSTAR).unwrap();
    };
    for assist_first in [true, false] {
        let (ram, mode, hidden) = booted();
        let fixup = || install(&ram, &hidden, mode, IDT, LIMIT).unwrap();
        if assist_first {
            assist(&ram, &hidden);
            fixup();
        } else {
            fixup();
            assist(&ram, &hidden);
        }
        let front = target(&ram, mode, PAGE_FAULT).unwrap();
        for stub in [Stub::SystemCall, Stub::Fault(PAGE_FAULT), Stub::Load(PAGE_FAULT)] {
            assert!(Way::from(&hidden, front).passes(stub), "{stub:?}");
        }
        assert!(!Way::from(&hidden, front).passes(Stub::Fault(13)));
        assert_eq!(end_of(&hidden, front), handler(PAGE_FAULT));
        let before = state(&ram, &hidden);
        assist(&ram, &hidden);
        fixup();
        assert!(state(&ram, &hidden) == before, "each finds itself there");
    }
}

#[test]
fn a_circle_made_by_the_guest_or_a_snapshot_ends() {
    let (_, _, hidden) = booted();
    let page = hidden.stub_window().unwrap();
    let own = page.gva.wrapping_add(64);
    hidden.write(page.offset + 64 + 56, &own.0.to_le_bytes());
    assert!(!Way::from(&hidden, own).passes(Stub::SystemCall));
}
