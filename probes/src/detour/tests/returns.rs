//! Calls that are followed to their return.

use super::*;

/// A function that is called once, with a pool that follows its calls.
struct Called {
    bench: Bench,
    pool: PoolMemory,
    /// That of another probe.
    second: Option<PoolMemory>,
    /// Probes that record the entry, before and after those that follow the call.
    recorders: Vec<Block>,
    /// The return address of the call.
    behind: u64,
    returns: Detour,
}

impl Called {
    const FUNCTION: u64 = 0x40;
    /// push rbp; mov rbp, rsp; lea rax, [rdi+rsi]; mov rdi, rax; mov rdx, rax; pop rbp; ret
    const BODY: [u8; 16] = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x04, 0x37, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xc2, 0x5d,
        0xc3,
    ];
    /// Values of the entry that are kept: those of a register that the code does not touch, of one
    /// that it saves, and of memory.
    const KEPT: [Value; 3] =
        [Value::Register(Register::Di), Value::Register(Register::Dx), Value::Stack(1)];

    fn new(capacity: u32) -> Self {
        let bench = Bench::new();
        let (home, base) = (bench.home(), bench.shared.0.borrow().slot(0));
        let (pool, returns) = Self::pool(&bench, [POOL, RETURNS], capacity, Value::Entered);
        let mut machine = bench.shared.0.borrow_mut();
        with_bell(&mut machine, &returns, base + RETURNS, HLT);
        let call = [0xe8, u8::try_from(Self::FUNCTION - 5).unwrap(), 0, 0, 0];
        let code = leaving(&machine, call.to_vec());
        machine.write(home, &code);
        machine.write(home + Self::FUNCTION, &Self::BODY);
        drop(machine);
        Self { bench, pool, second: None, recorders: Vec::new(), behind: home + 5, returns }
    }

    /// A pool, and the code that its calls return to, at two offsets.
    fn pool(
        bench: &Bench,
        [pool, returns]: [u64; 2],
        capacity: u32,
        fifth: Value,
    ) -> (PoolMemory, Detour) {
        let base = bench.shared.0.borrow().slot(0);
        let values = vec![
            Value::ReturnAddress,
            Value::Register(Register::Ax),
            Value::StackPointer,
            Value::Stack(0),
            fifth,
            Value::Kept(2),
            Value::Kept(0),
            Value::Kept(1),
        ];
        let block = bench.block(RETURNS_BLOCK, BlockAction::record(values));
        let at = Gva(base + returns);
        let offset = pool;
        let pool = Pool { at: Gva(base + pool), capacity, kept: 3 };
        let code = Detour::assemble_returns(&block, pool, &bench.env, at).unwrap();
        assert!(code.bytes.len() < 0x600);
        let stubs = code.bytes.len() - usize::try_from(capacity).unwrap() * STUB_LEN;
        let pool = PoolMemory::new(&bench.shared, offset, pool, at.wrapping_add(stubs as u64));
        pool.set_enabled(&bench.shared, true);
        (pool, code)
    }

    /// Has another probe follow the calls, too.
    fn add(&mut self, capacity: u32) -> PoolMemory {
        let base = self.bench.shared.0.borrow().slot(0);
        let at = [POOL + 0x200, RETURNS + 0x600];
        let (pool, returns) = Self::pool(&self.bench, at, capacity, Value::Constant(2));
        with_bell(&mut self.bench.shared.0.borrow_mut(), &returns, base + at[1], HLT);
        self.second = Some(pool);
        pool
    }

    fn follow(&self) -> BlockAction {
        BlockAction::Follow { pool: self.pool.pool, kept: Self::KEPT.to_vec() }
    }

    fn follow_by_second(pool: PoolMemory) -> BlockAction {
        let kept = vec![Value::Stack(2), Value::Register(Register::Dx), Value::Stack(1)];
        BlockAction::Follow { pool: pool.pool, kept }
    }

    /// Calls it, in place or through its detour.
    fn call(&mut self, state: &State, detoured: bool) -> Outcome {
        let home = self.bench.home();
        let function = home + Self::FUNCTION;
        let at = self.bench.shared.0.borrow().slot(0) + DETOUR;
        let region = Region::check(&Self::BODY, Gva(function), &PLAIN).unwrap();
        let mut blocks = vec![self.bench.block(0, self.follow())];
        blocks.extend(self.second.map(|pool| self.bench.block(0, Self::follow_by_second(pool))));
        let (before, after) = self.recorders.split_at(self.recorders.len() / 2);
        let blocks = [before, &blocks, after].concat();
        let mut env = self.bench.env.clone();
        // The machine's own stubs are no trampolines.
        env.hidden = Mapped { start: Gva(at + POOL), len: 0x1000 };
        let detour = Detour::assemble(&region, &blocks, &env, Gva(at)).unwrap();
        let mut machine = self.bench.shared.0.borrow_mut();
        with_bell(&mut machine, &detour, at, HLT);
        machine.write(function, &Self::BODY);
        if detoured {
            machine.write_jmp(function, at + detour.entry as u64);
        }
        machine.run(home, state, &self.bench.memory)
    }

    fn state(&self) -> State {
        let mut gpr = std::array::from_fn(|i| i as u64 * 3 + 1);
        (gpr[RDI], gpr[RSI]) = (1000, 234);
        input(&self.bench.shared.0.borrow(), gpr, 0x41)
    }

    /// Calls it through its detour and returns the records. All other effects are as without.
    fn followed(&mut self) -> Vec<GuestRecord> {
        let state = self.state();
        let plain = self.call(&state, false);
        let detoured = self.call(&state, true);
        assert_eq!((plain.state.gpr, plain.exit), (detoured.state.gpr, detoured.exit));
        assert_eq!(plain.state.rflags, detoured.state.rflags);
        let end = usize::try_from(state.gpr[RSP] - self.bench.shared.0.borrow().memory()).unwrap();
        assert_eq!(plain.memory[end..], detoured.memory[end..]);
        self.bench.drain()
    }
}

