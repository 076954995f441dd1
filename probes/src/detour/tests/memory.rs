//! Values that are loaded from memory.

use super::*;
use crate::definition::{Comparison, Field, Filter, ValueType, Width};

#[test]
fn what_memory_gives_is_recorded_or_the_doorbell_is_rung() {
    let mut bench = Bench::new();
    let (memory, deref) = (bench.shared.0.borrow().memory(), |offset, base| Value::Deref {
        offset,
        base: Box::new(base),
        user: false,
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

/// Code that is probed at its beginning.
fn probed(bench: &Bench) -> Vec<u8> {
    leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff])
}

/// The text at RDI, and that at RSI plus 8, of a user.
fn two_texts() -> Vec<Value> {
    let text = |offset, register, user| Value::Text {
        offset,
        base: Box::new(Value::Register(register)),
        user,
    };
    let first = text(0, Register::Di, false);
    let second = text(8, Register::Si, true);
    vec![Value::Register(Register::R9), first, Value::Stack(0), second]
}

#[test]
fn texts_are_recorded_up_to_their_end() {
    let mut bench = Bench::new();
    let code = probed(&bench);
    let block = bench.block(1, BlockAction::record(two_texts()));
    let memory = bench.shared.0.borrow().memory();
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    bench.memory[0x3100..0x3108].copy_from_slice(&88_u64.to_le_bytes());
    // Bytes with the top bit, and of 1, are no end.
    let alphabet = [b'a', 0x80, 0x01, 0xff, 0x81, b' '];
    for (len, place) in (0..40).zip((0..8).cycle()) {
        let text: Vec<u8> = alphabet.into_iter().cycle().skip(len).take(len).collect();
        let at = 0x400 + place;
        bench.memory[at..at + len].copy_from_slice(&text);
        bench.memory[at + len] = 0;
        bench.memory[0x800..0x806].copy_from_slice(b"other\0");
        state.gpr[RDI] = memory + at as u64;
        state.gpr[RSI] = memory + 0x800 - 8;
        let [plain, detoured] = bench.both(&code, std::slice::from_ref(&block), &state);
        assert_eq!(plain.difference(&detoured), None);
        let found = bench.drain_texts(&[1, 3]);
        assert_eq!(found.len(), 1);
        assert_eq!([found[0].args[0], found[0].args[2]], [9, 88]);
        assert_eq!(found[0].in_bytes, [Some(text), Some(b"other".to_vec())]);
    }
}

#[test]
fn texts_that_are_long_or_not_there_ring_the_doorbell() {
    /// Most bytes of each of two texts, in a record of four values.
    const MOST: usize = 63 * 8;
    let mut bench = Bench::new();
    let code = probed(&bench);
    let blocks = [bench.block(1, BlockAction::record(two_texts()))];
    let (memory, home) = (bench.shared.0.borrow().memory(), Gva(bench.home()));
    let no_access = bench.shared.0.borrow().no_access();
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    let at = bench.shared.0.borrow().slot(0) + DETOUR;
    bench.shared.0.borrow_mut().write(home.0, &code);
    let region = Region::check(&code, home, &PLAIN).unwrap();
    let detour = Detour::assemble(&region, &blocks, &bench.env, Gva(at)).unwrap();
    let mut outcome = |bench: &mut Bench, [first, second]: [u64; 2]| {
        with_bell(&mut bench.shared.0.borrow_mut(), &detour, at, HLT);
        (state.gpr[RDI], state.gpr[RSI]) = (first, second - 8);
        let entry = at + detour.entry as u64;
        let outcome = bench.shared.0.borrow_mut().run(entry, &state, &bench.memory.clone());
        let found = bench.drain_texts(&[1, 3]);
        if outcome.exit == 0 {
            assert_eq!((&outcome.state.gpr, outcome.state.rflags), (&state.gpr, state.rflags));
        }
        (outcome.exit, found.first().map(|record| record.in_bytes[0].as_ref().map(Vec::len)))
    };
    let rings = (0, None);
    bench.memory[0x800] = 0;
    let short = memory + 0x800;
    // As long as there is room with the NUL, and longer.
    for (len, expected) in [(MOST - 1, (1, Some(Some(MOST - 1)))), (MOST, rings)] {
        bench.memory[0x400..0x400 + MOST + 8].fill(b'x');
        bench.memory[0x400 + len] = 0;
        bench.memory[0x800] = 0;
        assert_eq!(outcome(&mut bench, [memory + 0x400, short]), expected, "{len}");
    }
    // Up to the last word that is there, and beyond: the second one is read 8 bytes at a time.
    bench.memory[MEMORY_LEN - 8..].copy_from_slice(b"xxxxxxx\0");
    let last = memory + MEMORY_LEN as u64 - 8;
    assert_eq!(outcome(&mut bench, [last, short]), (1, Some(Some(7))));
    assert_eq!(outcome(&mut bench, [last + 1, short]), rings);
    assert_eq!(outcome(&mut bench, [no_access, short]), rings);
    assert_eq!(outcome(&mut bench, [short, no_access]), rings);
    // Not canonical, nor the kernel's memory; and a user's text in the kernel's half.
    for bad in [1 << 62, 1 << 63, u64::MAX - 7] {
        assert_eq!(outcome(&mut bench, [bad, short]), rings, "{bad:#x}");
        assert_eq!(outcome(&mut bench, [short, bad]), rings, "{bad:#x}");
    }
    assert_eq!(outcome(&mut bench, [short, short]), (1, Some(Some(0))));
}

/// Between the two times that a detour reads a text, its page is unmapped.
#[test]
fn a_text_that_goes_meanwhile_is_recorded_as_torn() {
    let mut bench = Bench::new();
    let code = probed(&bench);
    let blocks = [bench.block(1, BlockAction::record(two_texts()))];
    let (memory, home) = (bench.shared.0.borrow().memory(), Gva(bench.home()));
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    bench.shared.0.borrow_mut().write(home.0, &code);
    let region = Region::check(&code, home, &PLAIN).unwrap();
    let at = bench.shared.0.borrow().slot(0) + DETOUR;
    let mut detour = Detour::assemble(&region, &blocks, &bench.env, Gva(at)).unwrap();
    let load = exoprobe_guest::guarded_load::CODE;
    let loads: Vec<usize> = detour
        .bytes
        .windows(load.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == load)
        .map(|(at, _)| at)
        .collect();
    assert_eq!(loads.len(), 4, "each text is measured, and copied");
    // stc, and nops: as after a fault.
    detour.bytes[loads[2]..][..load.len()].copy_from_slice(&[0xf9, 0x90, 0x90, 0x90, 0x90]);
    bench.memory[0x400..0x414].copy_from_slice(b"of nineteen letters\0");
    bench.memory[0x800..0x806].copy_from_slice(b"other\0");
    (state.gpr[RDI], state.gpr[RSI]) = (memory + 0x400, memory + 0x800 - 8);
    bench.shared.0.borrow_mut().write(at, &detour.bytes);
    bench.shared.0.borrow_mut().write_jmp(home.0, at + detour.entry as u64);
    for _ in 0..50 {
        let outcome = bench.shared.0.borrow_mut().run(home.0, &state, &bench.memory.clone());
        assert_eq!(outcome.exit, 1);
        let found = bench.drain_texts(&[1, 3]);
        assert_eq!(found[0].in_bytes, [None, Some(b"other".to_vec())]);
        assert_eq!(found[0].args[0], 9);
    }
}

#[test]
fn two_probes_of_a_place_have_their_own_texts() {
    let mut bench = Bench::new();
    let code = probed(&bench);
    let memory = bench.shared.0.borrow().memory();
    let blocks = [1, 2].map(|number| bench.block(number, BlockAction::record(two_texts())));
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    bench.memory[0x400..0x414].copy_from_slice(b"of nineteen letters\0");
    bench.memory[0x800..0x806].copy_from_slice(b"other\0");
    (state.gpr[RDI], state.gpr[RSI]) = (memory + 0x400, memory + 0x800 - 8);
    let [plain, detoured] = bench.both(&code, &blocks, &state);
    assert_eq!(plain.difference(&detoured), None);
    let found = bench.drain_texts(&[1, 3]);
    assert_eq!(found.iter().map(|record| record.number).collect::<Vec<_>>(), [1, 2]);
    for record in found {
        let expected = [&b"of nineteen letters"[..], b"other"];
        assert_eq!(record.in_bytes, expected.map(|text| Some(text.to_vec())));
    }
}

/// A record with texts has at least a word for each, whatever its other values are.
#[test]
fn no_record_is_longer_than_the_longest() {
    let bench = Bench::new();
    let region = Region::check(&[0x90; 8], Gva(bench.home()), &PLAIN).unwrap();
    for texts in 1..=8 {
        for numbers in 110..=130 {
            let text = &two_texts()[1];
            let mut values = vec![Value::Constant(1); numbers];
            values.extend(std::iter::repeat_n(text, texts).cloned());
            let (count, block) = (values.len(), bench.block(1, BlockAction::record(values)));
            let made = Detour::assemble(&region, &[block], &bench.env, Gva(bench.home()));
            let has_room = count + texts <= 130;
            assert_eq!(made.is_ok(), has_room, "{texts} texts beside {numbers}: {made:?}");
            if let Err(error) = made {
                assert!(matches!(error, DetourError::NoRoom), "{error}");
            }
        }
    }
}

/// A filter of numbers refuses a hit before its text is read.
#[test]
fn a_refused_hit_reads_no_text() {
    let mut bench = Bench::new();
    let code = probed(&bench);
    let no_access = bench.shared.0.borrow().no_access();
    let field = Field::Arg { index: 0, kind: ValueType::Unsigned(Width::Quad) };
    let filter = Some(Filter::Test { field, comparison: Comparison::Equal, operand: 8 });
    let block = bench.block(1, BlockAction::Record { values: two_texts(), filter });
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    (state.gpr[RDI], state.gpr[RSI]) = (no_access, no_access);
    let [plain, detoured] = bench.both(&code, &[block], &state);
    assert_eq!(plain.difference(&detoured), None);
    assert_eq!(bench.drain_texts(&[1, 3]).len(), 0);
    assert_eq!(bench.shared.load(COUNTER + 8), 1, "counted as filtered");
}

#[test]
fn words_of_users_are_recorded_or_the_doorbell_is_rung() {
    let mut bench = Bench::new();
    let code = probed(&bench);
    let word = |base| Value::Deref { offset: 8, base: Box::new(base), user: true };
    let value = word(word(Value::Register(Register::Di)));
    let values =
        vec![value, Value::StackPointer, Value::Stack(0), Value::Register(Register::Flags)];
    let block = bench.block(1, BlockAction::record(values));
    let memory = bench.shared.0.borrow().memory();
    let mut state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
    // Not in the ranges that stay mapped.
    bench.memory[0x2008..0x2010].copy_from_slice(&(memory + 0x2100).to_le_bytes());
    bench.memory[0x2108..0x2110].copy_from_slice(&77_u64.to_le_bytes());
    bench.memory[0x3100..0x3108].copy_from_slice(&88_u64.to_le_bytes());
    state.gpr[RDI] = memory + 0x2000;
    let [plain, detoured] = bench.both(&code, std::slice::from_ref(&block), &state);
    assert_eq!(plain.difference(&detoured), None);
    assert_eq!(bench.drain()[0].args, [77, state.gpr[RSP], 88, state.rflags]);
    let no_access = bench.shared.0.borrow().no_access();
    for bad in [no_access, 1 << 63, 1 << 62, 0] {
        bench.memory[0x2008..0x2010].copy_from_slice(&bad.to_le_bytes());
        let region = Region::check(&code, Gva(bench.home()), &PLAIN).unwrap();
        let at = bench.shared.0.borrow().slot(0) + DETOUR;
        let blocks = std::slice::from_ref(&block);
        let detour = Detour::assemble(&region, blocks, &bench.env, Gva(at)).unwrap();
        let mut machine = bench.shared.0.borrow_mut();
        with_bell(&mut machine, &detour, at, HLT);
        let outcome = machine.run(at + detour.entry as u64, &state, &bench.memory);
        drop(machine);
        assert_eq!((&outcome.state.gpr, outcome.state.rflags), (&state.gpr, state.rflags));
        assert_eq!((outcome.exit, bench.drain().len()), (0, 0), "{bad:#x}");
    }
}

#[test]
fn a_displaced_instruction_that_looks_like_a_guarded_load_is_refused() {
    let bench = Bench::new();
    let home = Gva(bench.home());
    let code = [&[0x3e, 0x3e, 0x48, 0x8b, 0x07][..], &[0x90; 8]].concat();
    let region = Region::check(&code, home, &PLAIN).unwrap();
    let refused = Detour::assemble(&region, &[], &bench.env, home);
    assert!(matches!(refused, Err(DetourError::LooksGuarded)), "{refused:?}");
}
