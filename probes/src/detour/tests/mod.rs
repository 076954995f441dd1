//! Detours' code, run natively: it has the same effect as the code that it replaces.

mod arrays;
mod filter;
mod memory;
mod returns;
mod targets;

use std::cell::RefCell;

use exoprobe_guest::Gva;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use proptest::prelude::*;

use super::ring::{GuestRecord, GuestRing, Words};
use super::*;
use crate::definition::{Register, Segment};
use crate::insn::Assurances;
use crate::insn::tests::machine::{MEMORY_LEN, Machine, Outcome, RDI, RDX, RSI, RSP, State};

/// Offsets after the place of slots.
const DETOUR: u64 = 0;
const COUNTER: u64 = 0xe00;
const CPU: u64 = 0xe10;
const CURRENT: u64 = 0xe18;
const TASK: u64 = 0xa00;
const RING: u64 = 0x1000;
const LEN: u64 = 2048;
const POOL: u64 = 0x2000;
const RETURNS: u64 = 0x2400;
/// Number of the block whose records are of returns.
const RETURNS_BLOCK: u16 = 7;
/// In the current task.
const PID: u32 = 0x3c8;
const COMM: u32 = 0x3d0;

/// Bytes below the stack pointer that detours may use.
const BELOW: usize = 256;

/// A text without special places, except for a branch to one address.
struct Plain {
    target: Option<Gva>,
}

const PLAIN: Plain = Plain { target: None };

impl TextFacts for Plain {
    fn assurances(&self) -> Assurances {
        Assurances::ALL
    }

    fn is_target(&self, at: Gva) -> bool {
        self.target == Some(at)
    }

    fn indirect_jump(&self, _: Gva) -> Option<(String, Gva)> {
        None
    }

    fn follows_call(&self, _: Gva) -> bool {
        false
    }

    fn is_reserved(&self, _: Gva) -> bool {
        false
    }

    fn may_fault(&self, _: Gva) -> bool {
        false
    }

    fn is_rewritten(&self, _: Gva, _: usize) -> bool {
        false
    }
}

struct Shared(RefCell<Machine>);

