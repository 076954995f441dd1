//! The displaced instruction computes what the original does: registers, flags, vector registers,
//! memory, and where it goes.

use std::collections::BTreeMap;

use exoprobe_guest::Gva;
use kvm_bindings::kvm_regs;

use super::super::{
    AssembleError, Displaced, Flow, SLOT_ADDRESS_OFFSET, SLOT_SIZE, Shadow, SlotKind,
};
use super::cases::{Aim, Case, Rng, exit_at, install_exits, is_runnable, random_bytes};
use super::machine::{Machine, Outcome, RSP, State};
use super::{analyze, hex};
use crate::insn::decode::decode;

/// Instructions as kernels have them. Operand addresses and branch distances are filled in.
const CORPUS: &str = "\
55 / 53 / 41 57 / 5d / 5b / 41 5f / 54 / 5c / 6a 10 / 68 78 56 34 92 / ff 75 08 / ff 74 24 08
8f 44 24 08 / 8f 04 24 / ff 35 00 00 00 00 / 8f 05 00 00 00 00 / 66 50 / 66 5b / c9
c8 20 00 00 / 9c / 9d / 66 9c / 66 9d / 48 89 e5 / 48 89 c7 / 89 d8 / 45 89 e0 / 48 8b ec / 8b c1
48 c7 c0 ff ff ff ff / 48 b8 88 77 66 55 44 33 22 11 / b8 ff ff ff ff / c7 c3 00 00 00 80
66 b8 34 12 / b0 7f / 88 c4 / 66 89 c8 / 48 89 24 25 00 00 00 00 / 48 a1 00 00 00 00 00 00 00 00
48 8b 05 00 00 00 00 / 48 89 05 00 00 00 00 / 8b 0d 00 00 00 00 / c6 05 00 00 00 00 01
48 c7 05 00 00 00 00 44 33 22 11 / 66 c7 05 00 00 00 00 22 11 / 81 3d 00 00 00 00 44 33 22 11
48 83 3d 00 00 00 00 05 / 80 3d 00 00 00 00 00 / 48 3b 05 00 00 00 00 / f6 05 00 00 00 00 20
48 03 1d 00 00 00 00 / 48 8d 05 00 00 00 00 / 8d 35 00 00 00 00 / 66 8d 05 00 00 00 00
48 0f 44 05 00 00 00 00 / 0f 95 05 00 00 00 00 / 48 0f af 05 00 00 00 00 / 0f b6 05 00 00 00 00
69 05 00 00 00 00 78 56 34 12 / 48 0f a4 05 00 00 00 00 07 / 48 0f ad 0d 00 00 00 00
0f b1 0d 00 00 00 00 / f0 48 0f b1 0d 00 00 00 00 / f0 48 0f c1 05 00 00 00 00
48 0f c1 05 00 00 00 00 / 48 0f ba 2d 00 00 00 00 21 / f0 0f ab 05 00 00 00 00
48 87 05 00 00 00 00 / f0 ff 05 00 00 00 00 / ff 0d 00 00 00 00 / 48 f7 1d 00 00 00 00
48 63 05 00 00 00 00 / 0f c7 0d 00 00 00 00 / f3 0f b8 05 00 00 00 00 / 0f 18 05 00 00 00 00
0f 10 05 00 00 00 00 / 66 0f 6f 05 00 00 00 00 / 66 48 0f 6e c0 / 2e 48 8b 05 00 00 00 00
48 8d 44 24 08 / 48 8d 04 c5 10 00 00 00 / 48 8d 44 18 f0 / 4c 8d 7c b5 80 / 8d 44 18 f0
48 8d 04 25 00 10 00 00 / 8d 40 01 / 48 8d 64 24 f8 / 67 48 8d 44 18 f0 / 67 8d 44 24 08
67 8d 04 25 00 10 00 00 / 66 8d 43 10 / 48 8d 04 64 / 4a 8d 04 e4 / 67 48 8d 04 85 10 00 00 00
48 83 ec 20 / 48 81 ec 88 00 00 00 / 48 83 c4 20 / 48 81 c4 88 00 00 00 / 48 83 c4 80
48 83 ec 80 / 48 83 ec 00 / 83 ec 10 / 48 83 e4 f0 / 48 83 c0 01 / 48 ff c8 / ff c1
31 c0 / 45 31 ff / 48 31 db / 33 c9 / 48 33 e4 / 31 d8 / 30 c0 / 66 31 c0 / 48 85 c0 / 84 c0
48 01 d8 / 48 29 d8 / 48 11 c8 / 19 c0 / 48 21 c8 / 09 d0 / 48 39 c8 / 3c 41 / 48 a9 00 00 00 01
48 c1 e0 04 / 48 d3 e8 / 48 c1 f8 3f / c1 c0 0d / 48 d1 d8 / 48 0f a4 c2 0c / 48 0f ac d0 20
48 f7 e3 / 48 f7 ef / 48 0f af c3 / 48 6b c0 37 / f7 d8 / f7 d0 / 48 98 / 48 99 / 99 / 0f c8
48 0f cb / 0f b6 c0 / 0f be d1 / 48 63 c7 / 0f b7 c9 / 0f 94 c0 / 0f 4f c1 / 48 0f bc c3
48 0f bd c3 / f3 48 0f bc c3 / 48 0f a3 c8 / 48 0f ab c8 / 0f ba e0 07 / 9e / 9f / f8 / f9 / f5
fc / fd / 86 c4 / 48 87 e0 / 0f c1 d8 / 0f b1 cb / 98 / 48 8b 00 / 48 8b 43 10 / 89 54 24 0c
48 89 44 24 18 / 4c 8b 6c f5 00 / 48 8b 14 c5 00 00 00 00 / 42 8b 04 a5 00 00 00 00
f0 48 0f ba 2f 03 / f0 48 83 44 24 fc 00 / 48 0f a3 03 / 0f ab 0b / 3e 48 8b 03 / 26 8b 03
a4 / 48 a5 / f3 a4 / f3 48 a5 / aa / f3 aa / f3 48 ab / ac / ae / f2 ae / f3 a6 / f3 48 a7 / 67 f3 a4
90 / 66 90 / 48 90 / 41 90 / f3 90 / 66 66 90 / 0f 1f 00 / 0f 1f 40 00 / 0f 1f 44 00 00
66 0f 1f 44 00 00 / 0f 1f 80 00 00 00 00 / 0f 1f 84 00 00 00 00 00 / 66 0f 1f 84 00 00 00 00 00
66 2e 0f 1f 84 00 00 00 00 00 / 66 66 2e 0f 1f 84 00 00 00 00 00 / f3 0f 1e fa / 0f 1f 05 00 00 00 00
0f ae e8 / 0f ae f0 / 0f ae f8 / f0 0f c7 0d 00 00 00 00 / 48 0f c3 05 00 00 00 00
f3 48 89 c8 / 66 48 89 c8 / 2e 48 89 c8 / f2 31 c0 / 2e 31 c0 / 67 48 83 ec 08
eb 00 / e9 00 00 00 00 / 2e e9 00 00 00 00 / e3 00 / 67 e3 00 / e2 00 / e1 00 / e0 00
67 e2 00 / 67 e1 00 / 67 e0 00 / 2e 74 00 / 3e 75 00 / 2e 0f 84 00 00 00 00 / 3e 0f 85 00 00 00 00
e8 00 00 00 00 / 2e e8 00 00 00 00 / 2e 2e e8 00 00 00 00 / 48 e8 00 00 00 00
ff d0 / ff d3 / 41 ff d3 / 41 ff d4 / 2e ff d0 / 3e ff d0 / 2e 41 ff d3 / 48 ff d0
ff 10 / ff 50 18 / ff 90 00 01 00 00 / 41 ff 14 24 / 41 ff 54 24 08 / ff 14 c5 00 00 00 00
ff 54 c3 08 / ff 15 00 00 00 00 / ff 14 25 00 00 00 00 / 2e ff 15 00 00 00 00 / 3e ff 50 18
ff 14 24 / ff 54 24 08 / ff 54 24 7c / ff 54 24 7f / ff 94 24 80 00 00 00 / 3e ff 54 24 08
ff e0 / 41 ff e3 / 3e ff e0 / 3e 41 ff e2 / ff 20 / ff 60 08 / ff 25 00 00 00 00 / ff 64 24 08
ff e4 / ff 24 c5 00 00 00 00 / 41 ff 24 c4 / c3 / f3 c3 / c2 10 00 / 2e c3
ff d4 / ff 54 24 f8 / ff 54 24 f0 / ff 54 cc 08 / ff 14 0c / 41 ff 14 24 / 65 ff 14 25 00 00 00 00
cb / 48 cb / ca 10 00 / 48 ca 10 00 / 48 cf / d7 / f0 48 0f c7 0d 00 00 00 00 / 48 f7 f1 / 48 f7 3b / f6 f1
0f 01 f8 / 48 0f 07 / 0f 07 / 0f 22 d8 / 0f 22 c0 / fa / fb / 0f 30 / 0f 32 / ec / 0f 01 38 / 0f 01 18 / 0f 06";

