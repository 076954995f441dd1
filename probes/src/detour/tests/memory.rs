//! Values that are loaded from memory.

use super::*;

#[test]
fn what_memory_gives_is_recorded_or_the_doorbell_is_rung() {
    let mut bench = Bench::new();
    let (memory, deref) = (bench.shared.0.borrow().memory(), |offset, base| Value::Deref {
        offset,
        base: Box::new(base),
    });
    bench.memory[0x1010..0x1018].copy_from_slice(&(memory + 0xf0).to_le_bytes());
    bench.memory[0xf8..0x100].copy_from_slice(&77_u64.to_le_bytes());
    bench.memory[0x3100..0x3108].copy_from_slice(&88_u64.to_le_bytes());
    let inner = deref(0x10, Value::Register(Register::Di));
    let values = vec![Value::Stack(0), deref(8, inner.clone()), Value::Fixed(Gva(memory)), inner];
    let block = bench.block(1, BlockAction::record(values));
    let code = leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff]);
    let mut state = input(&bench.shared.0.borrow(), [3; 16], 0x41);
    state.gpr[RDI] = memory + 0x1000;
    let blocks = [block];
    let [plain, detoured] = bench.both(&code, &blocks, &state);
    assert_eq!(plain.difference(&detoured), None);
    let found = bench.drain();
    assert_eq!(found[0].args, [88, 77, 0x5a5a_5a5a_5a5a_5a5a, memory + 0xf0]);
    // The page of the stack is there, to its last word.
    bench.memory[0x3ff8..0x4000].copy_from_slice(&(memory + 0xf0).to_le_bytes());
    state.gpr[RDI] = memory + 0x3ff8 - 0x10;
    let [plain, detoured] = bench.both(&code, &blocks, &state);
    assert_eq!(plain.difference(&detoured), None);
    assert_eq!(bench.drain()[0].args, [88, 77, 0x5a5a_5a5a_5a5a_5a5a, memory + 0xf0]);
    // If a word may not be mapped, all state is as it was before.
    let at = bench.shared.0.borrow().slot(0) + DETOUR;
    let home = Gva(bench.home());
    bench.shared.0.borrow_mut().write(home.0, &code);
    let region = Region::check(&code, home, &PLAIN).unwrap();
    let detour = Detour::assemble(&region, &blocks, &bench.env, Gva(at)).unwrap();
    with_bell(&mut bench.shared.0.borrow_mut(), &detour, at, HLT);
    let entry = at + detour.entry as u64;
    let rings = |bench: &mut Bench, state: &State| {
        let outcome = bench.shared.0.borrow_mut().run(entry, state, &bench.memory.clone());
        assert_eq!((&outcome.state.gpr, outcome.state.rflags), (&state.gpr, state.rflags));
        assert_eq!((outcome.exit, bench.drain().len()), (0, 0));
    };
    let beyond = [0x1000 + 0x7f1, 0x3ff9, 0x2fff, 0x400f].map(|offset| memory + offset - 0x10);
    for outside in beyond.into_iter().chain([0, u64::MAX, 1 << 63]) {
        state.gpr[RDI] = outside;
        rings(&mut bench, &state);
    }
    // The next one is not there; and the stack's page ends.
    state.gpr[RDI] = memory + 0x1000;
    bench.memory[0x1010] = 0xf1;
    rings(&mut bench, &state);
    bench.memory[0x1010] = 0xf0;
    state.gpr[RSP] = memory + 0x2ff9;
    rings(&mut bench, &state);
    // No engine answers: the code continues as without a probe.
    let mut machine = bench.shared.0.borrow_mut();
    let plain = machine.run(home.0, &state, &bench.memory);
    with_bell(&mut machine, &detour, at, NOP);
    machine.write_jmp(home.0, entry);
    let passed = machine.run(home.0, &state, &bench.memory);
    assert_eq!((plain.exit, plain.state.gpr), (passed.exit, passed.state.gpr));
    assert_eq!(plain.state.rflags, passed.state.rflags);
}