impl Words for Shared {
    fn load(&self, offset: u64) -> u64 {
        let machine = self.0.borrow();
        let bytes = machine.read(machine.slot(0) + offset, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn store(&self, offset: u64, word: u64) {
        let at = self.0.borrow().slot(0) + offset;
        self.0.borrow_mut().write(at, &word.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let now = self.load(offset);
        (now == current).then(|| self.store(offset, new)).ok_or(now)
    }
}

struct Bench {
    shared: Shared,
    ring: GuestRing,
    env: DetourEnv,
    memory: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let machine = Machine::new();
        let base = machine.slot(0);
        let shared = Shared(RefCell::new(machine));
        let ring = GuestRing::new(&shared, RING, LEN);
        // GS is 0 in a program, so that an offset is an address. CPU 1's ring is the one there is.
        let memory = shared.0.borrow().memory();
        let stride = 0x100;
        shared.store(CPU, 1);
        shared.store(CURRENT, base + TASK);
        shared.store(TASK + u64::from(PID), 0xffff_ffff_0000_0111);
        shared.store(TASK + u64::from(COMM), u64::from_le_bytes(*b"a task's"));
        shared.store(TASK + u64::from(COMM) + 8, u64::from_le_bytes(*b" name\0\0\0"));
        let env = DetourEnv {
            rings: Gva(base + RING - u64::from(stride)),
            stride,
            mask: u32::try_from(LEN - 1).unwrap(),
            cpu: Some(Gva(base + CPU)),
            current: Some(Current { task: Gva(base + CURRENT), pid: PID, comm: COMM }),
            mapped: vec![
                Mapped { start: Gva(memory + 0x1000), len: 0x800 },
                Mapped { start: Gva(memory), len: 0x100 },
            ],
            hidden: Mapped { start: Gva(base), len: 0x3000 },
            guards_loads: true,
            // In a program AC makes loads fault that are not aligned, and `cli` is not allowed.
            in_kernel: false,
        };
        Self { shared, ring, env, memory: vec![0x5a; MEMORY_LEN] }
    }

    fn home(&self) -> u64 {
        self.shared.0.borrow().home()
    }

    fn block(&self, number: u16, task: BlockAction) -> Block {
        let counter = Gva(self.shared.0.borrow().slot(0) + COUNTER);
        Block { number, counter, task }
    }

    /// Runs `code`, which ends by leaving: as it is, and with its beginning in a detour.
    fn both(&mut self, code: &[u8], blocks: &[Block], input: &State) -> [Outcome; 2] {
        let (home, memory) = (self.home(), self.memory.clone());
        let mut machine = self.shared.0.borrow_mut();
        machine.write(home, code);
        let plain = machine.run(home, input, &memory);
        let region = Region::check(code, Gva(home), &PLAIN).unwrap();
        let at = machine.slot(0) + DETOUR;
        let detour = Detour::assemble(&region, blocks, &self.env, Gva(at)).unwrap();
        assert!(detour.bytes.len() < 0xa00);
        machine.write(at, &detour.bytes);
        machine.write_jmp(home, at + detour.entry as u64);
        let detoured = machine.run(home, input, &memory);
        // What the code itself did not write below its stack pointer is unused.
        let end = usize::try_from(input.gpr[RSP] - machine.memory()).unwrap();
        let mut outcomes = [plain, detoured];
        let [plain, detoured] =
            outcomes.each_mut().map(|outcome| &mut outcome.memory[end - BELOW..end]);
        for ((plain, detoured), before) in plain.iter().zip(detoured).zip(&memory[end - BELOW..end])
        {
            if plain == before {
                *detoured = *before;
            }
        }
        outcomes
    }

    fn drain(&mut self) -> Vec<GuestRecord> {
        self.drain_texts(&[])
    }

    /// Reads records of 4 values, 8 of returns, the given ones of which are texts.
    fn drain_texts(&mut self, texts: &[usize]) -> Vec<GuestRecord> {
        let in_bytes: Vec<InBytes> = texts.iter().map(|index| InBytes::text(*index)).collect();
        self.drain_shape(|number| {
            let args = if number == RETURNS_BLOCK { 8 } else { 4 };
            RecordShape { args, in_bytes: &in_bytes }
        })
    }

    fn drain_shape<'a>(&mut self, shape: impl Fn(u16) -> RecordShape<'a>) -> Vec<GuestRecord> {
        let mut records = Vec::new();
        let shape_of = |number| Some(shape(number));
        self.ring.drain(&self.shared, shape_of, |record| records.push(record)).unwrap();
        records
    }
}

fn input(machine: &Machine, gpr: [u64; 16], flags: u64) -> State {
    let mut state = State::new();
    state.gpr = gpr;
    state.gpr[RSP] = machine.memory() + 0x3100;
    state.rflags = 0x202 | flags & 0x8d5;
    state
}

/// `jmp rel32` from the end of `code` at `home` to where a run ends.
fn leaving(machine: &Machine, mut code: Vec<u8>) -> Vec<u8> {
    let end = machine.home() + code.len() as u64 + 5;
    let distance = machine.stub(1).wrapping_sub(end).cast_signed();
    code.push(0xe9);
    code.extend(i32::try_from(distance).unwrap().to_le_bytes());
    code.extend([0xcc; 16]);
    code
}

/// Instructions as they begin functions, and some that look at flags.
const INSNS: [&[u8]; 16] = [
    &[0x55],                               // push rbp
    &[0x48, 0x89, 0xe5],                   // mov rbp, rsp
    &[0x48, 0x83, 0xec, 0x20],             // sub rsp, 0x20
    &[0x85, 0xff],                         // test edi, edi
    &[0x48, 0x11, 0xd0],                   // adc rax, rdx
    &[0x0f, 0x92, 0xc1],                   // setc cl
    &[0x48, 0x0f, 0x44, 0xc2],             // cmovz rax, rdx
    &[0x9c],                               // pushf
    &[0x41, 0x57],                         // push r15
    &[0x31, 0xc0],                         // xor eax, eax
    &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0],    // lea rax, [rip+0x10]
    &[0xf3, 0x0f, 0x1e, 0xfa],             // endbr64
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],       // nop
    &[0xf9],                               // stc
    &[0x48, 0x89, 0x7c, 0x24, 0xf0],       // mov [rsp-0x10], rdi
    &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], // mov rax, imm64
];