/// Instructions of the corpus, and every Jcc in both lengths.
fn corpus() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = CORPUS.lines().flat_map(|line| line.split('/')).map(hex).collect();
    for condition in 0..16 {
        all.push(vec![0x70 | condition, 0]);
        all.push(vec![0x0f, 0x80 | condition, 0, 0, 0, 0]);
    }
    all
}

/// How often each way was compared.
#[derive(Default, Debug)]
struct Counts {
    emulated: usize,
    boosted: usize,
    stepped: usize,
    faulted: usize,
    refused: BTreeMap<String, usize>,
}

fn kvm_regs_of(state: &State) -> kvm_regs {
    let g = &state.gpr;
    kvm_regs {
        rax: g[0],
        rcx: g[1],
        rdx: g[2],
        rbx: g[3],
        rsp: g[4],
        rbp: g[5],
        rsi: g[6],
        rdi: g[7],
        r8: g[8],
        r9: g[9],
        r10: g[10],
        r11: g[11],
        r12: g[12],
        r13: g[13],
        r14: g[14],
        r15: g[15],
        rip: u64::MAX,
        rflags: state.rflags,
    }
}

fn emulated(machine: &Machine, case: &Case, displaced: &Displaced) -> Option<Outcome> {
    let mut regs = kvm_regs_of(&case.input);
    let shadow = displaced.emulation()?.apply(&mut regs);
    assert_eq!(shadow, Shadow::None, "user mode cannot turn interrupts on");
    let mut state = case.input.clone();
    let r = &regs;
    state.gpr = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    state.rflags = regs.rflags;
    let exit = exit_at(machine, case.bytes.len(), regs.rip).expect("RIP is next or the target");
    Some(Outcome { state, exit, memory: case.memory.clone(), fault: None })
}

