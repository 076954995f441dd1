//! Arrays, whose bytes are copied into the record.

use super::*;

/// The end of [`Bench::memory`] and of what can be read.
const END: u64 = MEMORY_LEN as u64;
/// Most bytes of an array.
const MOST: u16 = 512;

fn array(register: Register, offset: i64, (bytes, user): (u16, bool)) -> Value {
    Value::Array { offset, base: Box::new(Value::Register(register)), user, bytes }
}

/// A probe at the beginning of a function, whose record has arrays.
struct Probed {
    bench: Bench,
    code: Vec<u8>,
    blocks: Vec<Block>,
    detour: Detour,
    state: State,
}

impl Probed {
    fn new(records: Vec<Vec<Value>>) -> Self {
        let bench = Bench::new();
        let code = leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff]);
        let block = |(number, values)| bench.block(number, BlockAction::record(values));
        let blocks: Vec<Block> = (1..).zip(records).map(block).collect();
        let region = Region::check(&code, Gva(bench.home()), &PLAIN).unwrap();
        let at = Gva(bench.shared.0.borrow().slot(0) + DETOUR);
        let detour = Detour::assemble(&region, &blocks, &bench.env, at).unwrap();
        assert!(detour.bytes.len() < 0xa00);
        let state = input(&bench.shared.0.borrow(), [9; 16], 0x41);
        let mut it = Self { bench, code, blocks, detour, state };
        // Each byte has another value than those near it.
        (0..).zip(&mut it.bench.memory).for_each(|(at, byte)| *byte = byte_at(at));
        it
    }

    /// Hits it with these addresses in RDI and RSI. Returns its records; `None` if the doorbell
    /// rang, and everything is as it was.
    fn hit(&mut self, first: u64, second: u64) -> Option<Vec<GuestRecord>> {
        (self.state.gpr[RDI], self.state.gpr[RSI]) = (first, second);
        let (bench, blocks) = (&mut self.bench, &self.blocks);
        let (at, memory) = (bench.shared.0.borrow().slot(0) + DETOUR, bench.memory.clone());
        let (home, entry) = (bench.home(), at + self.detour.entry as u64);
        bench.shared.0.borrow_mut().write(home, &self.code);
        with_bell(&mut bench.shared.0.borrow_mut(), &self.detour, at, HLT);
        let outcome = bench.shared.0.borrow_mut().run(entry, &self.state, &memory);
        let shapes: Vec<_> =
            blocks.iter().map(|block| (block.task.values().len(), block.task.in_bytes())).collect();
        let found = bench.drain_shape(|number| {
            let (args, in_bytes) = &shapes[usize::from(number) - 1];
            RecordShape { args: *args, in_bytes }
        });
        if outcome.exit == 0 {
            let now = (&outcome.state.gpr, outcome.state.rflags);
            assert_eq!(now, (&self.state.gpr, self.state.rflags));
            assert!(found.is_empty());
            return None;
        }
        let [plain, detoured] = bench.both(&self.code, blocks, &self.state);
        assert_eq!(plain.difference(&detoured), None);
        let again = bench.drain_shape(|number| {
            let (args, in_bytes) = &shapes[usize::from(number) - 1];
            RecordShape { args: *args, in_bytes }
        });
        assert_eq!(again.len(), found.len());
        Some(found)
    }

    fn memory(&self) -> u64 {
        self.bench.shared.0.borrow().memory()
    }
}

/// The value of each byte of the memory.
fn byte_at(at: u64) -> u8 {
    u8::try_from((at * 7 + at / 256) % 256).unwrap()
}

fn bytes_at(at: u64, len: u16) -> Option<Vec<u8>> {
    Some((at..at + u64::from(len)).map(byte_at).collect())
}