const VALUES: [Register; 4] = [Register::Ax, Register::Dx, Register::Flags, Register::R9];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn nothing_of_the_probed_code_is_changed_and_the_record_is_what_it_began_with(
        picks in prop::collection::vec(0..INSNS.len(), 3..8), gpr: [u64; 16], flags: u64, count: bool,
    ) {
        let mut bench = Bench::new();
        let machine = bench.shared.0.borrow();
        let input = input(&machine, gpr, flags);
        let code: Vec<u8> = picks.iter().flat_map(|pick| INSNS[*pick]).copied().collect();
        // A word below the stack pointer is written by one of them, as no kernel does.
        let code = leaving(&machine, code);
        drop(machine);
        let record = BlockAction::record(VALUES.map(Value::Register).to_vec());
        let mut blocks = vec![bench.block(5, record)];
        if count {
            blocks.push(bench.block(6, BlockAction::Count));
        }
        let [plain, detoured] = bench.both(&code, &blocks, &input);
        prop_assert_eq!(plain.difference(&detoured), None);
        let found = bench.drain();
        prop_assert_eq!(found.len(), 1);
        let expected = [input.gpr[0], input.gpr[2], input.rflags, input.gpr[9]];
        prop_assert_eq!(&found[0].args[..], &expected[..]);
        prop_assert_eq!((found[0].number, found[0].task.pid), (5, 0x111));
        prop_assert_eq!(found[0].task.name(), "a task's name");
        prop_assert!(found[0].time > 0);
        prop_assert_eq!(bench.shared.load(COUNTER), u64::from(count));
    }
}

#[test]
fn every_register_can_be_recorded() {
    let mut bench = Bench::new();
    let input = input(&bench.shared.0.borrow(), std::array::from_fn(|i| i as u64 * 3 + 1), 0x41);
    let code = leaving(&bench.shared.0.borrow(), vec![0x0f, 0x1f, 0x44, 0x00, 0x00]);
    for register in Register::ALL {
        let values = [Value::Register(*register), Value::StackPointer];
        let values = values.into_iter().cycle().take(4).collect();
        let block = bench.block(1, BlockAction::record(values));
        let _ = bench.both(&code, &[block], &input);
        let regs = exoprobe_guest::kvm_regs {
            rax: input.gpr[0],
            rcx: input.gpr[1],
            rdx: input.gpr[2],
            rbx: input.gpr[3],
            rsp: input.gpr[4],
            rbp: input.gpr[5],
            rsi: input.gpr[6],
            rdi: input.gpr[7],
            r8: input.gpr[8],
            r9: input.gpr[9],
            r10: input.gpr[10],
            r11: input.gpr[11],
            r12: input.gpr[12],
            r13: input.gpr[13],
            r14: input.gpr[14],
            r15: input.gpr[15],
            rip: bench.home(),
            rflags: input.rflags,
        };
        let expected = [register.of(&regs), regs.rsp, register.of(&regs), regs.rsp];
        assert_eq!(bench.drain()[0].args, expected, "{register}");
    }
}

/// As in a program of Linux's (__USER_CS, __USER_DS).
#[test]
fn selectors_can_be_recorded() {
    let mut bench = Bench::new();
    let input = input(&bench.shared.0.borrow(), [u64::MAX; 16], 0);
    let code = leaving(&bench.shared.0.borrow(), vec![0x0f, 0x1f, 0x44, 0x00, 0x00]);
    let both = Segment::ALL.iter().cycle().map(|segment| Value::Segment(*segment));
    let values = both.take(4).collect();
    let block = bench.block(1, BlockAction::record(values));
    let [plain, detoured] = bench.both(&code, &[block], &input);
    assert_eq!(plain.difference(&detoured), None);
    assert_eq!(bench.drain()[0].args, [0x33, 0x2b, 0x33, 0x2b]);
}

#[test]
fn a_full_ring_loses_records_and_counts_them() {
    let mut bench = Bench::new();
    let state = input(&bench.shared.0.borrow(), [7; 16], 0);
    let code = leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff]);
    let block = bench.block(9, BlockAction::record(VALUES.map(Value::Register).to_vec()));
    let mut total = 0;
    for round in 1..=3 {
        for _ in 0..50 {
            let [plain, detoured] = bench.both(&code, std::slice::from_ref(&block), &state);
            assert_eq!(plain.difference(&detoured), None);
        }
        total += bench.drain().len() as u64;
        assert_eq!(total + bench.shared.load(COUNTER), 50 * round);
    }
    assert_eq!(total, 3 * (LEN / 64));
}

/// Instructions of a hit: the jmp in, and all up to the jmp back, with no branch taken.
fn instructions(bytes: &[u8], entry: usize) -> usize {
    let code = Decoder::with_ip(64, &bytes[entry..], 0x1000, DecoderOptions::NONE);
    1 + code.into_iter().take_while(|insn| insn.mnemonic() != Mnemonic::INVALID).count()
}