fn in_slot(
    machine: &mut Machine,
    case: &Case,
    displaced: &Displaced,
    kind: SlotKind,
    slot: u64,
) -> Option<Outcome> {
    let code = match displaced.assemble(kind, Gva(slot)) {
        Ok(code) => code,
        Err(AssembleError::EmulatedOnly) if displaced.emulation().is_some() => return None,
        Err(AssembleError::PostUnsupported(_)) if kind == SlotKind::Stepped => return None,
        Err(error) => panic!("{}: {error}", displaced.text()),
    };
    assert!(code.bytes.len() <= SLOT_ADDRESS_OFFSET);
    assert_eq!(code, displaced.assemble(kind, Gva(slot)).expect("it just worked"));
    machine.write(slot, &code.image(displaced.at()));
    if let Some(stop) = code.stop_offset {
        assert_eq!(code.bytes[usize::from(stop)], 0xcc);
        let stop = slot + u64::from(stop);
        // Whoever passes over the int3 goes on in the same way.
        machine.write(stop, &[0x90]);
        let passed_over = machine.run(slot, &case.input, &case.memory);
        // In place of the breakpoint exit: on to where the engine goes.
        machine.write_jmp(stop, displaced.after_step().0);
        let stepped = machine.run(slot, &case.input, &case.memory);
        let difference = stepped.difference(&passed_over);
        assert_eq!(difference, None, "{}: passed over, it differs", displaced.text());
        return Some(stepped);
    }
    Some(machine.run(slot, &case.input, &case.memory))
}

/// The instruction's own address as a fault handler finds it, which sees the address in the slot.
fn original_address(machine: &Machine, rip: u64) -> u64 {
    let slot = rip & !(SLOT_SIZE as u64 - 1);
    let address = machine.read(slot + SLOT_ADDRESS_OFFSET as u64, 8);
    u64::from_le_bytes(address.try_into().expect("8 bytes"))
}

