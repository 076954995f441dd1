//! Calls that are followed to their return.

use super::*;

/// A function that is called once, with a pool that follows its calls.
struct Called {
    bench: Bench,
    pool: PoolMemory,
    /// The return address of the call.
    behind: u64,
    returns: Detour,
}

impl Called {
    const FUNCTION: u64 = 0x40;
    /// push rbp; mov rbp, rsp; lea rax, [rdi+rsi]; pop rbp; ret
    const BODY: [u8; 10] = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x04, 0x37, 0x5d, 0xc3];

    fn new(capacity: u32) -> Self {
        let bench = Bench::new();
        let (home, base) = (bench.home(), bench.shared.0.borrow().slot(0));
        let at = Gva(base + POOL);
        let values = vec![
            Value::ReturnAddress,
            Value::Register(Register::Ax),
            Value::StackPointer,
            Value::Stack(0),
            Value::Entered,
        ];
        let block = bench.block(RETURNS_BLOCK, BlockAction::record(values));
        let pool = Pool { at, capacity };
        let env = &bench.env;
        let returns = Detour::assemble_returns(&block, pool, env, Gva(base + RETURNS)).unwrap();
        assert!(returns.bytes.len() < 0xc00);
        let stubs = returns.bytes.len() - usize::try_from(capacity).unwrap() * STUB_LEN;
        let stubs = Gva(base + RETURNS + stubs as u64);
        let pool = PoolMemory::new(&bench.shared, POOL, pool, stubs);
        pool.set_enabled(&bench.shared, true);
        let mut machine = bench.shared.0.borrow_mut();
        with_bell(&mut machine, &returns, base + RETURNS, HLT);
        let call = [0xe8, u8::try_from(Self::FUNCTION - 5).unwrap(), 0, 0, 0];
        let code = leaving(&machine, call.to_vec());
        machine.write(home, &code);
        machine.write(home + Self::FUNCTION, &Self::BODY);
        drop(machine);
        Self { bench, pool, behind: home + 5, returns }
    }

    /// Calls it, in place or through its detour.
    fn call(&mut self, state: &State, detoured: bool) -> Outcome {
        let home = self.bench.home();
        let function = home + Self::FUNCTION;
        let at = self.bench.shared.0.borrow().slot(0) + DETOUR;
        let region = Region::check(&Self::BODY, Gva(function), &PLAIN).unwrap();
        let block = self.bench.block(0, BlockAction::Follow(self.pool.pool));
        let mut env = self.bench.env.clone();
        // The machine's own stubs are no trampolines.
        env.hidden = Mapped { start: Gva(at + POOL), len: 0x1000 };
        let detour = Detour::assemble(&region, &[block], &env, Gva(at)).unwrap();
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
        assert!(last < entered && entered < found[0].time, "{last} {entered} {}", found[0].time);
        last = found[0].time;
        assert_eq!((found[0].number, &*found[0].task.name()), (RETURNS_BLOCK, "a task's name"));
        assert_eq!(called.pool.active(&called.bench.shared), 0);
    }
    assert_eq!(called.pool.missed(&called.bench.shared), 0);
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
    let block = called.bench.block(0, BlockAction::Follow(called.pool.pool));
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
