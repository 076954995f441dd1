//! Makes an encoded instruction safe to run here: gives its operands addresses inside the
//! machine's memory, and everything else random values.

use iced_x86::{CpuidFeature, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::super::decode::{Decoded, decode};
use super::machine::{MEMORY_LEN, Machine, RBP, RBX, RCX, RDI, RSI, RSP, State};
use exoprobe_guest::Gva;

/// CF PF AF ZF SF DF OF; neither TF nor AC, which would raise signals.
const RANDOM_FLAGS: u64 = 0xcd5;

/// Distance of the short branches' targets from the instruction, either way.
const SHORT: u64 = 0x40;
/// Bytes cleared around it.
const AROUND: usize = 4 * 0x40;

/// xorshift64*: reproducible from its seed.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[5]
    }

    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        let index = self.below(items.len() as u64);
        items[usize::try_from(index).expect("an index")]
    }

    /// A register value: any, or one at the edge of arithmetic.
    fn value(&mut self) -> u64 {
        let any = self.next();
        let edges = [0, 1, 2, 0x7f, 0x80, 0xff, 1 << 31, 1 << 32, (1 << 32) + 1, i64::MAX as u64];
        let edge = self.pick(&edges);
        self.pick(&[any, any, edge, edge.wrapping_neg(), any & 0xffff_ffff])
    }
}

/// Targets of an instruction's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// Memory that may be used.
    Good,
    /// Often memory that may not: another page, a page's end, an address that is none.
    Bad,
}

/// An instruction and what it runs with.
pub(super) struct Case {
    pub(super) bytes: Vec<u8>,
    pub(super) decoded: Decoded,
    pub(super) input: State,
    pub(super) memory: Vec<u8>,
}

/// Where control lands around an instruction of `len` bytes, with the exit stub it leads to.
fn landing_places(machine: &Machine, len: usize) -> [(u32, u64); 3] {
    let home = machine.home();
    [(1, home + len as u64), (2, home + SHORT), (3, home - SHORT)]
}

/// The exit that a run takes which left the instruction for `address`.
pub(super) fn exit_at(machine: &Machine, len: usize, address: u64) -> Option<u32> {
    let mut places = landing_places(machine, len).into_iter();
    places
        .find(|(exit, place)| address == *place || address == machine.stub(*exit))
        .map(|(exit, _)| exit)
}

/// Puts jumps to the exits around the instruction's home.
pub(super) fn install_exits(machine: &mut Machine, len: usize) {
    machine.write(machine.home() - 2 * SHORT, &[0xcc; AROUND]);
    for (exit, place) in landing_places(machine, len) {
        machine.write_jmp(place, machine.stub(exit));
    }
}

impl Case {
    /// A case for `bytes`, of which the branch distance, an absolute or a RIP-relative address may
    /// be changed; `None` if it cannot be run safely.
    pub(super) fn new(machine: &Machine, bytes: &[u8], rng: &mut Rng, aim: Aim) -> Option<Self> {
        let decoded = decode(bytes, Gva(machine.home())).ok()?;
        let mut case = Self {
            bytes: bytes[..decoded.insn.len()].to_vec(),
            decoded,
            input: State::new(),
            memory: (0..MEMORY_LEN / 8).flat_map(|_| rng.next().to_le_bytes()).collect(),
        };
        case.randomize(machine, rng);
        case.aim_stack(machine, rng, aim);
        case.aim_branch(machine, rng)?;
        let good = machine.memory() + 0x800 + rng.below(16) * 64;
        let address = if aim == Aim::Good { good } else { bad_address(machine, rng) };
        if case.insn().is_string_instruction() {
            case.aim_string(machine, rng, aim);
        } else {
            case.aim_memory(address, rng)?;
        }
        case.aim_target(machine)?;
        case.decoded = decode(&case.bytes, Gva(machine.home())).ok()?;
        (case.decoded.insn.len() == case.bytes.len()).then_some(case)
    }

    fn insn(&self) -> &Instruction {
        &self.decoded.insn
    }