/// Checks the addresses that faults show, and clears what is not compared.
fn settle(machine: &Machine, displaced: &Displaced, outcome: &mut Outcome) {
    if let Some(fault) = &outcome.fault {
        let rip = fault.rip;
        let original = if rip == machine.home() { rip } else { original_address(machine, rip) };
        assert_eq!(original, machine.home(), "{}: {fault:x?}", displaced.text());
    } else if matches!(displaced.kind, Flow::CallIndirect { .. }) {
        // Below the stack pointer nothing is kept; the displaced form leaves the target there.
        let below = outcome.state.gpr[RSP].wrapping_sub(8).wrapping_sub(machine.memory());
        let below = usize::try_from(below).unwrap_or(usize::MAX);
        if let Some(word) = outcome.memory.get_mut(below..below.saturating_add(8)) {
            word.fill(0);
        }
    }
}

/// Compares all ways in which `case` may run displaced with the original.
fn compare(machine: &mut Machine, case: &Case, slot: u64, counts: &mut Counts) {
    let home = machine.home();
    let displaced = match analyze(&case.bytes, Gva(home)) {
        Ok(displaced) => displaced,
        Err(refusal) => {
            *counts.refused.entry(refusal.to_string()).or_default() += 1;
            return;
        }
    };
    install_exits(machine, case.bytes.len());
    machine.write(home, &case.bytes);
    let mut original = machine.run(home, &case.input, &case.memory);
    settle(machine, &displaced, &mut original);
    // Nothing displaced may run any of the original: it is gone.
    machine.write(home, &vec![0xcc; case.bytes.len()]);
    let check = |machine: &Machine, way: &str, outcome: Option<Outcome>| {
        let Some(mut outcome) = outcome else { return 0 };
        settle(machine, &displaced, &mut outcome);
        if let Some(difference) = original.difference(&outcome) {
            panic!("{} {:x?}: {way} differs\n{difference}", displaced.text(), case.bytes);
        }
        1
    };
    if original.fault.is_some() {
        counts.faulted += 1;
    }
    // User mode may not turn interrupts on and off; else what is emulated cannot fault.
    let interrupts = matches!(case.bytes.last(), Some(0xfa | 0xfb)) && original.fault.is_some();
    if !interrupts {
        let emulated = emulated(machine, case, &displaced);
        counts.emulated += check(machine, "emulated", emulated);
    }
    let boosted = in_slot(machine, case, &displaced, SlotKind::Boosted, slot);
    counts.boosted += check(machine, "boosted", boosted);
    let stepped = in_slot(machine, case, &displaced, SlotKind::Stepped, slot);
    counts.stepped += check(machine, "stepped", stepped);
}

#[test]
fn corpus_runs_displaced_as_in_place() {
    let mut machine = Machine::new();
    let mut counts = Counts::default();
    let mut rng = Rng::new(1);
    for bytes in corpus() {
        let mut made = 0;
        for round in 0..400 {
            let aim = if round % 4 == 3 { Aim::Bad } else { Aim::Good };
            let Some(case) = Case::new(&machine, &bytes, &mut rng, aim) else { continue };
            let slot = machine.slot(rng.below(64));
            compare(&mut machine, &case, slot, &mut counts);
            made += 1;
            if made == 60 {
                break;
            }
        }
        assert_eq!(made, 60, "{bytes:x?} cannot be run");
    }
    assert!(counts.refused.is_empty(), "the corpus has no refused instruction: {counts:?}");
    assert!(counts.emulated > 60 * 100 && counts.boosted > 60 * 240 && counts.stepped > 60 * 190);
    assert!(counts.faulted > 60 * 25);
}

#[test]
fn random_instructions_run_displaced_as_in_place() {
    let mut machine = Machine::new();
    let mut counts = Counts::default();
    let mut rng = Rng::new(2);
    let mut made = 0;
    while made < 30_000 {
        let mut bytes = random_bytes(&mut rng);
        let Ok(decoded) = decode(&bytes, Gva(machine.home())) else { continue };
        if !is_runnable(&decoded.insn) {
            continue;
        }
        bytes.truncate(decoded.insn.len());
        let aim = rng.pick(&[Aim::Good, Aim::Good, Aim::Bad]);
        let Some(case) = Case::new(&machine, &bytes, &mut rng, aim) else { continue };
        if !is_runnable(&case.decoded.insn) {
            continue;
        }
        let slot = machine.slot(rng.below(64));
        compare(&mut machine, &case, slot, &mut counts);
        made += 1;
    }
    let refused: usize = counts.refused.values().sum();
    assert!(refused < made / 20, "{counts:?}");
    assert!(counts.emulated > made / 20 && counts.boosted > made / 2, "{counts:?}");
    assert!(counts.stepped > made / 2 && counts.faulted > made / 10, "{counts:?}");
}