#[test]
fn a_followed_call_returns_to_its_caller_and_tells_of_it() {
    let (mut called, mut last) = (Called::new(2), 0);
    for _ in 0..5 {
        let found = called.followed();
        assert_eq!(found.len(), 1);
        let stack = called.state().gpr[RSP];
        let above = 0x5a5a_5a5a_5a5a_5a5a;
        assert_eq!(found[0].args[..4], [called.behind, 1234, stack, above]);
        let entered = found[0].args[4];
        assert_eq!(found[0].args[5..], [above, 1000, called.state().gpr[RDX]], "of the entry");
        assert!(last < entered && entered < found[0].time, "{last} {entered} {}", found[0].time);
        last = found[0].time;
        assert_eq!((found[0].number, &*found[0].task.name()), (RETURNS_BLOCK, "a task's name"));
        assert_eq!(called.pool.active(&called.bench.shared), 0);
    }
    assert_eq!(called.pool.missed(&called.bench.shared), 0);
}

/// Each of them sees the true return address, and the words of the entry that are its own.
#[test]
fn a_call_that_two_probes_follow_returns_through_both() {
    let mut called = Called::new(2);
    let second = called.add(1);
    let stack = [11_u64, 22];
    called.bench.memory[0x3100..0x3110].copy_from_slice(stack.map(u64::to_le_bytes).as_flattened());
    let (behind, first) = (called.behind, called.pool);
    let (rdi, rdx) = (1000, called.state().gpr[RDX]);
    // In the order in which the records have them: the third, the first and the second.
    let kept = [[11, rdi, rdx], [11, 22, rdx]];
    let check = |record: &GuestRecord, which: usize| {
        assert_eq!((record.args[0], record.args[1]), (behind, 1234));
        assert_eq!(record.args[5..], kept[which], "{which}");
        assert_eq!(record.args[4] == 2, which == 1);
    };
    for _ in 0..3 {
        let found = called.followed();
        assert_eq!(found.len(), 2);
        check(&found[0], 1);
        check(&found[1], 0);
        assert!(found[1].args[4] < found[0].time, "when it began");
        let memory = &called.bench.shared;
        assert_eq!((first.active(memory), second.active(memory)), (0, 0));
    }
    // Others record the entry.
    for values in [[2, 1, 0, 2], [0, 2, 1, 0]] {
        let values = values.map(Value::Stack).to_vec();
        let block = called.bench.block(5, BlockAction::record(values));
        called.recorders.push(block);
    }
    let found = called.followed();
    assert_eq!(found.len(), 4);
    assert_eq!(found[0].args[..], [22, 11, behind, 22]);
    assert_eq!(found[1].args[..], [behind, 22, 11, behind]);
    check(&found[2], 1);
    check(&found[3], 0);
    called.recorders.clear();
    // One of them has no instance left.
    let elsewhere = FollowedCall { key: Gva(8), return_to: Gva(8), shows: Gva(8), entered: 0 };
    assert!(second.claim(&called.bench.shared, elsewhere).is_some());
    let found = called.followed();
    assert_eq!((found.len(), second.missed(&called.bench.shared)), (1, 1));
    check(&found[0], 0);
    second.release(&called.bench.shared, 0);
    first.set_enabled(&called.bench.shared, false);
    let found = called.followed();
    assert_eq!(found.len(), 1, "the other's is let go");
    check(&found[0], 1);
}