    fn randomize(&mut self, machine: &Machine, rng: &mut Rng) {
        let state = &mut self.input;
        for register in &mut state.gpr {
            *register = rng.value();
        }
        state.rflags |= rng.next() & RANDOM_FLAGS;
        for (position, byte) in state.fx[32..416].iter_mut().enumerate() {
            // An x87 or MMX register has 10 bytes of its 16; FXSAVE stores the rest as zero.
            if position >= 128 || position % 16 < 10 {
                *byte = rng.byte();
            }
        }
        let insn = &self.decoded.insn;
        if insn.mnemonic() == Mnemonic::Xlatb {
            state.gpr[RBX] = machine.memory() + 0x800;
        }
        if insn.is_loop() || insn.is_loopcc() || insn.is_jcx_short() {
            state.gpr[RCX] = rng.pick(&[0, 1, 2, 1 << 32, (1 << 32) + 1, rng.0]);
        }
    }

    fn aim_string(&mut self, machine: &Machine, rng: &mut Rng, aim: Aim) {
        let gpr = &mut self.input.gpr;
        gpr[RCX] = rng.below(17);
        gpr[RSI] = machine.memory() + 0x400 + rng.below(64);
        gpr[RDI] = machine.memory() + 0x400 + rng.below(512);
        if aim == Aim::Bad {
            // Up to the page's end it goes on for a while.
            let bad = machine.no_access() - rng.below(64);
            gpr[rng.pick(&[RSI, RDI])] = bad;
        }
    }

    fn aim_stack(&mut self, machine: &Machine, rng: &mut Rng, aim: Aim) {
        if !uses_stack(self.insn()) {
            return;
        }
        // Half way up the upper half of the memory.
        let mut stack = machine.memory() + 0x3000 + rng.below(32) * 8;
        let pops_flags = matches!(self.insn().mnemonic(), Mnemonic::Popfq | Mnemonic::Popf);
        if aim == Aim::Bad && rng.below(2) == 0 {
            // Flags must be chosen with care, and are when they are in the memory.
            stack = if pops_flags { machine.no_access() - 1 } else { bad_address(machine, rng) };
        }
        self.input.gpr[RSP] = stack;
        if self.insn().mnemonic() == Mnemonic::Leave {
            self.input.gpr[RBP] = stack.wrapping_add(0x40);
        }
        if pops_flags {
            let flags = 0x202 | (rng.next() & RANDOM_FLAGS);
            self.store(machine, stack, flags);
        }
    }

