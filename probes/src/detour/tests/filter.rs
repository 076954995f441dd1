//! Filters: the code has the value of the expression.

use super::*;
use crate::definition::{Comparison, Field, Filter, ValueType, Width};

/// Values that are in registers and in memory, which two blocks have one after the other.
fn values() -> Vec<Value> {
    vec![
        Value::Register(Register::Dx),
        Value::Stack(0),
        Value::Register(Register::R9),
        Value::Stack(1),
    ]
}

/// Numbers that are often equal, and some that 32 bits do not hold.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4_u64, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => Just(1 << 63),
        1 => any::<i8>().prop_map(|n| i64::from(n).cast_unsigned())]
}

fn kind() -> impl Strategy<Value = ValueType> {
    let numbers = Width::ALL
        .map(|width| [ValueType::Unsigned(width), ValueType::Signed(width), ValueType::Hex(width)]);
    prop_oneof![Just(ValueType::default()), prop::sample::select(numbers.concat())]
}

fn filter() -> impl Strategy<Value = Filter<Field>> {
    let arg = (0..4_usize, kind()).prop_map(|(index, kind)| Field::Arg { index, kind });
    let field = prop_oneof![4 => arg, 1 => Just(Field::Pid), 1 => Just(Field::Cpu), 1 => number().prop_map(Field::Known)];
    let operand = prop_oneof![5 => number(), 1 => Just(0x111)];
    let test = (field, 0..Comparison::ALL.len(), operand).prop_map(|(field, which, operand)| {
        Filter::Test { field, comparison: Comparison::ALL[which], operand }
    });
    test.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|one| Filter::Not(Box::new(one))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::All),
            prop::collection::vec(inner, 2..4).prop_map(Filter::Any),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn hits_are_recorded_that_the_filter_lets_through(
        filters in [filter(), filter()], numbers in [number(), number(), number(), number()], flags: u64,
    ) {
        let mut bench = Bench::new();
        let [dx, r9, top, next] = numbers;
        let mut gpr = [7; 16];
        (gpr[2], gpr[9]) = (dx, r9);
        let state = input(&bench.shared.0.borrow(), gpr, flags);
        bench.memory[0x3100..0x3108].copy_from_slice(&top.to_le_bytes());
        bench.memory[0x3108..0x3110].copy_from_slice(&next.to_le_bytes());
        let code = leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff]);
        let blocks: Vec<Block> = (1..).zip(&filters).map(|(number, filter)| {
            bench.block(number, BlockAction::Record { values: values(), filter: Some(filter.clone()) })
        }).collect();
        let [plain, detoured] = bench.both(&code, &blocks, &state);
        prop_assert_eq!(plain.difference(&detoured), None);

        let args = [dx, top, r9, next];
        let holds = |filter: &Filter<Field>| filter.holds(&mut |field| match field {
            Field::Arg { index, .. } => Some(args[index]),
            Field::Pid => Some(0x111),
            Field::Cpu => Some(1),
            Field::Known(number) => Some(number),
            _ => None,
        });
        let expected: Vec<u16> =
            (1..).zip(&filters).filter(|(_, filter)| holds(filter)).map(|(n, _)| n).collect();
        let found = bench.drain();
        prop_assert!(found.iter().all(|record| record.args == args));
        prop_assert_eq!(found.iter().map(|record| record.number).collect::<Vec<_>>(), &expected[..]);
        let [lost, filtered] = [COUNTER, COUNTER + 8].map(|at| bench.shared.load(at));
        prop_assert_eq!((lost, filtered), (0, 2 - expected.len() as u64));
    }
}

#[test]
fn a_filter_takes_two_instructions_a_comparison() {
    let bench = Bench::new();
    let home = bench.home();
    let region = Region::check(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x90], Gva(home), &PLAIN).unwrap();
    let assemble = |filter: Option<Filter<Field>>| {
        let values = vec![Value::Register(Register::Di)];
        let blocks = [bench.block(1, BlockAction::Record { values, filter })];
        let detour = Detour::assemble(&region, &blocks, &bench.env, Gva(home + 0x100)).unwrap();
        instructions(&detour.bytes, detour.entry)
    };
    let field = Field::Arg { index: 0, kind: ValueType::default() };
    let test = Filter::Test { field, comparison: Comparison::Equal, operand: 5 };
    let both = Filter::All(vec![test.clone(), test]);
    assert_eq!(assemble(Some(both)), assemble(None) + 4);
}

#[test]
fn without_the_current_task_there_is_no_code_that_asks_for_it() {
    let mut bench = Bench::new();
    bench.env.current = None;
    let home = Gva(bench.home());
    let region = Region::check(&[0x90; 5], home, &PLAIN).unwrap();
    let filter = Filter::Test { field: Field::Pid, comparison: Comparison::Equal, operand: 1 };
    let blocks = [bench.block(1, BlockAction::Record { values: Vec::new(), filter: Some(filter) })];
    let refused = Detour::assemble(&region, &blocks, &bench.env, home);
    assert!(matches!(refused, Err(DetourError::NoTask)), "{refused:?}");
}

#[test]
fn a_kernel_for_one_cpu_has_the_first_only() {
    for (operand, recorded) in [(0, 1), (1, 0)] {
        let mut bench = Bench::new();
        bench.env.cpu = None;
        // The ring that is CPU 1's where there are several.
        bench.env.rings = bench.env.rings.wrapping_add(bench.env.stride.into());
        let state = input(&bench.shared.0.borrow(), [7; 16], 0);
        let code = leaving(&bench.shared.0.borrow(), vec![0x55, 0x48, 0x89, 0xe5, 0x85, 0xff]);
        let filter = Filter::Test { field: Field::Cpu, comparison: Comparison::Equal, operand };
        let task = BlockAction::Record { values: values(), filter: Some(filter) };
        let blocks = [bench.block(1, task)];
        let [plain, detoured] = bench.both(&code, &blocks, &state);
        assert_eq!(plain.difference(&detoured), None);
        assert_eq!(bench.drain().len(), recorded, "CPU == {operand}");
    }
}