#[test]
fn a_hit_takes_no_more_instructions_than_asked() {
    let bench = Bench::new();
    let home = bench.home();
    // push rbp; mov rbp, rsp; push rbx: a function's beginning.
    let region = Region::check(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x90], Gva(home), &PLAIN).unwrap();
    let env = DetourEnv { in_kernel: true, ..bench.env.clone() };
    let assemble = |task: BlockAction| {
        let blocks = [bench.block(1, task)];
        let detour = Detour::assemble(&region, &blocks, &env, Gva(home + 0x100)).unwrap();
        instructions(&detour.bytes, detour.entry)
    };
    let args = [Register::Di, Register::Si, Register::Dx, Register::Cx];
    let record = assemble(BlockAction::record(args.map(Value::Register).to_vec()));
    let count = assemble(BlockAction::Count);
    assert!(record <= 45 && count <= 12, "{record} with a record, {count} without");
}

/// A task that is preempted in the middle of a record would delay the later ones of that CPU.
#[test]
fn interrupts_are_masked_from_before_a_record_until_after_it() {
    let bench = Bench::new();
    let region = Region::check(&[0x90; JMP_LEN], Gva(bench.home()), &PLAIN).unwrap();
    let env = DetourEnv { in_kernel: true, ..bench.env.clone() };
    let steps = |tasks: Vec<BlockAction>| -> Vec<Mnemonic> {
        let blocks: Vec<Block> = (1..).zip(tasks).map(|(n, task)| bench.block(n, task)).collect();
        let at = Gva(bench.home() + 0x100);
        let Detour { bytes, entry, .. } = Detour::assemble(&region, &blocks, &env, at).unwrap();
        let code = Decoder::with_ip(64, &bytes[entry..], 0x1000, DecoderOptions::NONE);
        let told = [Mnemonic::Pushfq, Mnemonic::Cli, Mnemonic::Cmpxchg, Mnemonic::Popfq];
        code.into_iter().map(|insn| insn.mnemonic()).filter(|m| told.contains(m)).collect()
    };
    let record = || BlockAction::record(vec![Value::Register(Register::Di)]);
    let loaded = BlockAction::record(vec![Value::Fixed(Gva(bench.home()))]);
    let of_two = [Mnemonic::Pushfq, Mnemonic::Cli, Mnemonic::Cmpxchg, Mnemonic::Cmpxchg];
    assert_eq!(steps(vec![record(), loaded]), [&of_two[..], &[Mnemonic::Popfq]].concat());
    assert_eq!(steps(vec![BlockAction::Count]), [Mnemonic::Pushfq, Mnemonic::Popfq]);
}

#[test]
fn each_rule_stops_what_it_is_for() {
    let at = Gva(0x1000);
    let check = |bytes: &[u8]| Region::check(bytes, at, &PLAIN);
    let prologue = [0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3];
    let region = check(&prologue).unwrap();
    assert_eq!((region.next(), region.covered().len()), (Some(Gva(0x1005)), JMP_LEN));
    assert_eq!(region.inner().collect::<Vec<_>>(), [Gva(0x1001), Gva(0x1004)]);
    assert!(matches!(check(&prologue[..4]), Err(Obstacle::TooShort { end: Gva(0x1004) })));
    for offset in 1..5 {
        let context = Plain { target: Some(at.wrapping_add(offset)) };
        let into = Region::check(&prologue, at, &context);
        assert!(matches!(into, Err(Obstacle::JumpInto { to }) if to.0 == 0x1000 + offset));
    }
    for target in [0x1000, 0x1005] {
        assert!(Region::check(&prologue, at, &Plain { target: Some(Gva(target)) }).is_ok());
    }
    // ret, and padding after it; ret, and something else.
    assert_eq!(check(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]).unwrap().next(), None);
    assert!(check(&[0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]).is_ok());
    assert!(matches!(check(&[0xc3, 0x55, 0x90, 0x90, 0x90]), Err(Obstacle::AfterEnd { .. })));
    assert!(matches!(check(&[0xe8, 0, 0, 0, 0, 0x90]), Err(Obstacle::Call { .. })));
    assert!(matches!(check(&[0x90, 0x0f, 0x0b, 0x90, 0x90]), Err(Obstacle::Instruction(_))));
}

/// Raises an exception that the machine catches.
const HLT: u8 = 0xf4;
/// An int3 that the guest steps over.
const NOP: u8 = 0x90;

/// A detour with another instruction in place of its doorbell's int3.
fn with_bell(machine: &mut Machine, detour: &Detour, at: u64, bell_insn: u8) {
    let mut bytes = detour.bytes.clone();
    let bell = detour.doorbell.expect("it may ring");
    assert_eq!(std::mem::replace(&mut bytes[bell], bell_insn), 0xcc);
    machine.write(at, &bytes);
}
