//! Which instructions are emulated. The equivalence tests show that the results are right.

use exoprobe_guest::Gva;
use kvm_bindings::kvm_regs;

use super::super::Shadow;
use super::cases::{Aim, Case, Rng};
use super::machine::{Machine, RSP};
use super::{analyze, hex};

const AT: u64 = 0xffff_ffff_8100_0000;

fn is_emulated(bytes: &str) -> bool {
    analyze(&hex(bytes), Gva(AT)).expect("may be probed").emulation().is_some()
}

/// The registers after emulating `bytes` with `regs`.
fn after(bytes: &str, regs: kvm_regs) -> kvm_regs {
    let mut regs = regs;
    let displaced = analyze(&hex(bytes), Gva(AT)).expect("may be probed");
    let shadow = displaced.emulation().expect("is emulated").apply(&mut regs);
    assert_eq!(shadow, Shadow::None);
    regs
}

#[test]
fn the_emulated_forms() {
    let emulated = "90 / 66 90 / 48 90 / f3 90 / 0f 1f 00 / 66 0f 1f 44 00 00 / f3 0f 1e fa / \
        48 89 e5 / 48 8b ec / 89 c0 / b8 01 00 00 00 / 48 c7 c0 01 00 00 00 / c7 c0 01 00 00 00 / \
        48 b8 01 00 00 00 00 00 00 00 / 48 8d 05 00 00 00 00 / 8d 04 18 / 48 8d 04 25 00 00 00 00 / \
        48 83 ec 08 / 48 81 c4 00 01 00 00 / 31 c0 / 4d 31 c0 / eb 00 / e9 00 00 00 00 / 75 00 / \
        0f 8f 00 00 00 00 / e0 00 / e1 00 / e2 00 / e3 00 / 67 e3 00 / 2e 48 89 e5 / f8 / f9 / f5 / \
        fc / fd / fa / fb / 66 fa";
    for bytes in emulated.split('/') {
        assert!(is_emulated(bytes), "{bytes}");
    }
    let not = "55 / c3 / e8 00 00 00 00 / 48 8b 00 / 89 00 / c7 00 00 00 00 00 / 66 89 c0 / 88 c0 / \
        66 b8 00 00 / b0 00 / 67 8d 00 / 66 8d 00 / 48 83 c0 08 / 83 ec 08 / 31 d8 / 66 31 c0 / 30 c0 / \
        f3 48 89 e5 / f2 31 c0 / 41 90 / 8c d8 / 0f 1e c0 / 48 83 04 24 08 / ff e0 / 0f 0d c0 / \
        9c / 9d / f3 fa / f2 fc";
    for bytes in not.split('/') {
        assert!(!is_emulated(bytes), "{bytes}");
    }
}

#[test]
fn rip_goes_on_or_to_the_target() {
    let regs = kvm_regs { rip: 7, rflags: 0x46, rcx: 2, ..Default::default() };
    assert_eq!(after("90", regs).rip, AT + 1);
    assert_eq!(after("eb fe", regs).rip, AT);
    assert_eq!(after("e9 00 00 00 80", regs).rip, AT + 5 - 0x8000_0000);
    assert_eq!(after("74 10", regs).rip, AT + 0x12);
    assert_eq!(after("75 10", regs).rip, AT + 2);
    assert_eq!(after("e2 10", regs).rip, AT + 0x12);
    assert_eq!(after("e0 10", regs).rip, AT + 2);
    let next = after("48 8d 05 f8 0f 00 00", regs);
    assert_eq!((next.rax, next.rip), (AT + 0xfff, AT + 7));
    assert_eq!(after("8d 05 f9 0f 00 00", regs).rax, 0x8100_0fff);
}

#[test]
fn the_resume_flag_ends_and_other_flags_stay() {
    let flags = 0x3f_7fd7 | 1 << 16;
    for bytes in ["90", "48 89 e5", "eb 00", "48 8d 00", "e2 00"] {
        let regs = kvm_regs { rflags: flags, ..Default::default() };
        assert_eq!(after(bytes, regs).rflags, flags & !(1 << 16), "{bytes}");
    }
    let regs = kvm_regs { rflags: flags, ..Default::default() };
    assert_eq!(after("31 c0", regs).rflags & !0x8d5, flags & !(0x8d5 | 1 << 16));
}

#[test]
fn interrupts_go_off_and_on() {
    const IF: u64 = 1 << 9;
    let sti = analyze(&[0xfb], Gva(AT)).expect("may be probed");
    let sti = sti.emulation().expect("is emulated");
    let cli = analyze(&[0xfa], Gva(AT)).expect("may be probed");
    let cli = cli.emulation().expect("is emulated");
    let mut regs = kvm_regs { rflags: 0xcd7, ..Default::default() };
    // Off to on: not before the next instruction has run. What was on stays on at once.
    assert_eq!((sti.apply(&mut regs), regs.rflags), (Shadow::Sti, 0xcd7 | IF));
    assert_eq!((sti.apply(&mut regs), regs.rflags), (Shadow::None, 0xcd7 | IF));
    assert_eq!((cli.apply(&mut regs), regs.rflags), (Shadow::None, 0xcd7));
    assert_eq!((cli.apply(&mut regs), regs.rflags), (Shadow::None, 0xcd7));
    assert_eq!(regs.rip, AT + 1);
}

#[test]
fn stack_adjustments_set_flags_as_the_cpu_does() {
    let mut machine = Machine::new();
    let mut rng = Rng::new(3);
    let edges = [0, 1, 7, 8, 15, 16, 0x7f, 0x80, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
    let immediates = [0_i32, 1, -1, 8, 15, 16, 127, 128, -128, -129, i32::MAX, i32::MIN, 0x88];
    let (home, next) = (machine.home(), machine.home() + 7);
    for opcode in [0xc4, 0xec] {
        for immediate in immediates {
            let mut bytes = vec![0x48, 0x81, opcode];
            bytes.extend(immediate.to_le_bytes());
            let displaced = analyze(&bytes, Gva(home)).expect("may be probed");
            let mut case = Case::new(&machine, &bytes, &mut rng, Aim::Good).expect("runs");
            for edge in edges.into_iter().chain((0..40).map(|_| rng.next()).collect::<Vec<_>>()) {
                case.input.gpr[RSP] = edge;
                machine.write(home, &bytes);
                machine.write_jmp(next, machine.stub(1));
                let cpu = machine.run(home, &case.input, &case.memory).state;
                let rflags = case.input.rflags;
                let mut regs = kvm_regs { rsp: edge, rflags, ..Default::default() };
                let _ = displaced.emulation().expect("is emulated").apply(&mut regs);
                assert_eq!((regs.rsp, regs.rflags), (cpu.gpr[RSP], cpu.rflags), "{edge:#x}");
                assert_eq!(regs.rip, next);
            }
        }
    }
}