#[test]
fn a_call_without_an_instance_is_missed_and_one_whose_probe_is_off_is_let_go() {
    let mut called = Called::new(1);
    let elsewhere = FollowedCall { key: Gva(8), return_to: Gva(8), shows: Gva(8), entered: 0 };
    assert_eq!(called.pool.claim(&called.bench.shared, elsewhere), Some(0));
    assert!(called.followed().is_empty());
    assert_eq!(called.pool.missed(&called.bench.shared), 1);
    called.pool.release(&called.bench.shared, 0);
    assert_eq!(called.followed().len(), 1);
    called.pool.set_enabled(&called.bench.shared, false);
    assert!(called.followed().is_empty());
    let (pool, memory) = (called.pool, &called.bench.shared);
    assert_eq!((pool.active(memory), pool.missed(memory), memory.load(COUNTER)), (0, 1, 0));
}

#[test]
fn a_return_that_is_no_instances_rings_the_doorbell() {
    let mut called = Called::new(3);
    let state = called.state();
    let stub = called.pool.stub(1).0;
    let memory = called.bench.memory.clone();
    let outcome = called.bench.shared.0.borrow_mut().run(stub, &state, &memory);
    assert_eq!((outcome.exit, outcome.state.rflags), (0, state.rflags));
    let mut expected = state.gpr;
    expected[RSP] -= 8;
    assert_eq!(outcome.state.gpr, expected);
    let base = called.bench.shared.0.borrow().memory();
    let slot = usize::try_from(expected[RSP] - base).unwrap();
    let pushed = u64::from_le_bytes(outcome.memory[slot..slot + 8].try_into().unwrap());
    assert_eq!(called.pool.at(Gva(pushed)), Some(1), "the VMM sees which");
    assert!(called.returns.doorbell.is_some() && called.bench.drain().is_empty());
}

#[test]
fn a_word_of_the_entry_that_could_not_be_read_rings_the_doorbell() {
    let called = Called::new(2);
    let state = called.state();
    let key = Gva(state.gpr[RSP] - 8);
    let exit = called.bench.shared.0.borrow().stub(1);
    let call = FollowedCall { key, return_to: Gva(exit), shows: Gva(exit), entered: 0 };
    let memory = called.bench.memory.clone();
    for (word, rings) in [(None, true), (Some(5), false)] {
        let index = called.pool.claim(&called.bench.shared, call).unwrap();
        called.pool.keep(&called.bench.shared, index, [Some(3), word, Some(4)].into_iter());
        let stub = called.pool.stub(index).0;
        let outcome = called.bench.shared.0.borrow_mut().run(stub, &state, &memory);
        assert_eq!(outcome.exit, u32::from(!rings), "{word:?}");
        assert_eq!(called.pool.active(&called.bench.shared), u32::from(rings));
        called.pool.release(&called.bench.shared, index);
    }
}

/// As the first return that is left in a guest from a snapshot.
#[test]
fn a_return_that_nobody_answers_goes_on_to_where_it_leads() {
    let called = Called::new(2);
    let state = called.state();
    let mut machine = called.bench.shared.0.borrow_mut();
    let (base, exit) = (machine.slot(0), machine.stub(1));
    with_bell(&mut machine, &called.returns, base + RETURNS, NOP);
    drop(machine);
    // The key is another call's.
    let call = FollowedCall { key: Gva(8), return_to: Gva(exit), shows: Gva(8), entered: 0 };
    assert_eq!(called.pool.claim(&called.bench.shared, call), Some(0));
    let stub = called.pool.stub(0).0;
    let memory = called.bench.memory.clone();
    let outcome = called.bench.shared.0.borrow_mut().run(stub, &state, &memory);
    assert_eq!((outcome.exit, outcome.state.gpr), (1, state.gpr));
    assert_eq!(outcome.state.rflags, state.rflags);
}

#[test]
fn a_call_that_has_a_trampoline_already_rings_the_doorbell() {
    let called = Called::new(1);
    let home = called.bench.home();
    let at = called.bench.shared.0.borrow().slot(0) + DETOUR;
    let region = Region::check(&Called::BODY, Gva(home), &PLAIN).unwrap();
    let block = called.bench.block(0, called.follow());
    let detour = Detour::assemble(&region, &[block], &called.bench.env, Gva(at)).unwrap();
    let mut machine = called.bench.shared.0.borrow_mut();
    with_bell(&mut machine, &detour, at, HLT);
    let state = input(&machine, [9; 16], 0x10);
    let mut memory = vec![0; MEMORY_LEN];
    memory[0x3100..0x3108].copy_from_slice(&called.pool.stub(0).0.to_le_bytes());
    let outcome = machine.run(at + detour.entry as u64, &state, &memory);
    assert_eq!((outcome.exit, outcome.state.gpr), (0, state.gpr));
    drop(machine);
    assert_eq!(called.pool.active(&called.bench.shared), 0);
}