    /// Puts `value` into memory, unless `address` is elsewhere.
    fn store(&mut self, machine: &Machine, address: u64, value: u64) {
        let offset = usize::try_from(address.wrapping_sub(machine.memory())).unwrap_or(usize::MAX);
        if let Some(word) = self.memory.get_mut(offset..offset.saturating_add(8)) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Overwrites the last `size` bytes of a field with `value`.
    fn patch(&mut self, offset: usize, size: usize, value: u64) {
        self.bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    fn aim_branch(&mut self, machine: &Machine, rng: &mut Rng) -> Option<()> {
        if self.insn().near_branch_target() == 0 {
            return Some(());
        }
        let size = self.decoded.offsets.immediate_size();
        let target = match size {
            1 => machine.home().wrapping_add(rng.pick(&[SHORT, SHORT.wrapping_neg()])),
            4 => machine.stub(rng.pick(&[2, 3])),
            _ => return None,
        };
        let distance = target.wrapping_sub(self.insn().next_ip());
        self.patch(self.decoded.offsets.immediate_offset(), size, distance);
        Some(())
    }

    /// Gives a memory operand this address.
    fn aim_memory(&mut self, address: u64, rng: &mut Rng) -> Option<()> {
        let insn = *self.insn();
        // NOP and LEA access nothing, so any address does.
        let accesses = !matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Lea);
        if !accesses || !insn.op_kinds().any(|kind| kind == OpKind::Memory) {
            return Some(());
        }
        // The bit offset of BT is a signed register: any value would reach far away.
        let bit_test =
            matches!(insn.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
        if bit_test && insn.op1_kind() == OpKind::Register {
            if insn.memory_index().full_register() == insn.op1_register().full_register() {
                return None;
            }
            self.input.gpr[insn.op1_register().number()] = rng.below(64);
        }
        let (base, index) = (insn.memory_base(), insn.memory_index());
        let displacement = insn.memory_displacement64();
        let offsets = self.decoded.offsets;
        if insn.is_ip_rel_memory_operand() {
            let distance = address.wrapping_sub(insn.next_ip());
            i32::try_from(distance.cast_signed()).ok()?;
            self.patch(offsets.displacement_offset(), 4, distance);
        } else if base == Register::None && index == Register::None {
            self.patch(offsets.displacement_offset(), offsets.displacement_size(), address);
        } else if base == Register::None {
            let distance = address.wrapping_sub(displacement);
            let scale = u64::from(insn.memory_index_scale());
            self.input.gpr[index.number()] =
                distance.is_multiple_of(scale).then(|| distance / scale)?;
        } else if base == Register::RSP && uses_stack(&insn) {
            let near = displacement.cast_signed().unsigned_abs() < 0x200;
            if index != Register::None {
                self.input.gpr[index.number()] = rng.below(8);
            }
            return near.then_some(());
        } else {
            if base.full_register() == index.full_register()
                || (uses_stack(&insn) && index.full_register() == Register::RSP)
                || (bit_test && insn.op1_register().full_register() == base.full_register())
            {
                return None;
            }
            let scaled = match index {
                Register::None => 0,
                _ => self.input.gpr[index.number()].wrapping_mul(insn.memory_index_scale().into()),
            };
            self.input.gpr[base.number()] = address.wrapping_sub(displacement).wrapping_sub(scaled);
        }
        Some(())
    }

    /// Makes the frame of a return to `target`.
    fn aim_return(&mut self, machine: &Machine, target: u64) {
        let stack = self.input.gpr[RSP];
        let (cs, ss) = selectors();
        let frame = match self.insn().mnemonic() {
            Mnemonic::Iretq => vec![target, cs, self.input.rflags, stack + 0x40, ss],
            // Without REX.W it pops 32 bits each.
            Mnemonic::Retf if self.bytes[0] != 0x48 => vec![target | cs << 32],
            Mnemonic::Retf => vec![target, cs],
            _ => vec![target],
        };
        for (place, value) in (0..).zip(frame) {
            self.store(machine, stack.wrapping_add(place * 8), value);
        }
    }

    /// Gives indirect branches and returns an exit stub to go to.
    fn aim_target(&mut self, machine: &Machine) -> Option<()> {
        let insn = *self.insn();
        let target = machine.stub(2);
        match insn.flow_control() {
            FlowControl::Return => self.aim_return(machine, target),
            FlowControl::IndirectBranch | FlowControl::IndirectCall => match insn.op0_kind() {
                OpKind::Register => self.input.gpr[insn.op0_register().number()] = target,
                _ => {
                    let aimed = decode(&self.bytes, Gva(machine.home())).ok()?.insn;
                    let address = aimed.virtual_address(0, 0, |register, _, _| {
                        Some(match register {
                            _ if register.is_segment_register() => 0,
                            _ => self.input.gpr[register.number()],
                        })
                    })?;
                    self.store(machine, address, target);
                }
            },
            _ => {}
        }
        Some(())
    }
}

/// An address at which an access faults, at least one that reaches far enough.
fn bad_address(machine: &Machine, rng: &mut Rng) -> u64 {
    let within = rng.below(0x100) * 8;
    let near_end = machine.no_access() - rng.below(16);
    // Non-canonical with 4- and 5-level paging.
    let none = (1 << 62) + within;
    rng.pick(&[machine.no_access() + within, machine.read_only() + within, near_end, none])
}

/// The segment selectors of user code here.
fn selectors() -> (u64, u64) {
    let (cs, ss): (u64, u64);
    // SAFETY: reads two registers, and changes nothing else.
    unsafe {
        core::arch::asm!("mov {}, cs", "mov {}, ss", out(reg) cs, out(reg) ss, options(nomem, nostack, preserves_flags))
    };
    (cs, ss)
}

fn uses_stack(insn: &Instruction) -> bool {
    insn.is_stack_instruction()
}

/// A random instruction of those that can run here: prefixes, opcode and operands are random
/// bytes.
pub(super) fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    while rng.below(4) == 0 && bytes.len() < 4 {
        bytes.push(rng.pick(&[0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x3e, 0x26, 0x36, 0xf0]));
    }
    if rng.below(10) < 6 {
        bytes.push(0x40 | (rng.byte() & 15));
    }
    match rng.below(16) {
        0..6 => bytes.push(0x0f),
        6 => bytes.extend([0x0f, 0x38]),
        7 => bytes.extend([0x0f, 0x3a]),
        8 => bytes.extend([0xc4, (rng.byte() & 0xe0) | 2]),
        _ => {}
    }
    bytes.push(rng.byte());
    let modrm = rng.byte();
    // Often an operand relative to RIP (SDM vol. 2, table 2-7): that is what a slot must rewrite.
    bytes.push(if rng.below(4) == 0 { (modrm & 0b00_111_000) | 0b101 } else { modrm });
    while bytes.len() < 18 {
        bytes.push(rng.byte());
    }
    bytes
}

/// True for instructions whose effects are the same each time and stay in registers and memory, or
/// are an exception (user mode gets #GP for what is privileged).
pub(super) fn is_runnable(insn: &Instruction) -> bool {
    let harmful = matches!(
        insn.mnemonic(),
        // They go far away, or leave without their selectors.
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Lss | Mnemonic::Lfs | Mnemonic::Lgs
            | Mnemonic::Retf | Mnemonic::Iretq
            // The host's kernel answers them.
            | Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw
            // Random flags might have TF.
            | Mnemonic::Popf | Mnemonic::Popfq
    );
    let segment = |register: Register| register.is_segment_register();
    let touches_segments = !insn.is_privileged()
        && (0..insn.op_count())
            .any(|i| insn.op_kind(i) == OpKind::Register && segment(insn.op_register(i)))
        || matches!(insn.memory_segment(), Register::FS | Register::GS);
    // #UD on some CPUs.
    let reserved = format!("{:?}", insn.code()).starts_with("Reservednop");
    !matches!(insn.flow_control(), FlowControl::Interrupt | FlowControl::Exception)
        && !reserved
        && !harmful
        && !touches_segments
        && insn.cpuid_features().iter().all(|feature| host_has(*feature))
}

fn host_has(feature: CpuidFeature) -> bool {
    match feature {
        CpuidFeature::INTEL8086
        | CpuidFeature::INTEL186
        | CpuidFeature::INTEL286
        | CpuidFeature::INTEL386
        | CpuidFeature::INTEL486
        | CpuidFeature::X64
        | CpuidFeature::MULTIBYTENOP
        | CpuidFeature::PAUSE
        | CpuidFeature::CMOV
        | CpuidFeature::CX8
        | CpuidFeature::MMX
        | CpuidFeature::SSE
        | CpuidFeature::SSE2 => true,
        CpuidFeature::SSE3 => is_x86_feature_detected!("sse3"),
        CpuidFeature::SSSE3 => is_x86_feature_detected!("ssse3"),
        CpuidFeature::SSE4_1 => is_x86_feature_detected!("sse4.1"),
        CpuidFeature::SSE4_2 => is_x86_feature_detected!("sse4.2"),
        CpuidFeature::POPCNT => is_x86_feature_detected!("popcnt"),
        CpuidFeature::LZCNT => is_x86_feature_detected!("lzcnt"),
        CpuidFeature::BMI1 => is_x86_feature_detected!("bmi1"),
        CpuidFeature::BMI2 => is_x86_feature_detected!("bmi2"),
        CpuidFeature::ADX => is_x86_feature_detected!("adx"),
        CpuidFeature::MOVBE => is_x86_feature_detected!("movbe"),
        CpuidFeature::CMPXCHG16B => is_x86_feature_detected!("cmpxchg16b"),
        _ => false,
    }
}