/// Returns true if an array of the kernel's is read within the guest: in the ranges of the bench,
/// or in the page of the stack.
fn is_mapped(at: u64, len: u16) -> bool {
    let end = at + u64::from(len.max(8));
    [(0x1000, 0x1800), (0, 0x100), (0x3000, 0x4000)].iter().any(|(a, b)| *a <= at && end <= *b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// The code records the same as the VMM would read at the hit, or the VMM reads it.
    #[test]
    fn arrays_are_recorded_as_they_are_in_memory(
        lens in [1..=MOST, 1..=240_u16], near in 0..3_usize,
        first in prop_oneof![0..=END + 8, END - 520..=END + 8],
        distance in -20_i64..=20,
    ) {
        let [users, kernels] = lens;
        let values = vec![
            Value::Register(Register::R9),
            array(Register::Di, 0, (users, true)),
            Value::StackPointer,
            array(Register::Si, 24, (kernels, false)),
        ];
        let mut probed = Probed::new(vec![values]);
        // About an edge of what stays mapped; not where the detour's own words are.
        let edge = [0x1000_i64, 0x1800 - i64::from(kernels), 0x4000 - i64::from(kernels)][near];
        let second = u64::try_from(edge + distance).unwrap();
        let memory = probed.memory();
        let found = probed.hit(memory + first, memory + second - 24);
        let is_users_there = first + u64::from(users.max(8)) <= END;
        // The words of the detour are on the stack.
        let overlaps = |at: u64, len: u16| at < 0x3100 && at + u64::from(len) > 0x3000;
        prop_assume!(!overlaps(first, users));
        prop_assert_eq!(found.is_some(), is_users_there && is_mapped(second, kernels));
        if let Some(found) = found {
            let expected = [bytes_at(first, users), bytes_at(second, kernels)];
            prop_assert_eq!(&found[0].in_bytes[..], &expected[..]);
            prop_assert_eq!([found[0].args[0], found[0].args[2]], [9, probed.state.gpr[RSP]]);
        }
    }
}

#[test]
fn arrays_that_are_not_there_ring_the_doorbell() {
    for (bytes, user) in [(1, true), (8, true), (20, true), (512, true), (1, false), (20, false)] {
        let mut probed = Probed::new(vec![vec![array(Register::Di, 0, (bytes, user))]]);
        let memory = probed.memory();
        let no_access = memory + END;
        // Not canonical, in the other half, and at the ends of both; and of a user where an array
        // begins before memory that is not there.
        let bad = [no_access, no_access - 1, 0, 1 << 47, (1 << 47) - 8, 1 << 62, 1 << 63];
        let kernels = [!0, !7, !0xfff, !0 << 47].into_iter();
        for at in bad.into_iter().chain(kernels) {
            assert_eq!(probed.hit(at, 0), None, "{bytes} at {at:#x}");
        }
        let last = no_access - u64::from(bytes.max(8));
        let found = probed.hit(last, 0).expect("the last that are there");
        assert_eq!(found[0].in_bytes, [bytes_at(last - memory, bytes)]);
        assert_eq!(probed.hit(last + 1, 0), None, "the end of {bytes} bytes is not there");
    }
}

/// Offsets of the guarded loads.
fn loads(detour: &Detour) -> Vec<usize> {
    let load = exoprobe_guest::guarded_load::CODE;
    let places = detour.bytes.windows(load.len()).enumerate();
    places.filter(|(_, bytes)| *bytes == load).map(|(at, _)| at).collect()
}

/// Between the two times that a detour reads an array, its page is unmapped.
#[test]
fn an_array_that_goes_meanwhile_is_recorded_as_torn() {
    let values = || {
        vec![
            array(Register::Di, 0, (36, true)),
            Value::Text { offset: 0, base: Box::new(Value::Register(Register::Si)), user: true },
            array(Register::Di, 8, (5, true)),
        ]
    };
    let whole = Probed::new(vec![values()]).detour;
    let places = loads(&whole);
    assert_eq!(places.len(), 8, "two, one and one before; then the loop, the rest, and two");
    // stc, and nops: as after a fault. cmp al, 0x80, and nops: so in the third word.
    let (always, third) = ([0xf9, 0x90, 0x90, 0x90, 0x90], [0x3c, 0x80, 0x90, 0x90, 0x90]);
    for (place, bytes, torn) in
        [(4, always, 0), (4, third, 0), (5, always, 0), (6, always, 1), (7, always, 2)]
    {
        let mut probed = Probed::new(vec![values()]);
        let (memory, home) = (probed.memory(), probed.bench.home());
        probed.bench.memory[0x800..0x80d].copy_from_slice(b"twelve bytes\0");
        probed.detour.bytes[places[place]..][..bytes.len()].copy_from_slice(&bytes);
        (probed.state.gpr[RDI], probed.state.gpr[RSI]) = (memory + 0x4f0, memory + 0x800);
        let Probed { bench, code, detour, state, blocks } = &mut probed;
        let at = bench.shared.0.borrow().slot(0) + DETOUR;
        bench.shared.0.borrow_mut().write(home, code);
        bench.shared.0.borrow_mut().write(at, &detour.bytes);
        let in_bytes = blocks[0].task.in_bytes();
        // The records after it are whole.
        for _ in 0..50 {
            let entry = at + detour.entry as u64;
            let outcome = bench.shared.0.borrow_mut().run(entry, state, &bench.memory.clone());
            assert_eq!(outcome.exit, 1);
            let found = bench.drain_shape(|_| RecordShape { args: 3, in_bytes: &in_bytes });
            let mut expected =
                vec![bytes_at(0x4f0, 36), Some(b"twelve bytes".to_vec()), bytes_at(0x4f8, 5)];
            expected[torn] = None;
            assert_eq!(found[0].in_bytes, expected, "{place} {bytes:x?}");
        }
    }
}

#[test]
fn two_probes_of_a_place_have_their_own_arrays() {
    let text =
        Value::Text { offset: 0, base: Box::new(Value::Register(Register::Si)), user: false };
    let mut probed = Probed::new(vec![
        vec![array(Register::Di, 0, (10, true)), text.clone()],
        vec![text, array(Register::Di, 16, (16, false)), array(Register::Di, 3, (3, true))],
    ]);
    let memory = probed.memory();
    probed.bench.memory[0x800..0x806].copy_from_slice(b"other\0");
    let found = probed.hit(memory + 0x1200, memory + 0x800).unwrap();
    let other = || Some(b"other".to_vec());
    assert_eq!(found[0].in_bytes, [bytes_at(0x1200, 10), other()]);
    assert_eq!(found[1].in_bytes, [other(), bytes_at(0x1210, 16), bytes_at(0x1203, 3)]);
}

/// Arrays have room in a record beside its words, and texts what is left; the longest record fits.
#[test]
fn records_with_arrays_are_no_longer_than_the_longest() {
    let bench = Bench::new();
    let region = Region::check(&[0x90; 8], Gva(bench.home()), &PLAIN).unwrap();
    for arrays in 1..=3_usize {
        for bytes in [1, 8, 9, 500, 505, 512] {
            for (numbers, texts) in (0..=126_usize).flat_map(|n| [(n, 0), (n, 1)]) {
                let mut values = vec![Value::Constant(1); numbers];
                values.extend(std::iter::repeat_n(array(Register::Di, 0, (bytes, true)), arrays));
                let (base, user) = (Box::new(Value::Register(Register::Si)), true);
                values.extend(std::iter::repeat_n(Value::Text { offset: 0, base, user }, texts));
                let words = arrays * usize::from(bytes).div_ceil(8) + values.len() + texts;
                let block = bench.block(1, BlockAction::record(values));
                let made = Detour::assemble(&region, &[block], &bench.env, Gva(bench.home()));
                assert_eq!(made.is_ok(), words <= 130, "{arrays} of {bytes} beside {numbers}");
                assert!(!matches!(made, Err(ref error) if !matches!(error, DetourError::NoRoom)));
            }
        }
    }
    let mut probed = Probed::new(vec![vec![array(Register::Di, 0, (MOST, true)); 2]]);
    let memory = probed.memory();
    for _ in 0..10 {
        let found = probed.hit(memory + 0x1000, 0).unwrap();
        assert_eq!(found[0].in_bytes, [bytes_at(0x1000, MOST), bytes_at(0x1000, MOST)]);
    }
}

/// A text has the room that arrays leave.
#[test]
fn texts_beside_arrays_are_shorter() {
    /// Bytes of a record that two words and an array leave.
    const ROOM: usize = (130 - 2) * 8 - MOST as usize;
    let (base, user) = (Box::new(Value::Register(Register::Si)), true);
    let text = Value::Text { offset: 0, base, user };
    let mut probed = Probed::new(vec![vec![text, array(Register::Di, 0, (MOST, true))]]);
    let memory = probed.memory();
    probed.bench.memory[0x800..0x800 + ROOM].fill(b'x');
    probed.bench.memory[0x800 + ROOM - 1] = 0;
    let found = probed.hit(memory + 0x1000, memory + 0x800).unwrap();
    assert_eq!(found[0].in_bytes, [Some(vec![b'x'; ROOM - 1]), bytes_at(0x1000, MOST)]);
    probed.bench.memory[0x800 + ROOM - 1] = b'x';
    assert_eq!(probed.hit(memory + 0x1000, memory + 0x800), None);
}

/// A ring with too little room for an array loses the record whole.
#[test]
fn a_full_ring_loses_arrays_and_counts_them() {
    let mut probed = Probed::new(vec![vec![array(Register::Di, 0, (500, true))]]);
    probed.state.gpr[RDI] = probed.memory() + 0x1000;
    let Probed { bench, code, blocks, state, .. } = &mut probed;
    for _ in 0..10 {
        let [plain, detoured] = bench.both(code, blocks, state);
        assert_eq!(plain.difference(&detoured), None);
    }
    let in_bytes = blocks[0].task.in_bytes();
    let found = bench.drain_shape(|_| RecordShape { args: 1, in_bytes: &in_bytes });
    // 32 bytes, a word, and 504 bytes.
    assert_eq!(found.len() as u64, LEN / 544);
    assert_eq!(bench.shared.load(COUNTER), 10 - LEN / 544);
    assert!(found.iter().all(|record| record.in_bytes == [bytes_at(0x1000, 500)]));
}
