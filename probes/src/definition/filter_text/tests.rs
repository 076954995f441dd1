//! Tests of the parser.

use exoprobe_introspect::SymbolTable;
use proptest::prelude::*;

use super::*;
use crate::definition::ProbeKind;

/// `a` is an unsigned number of 64 bits, `i` one of 32 with a sign, `s` text.
fn fields() -> FieldKinds {
    let number = |is_signed| FieldKind::Number { is_signed, is_quad: !is_signed };
    let all = [("a", number(false)), ("i", number(true)), ("s", FieldKind::Text)];
    let arguments = all.map(|(name, kind)| (name.to_owned(), kind)).into();
    let listing = "ffffffff81000000 T _text\nffffffff81000100 T vfs_read\nffffffff81000180 t twice\n\
        ffffffff81000200 T vfs_write\nffffffff81000300 t twice\nffffffff81000400 T _etext\n";
    let symbols = SymbolTable::from_system_map(listing).unwrap();
    FieldKinds::Known {
        probe: Some(ProbeKind::Kprobe),
        arguments,
        last_cpu: 0,
        symbols: Some(symbols),
    }
}

/// Checks identifiers and carets against those that Linux 6.12 gives for the same texts.
fn check(faults: &[(&str, &str, usize)]) {
    for (text, id, caret) in faults {
        let error = parse(text, &fields()).unwrap_err();
        assert_eq!((error.fault.id(), error.caret), (*id, *caret), "{text}: {error}");
    }
}

#[test]
fn faults_and_carets_are_the_kernels() {
    check(&[
        ("!", "NO_FILTER", 1),
        ("a == 1 &&", "INVALID_FILTER", 9),
        ("a == 1 || !", "INVALID_FILTER", 11),
        ("&& a == 5", "ERRNO", 0),
        ("(a == 1 && )", "ERRNO", 0),
        ("!= 1", "ERRNO", 0),
        ("  zz == 1", "FIELD_NOT_FOUND", 5),
        ("1 == a", "FIELD_NOT_FOUND", 2),
        ("a.ustrin ~ \"x\"", "INVALID_OP", 2),
        ("a", "INVALID_OP", 2),
        ("a = 5", "INVALID_OP", 3),
        ("a < \"x\"", "ILLEGAL_FIELD_OP", 5),
        ("s < \"x\"", "ILLEGAL_FIELD_OP", 5),
        ("a ~ 1", "ILLEGAL_FIELD_OP", 5),
        ("s ~ 1", "EXPECT_STRING", 5),
        ("comm == 1", "EXPECT_STRING", 9),
        ("a.ustring == 1", "EXPECT_STRING", 14),
        ("a == 'x'", "EXPECT_DIGIT", 6),
        ("s ~ x", "INVALID_VALUE", 5),
        ("a ~", "INVALID_VALUE", 4),
        ("a && a == 1", "INVALID_VALUE", 4),
        ("a == 08", "ILLEGAL_INTVAL", 6),
        ("a == -", "ILLEGAL_INTVAL", 6),
        ("a == 1x", "ILLEGAL_INTVAL", 6),
        ("i == 9223372036854775808", "ILLEGAL_INTVAL", 6),
        ("a == 12345678901234567890123", "ILLEGAL_INTVAL", 6),
        ("a == 123456789012345678901234", "OPERAND_TOO_LONG", 30),
        ("a == 1 a == 2", "TOO_MANY_PREDS", 7),
        ("a == 1 | a == 2", "TOO_MANY_PREDS", 7),
        ("a == 1 ()", "TOO_MANY_PREDS", 7),
        ("__probe_ip == x", "INVALID_VALUE", 15),
        ("__probe_ret_ip == 1", "FIELD_NOT_FOUND", 15),
        ("a == 0x10 || zz == 1 || s == x", "FIELD_NOT_FOUND", 16),
    ]);
    let long = format!("s == '{}'", "x".repeat(TEXT_MAX + 1));
    check(&[(&long, "OPERAND_TOO_LONG", long.len())]);
}

#[test]
fn faults_of_functions_and_cpus_are_the_kernels() {
    check(&[
        ("a.function == zz", "NO_FUNCTION", 17),
        ("a.function == ", "NO_FUNCTION", 15),
        ("a.function == 1", "NO_FUNCTION", 16),
        ("(a.function == vfs_read)", "NO_FUNCTION", 25),
        ("a.function != zz && zz == 1", "NO_FUNCTION", 17),
        ("a.function == vfs_read && zz == 1", "FIELD_NOT_FOUND", 29),
        ("a.function == 123456789012345678901234", "OPERAND_TOO_LONG", 39),
        ("s.function == vfs_read", "ILLEGAL_FIELD_OP", 15),
        ("common_type.function == vfs_read", "ILLEGAL_FIELD_OP", 25),
        ("a.function == 1x", "INVALID_VALUE", 17),
        ("a.function > 1", "INVALID_OP", 14),
        ("i.function == zz", "ILLEGAL_FIELD_OP", 15),
        ("CPU == CPUS", "MISSING_BRACE_OPEN", 13),
        ("CPU == CPUS{", "MISSING_BRACE_CLOSE", 13),
        ("CPU == CPUS{x}", "INVALID_CPULIST", 14),
        ("CPU == CPUS{}", "INVALID_CPULIST", 13),
        ("CPU == CPUS{1}", "INVALID_CPULIST", 14),
        ("s == CPUS{1}", "ILLEGAL_FIELD_OP", 6),
        ("a > CPUS{0}", "ILLEGAL_FIELD_OP", 5),
    ]);
}

#[test]
fn numbers_with_signs_texts_of_users_and_lists_are_taken() {
    for text in [
        "a == -1",
        "i == -1",
        "s !~ 'x'",
        "a.ustring == 'x'",
        "i == 9223372036854775807",
        "CPU & CPUS{0} && a == 1",
        "common_type == 1",
        "a.function == vfs_read && a.function != twice",
        "(a.function == 0xffffffff810001ff )",
        "__probe_ip.function != vfs_write",
    ] {
        parse(text, &fields()).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

#[test]
fn positions_are_those_of_faults() {
    for (text, fault, position) in [
        ("  ", FilterFault::Empty, 0),
        ("a", FilterFault::NoOperator, 1),
        ("a = 5", FilterFault::NoOperator, 2),
        ("a ~ x*", FilterFault::NoOperand, 4),
        ("a == 0x10000000000000000", FilterFault::WrongNumber, 5),
        ("a == -9223372036854775809", FilterFault::WrongNumber, 5),
        ("a == 5 &&", FilterFault::Incomplete, 9),
        ("a == 5 b == 6", FilterFault::NotJoined, 7),
        ("a == 1 && 5 == a", FilterFault::UnknownField, 10),
        ("a == 1 && ä == 5", FilterFault::NoField, 10),
        (".ustring ~ \"x\"", FilterFault::NoField, 0),
    ] {
        let error = parse(text, &FieldKinds::Unknown).unwrap_err();
        assert_eq!((error.fault, error.position), (fault, position), "{text}: {error}");
    }
}

#[test]
fn what_is_too_much_is_refused() {
    let fault = |text: &str| parse(text, &FieldKinds::Unknown).unwrap_err().fault;
    assert_eq!(fault(&vec!["a == 1"; TESTS_MAX + 1].join(" || ")), FilterFault::TooMany);
    let deep = format!("{}a == 1{}", "(".repeat(17), ")".repeat(17));
    assert_eq!(fault(&deep), FilterFault::TooDeep);
    let cpus = (0..17).map(|n| (2 * n).to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(fault(&format!("a & CPUS{{{cpus}}}")), FilterFault::TooMany);
    assert_eq!(fault(&format!("{}a == 1", "!".repeat(100_000))), FilterFault::TooDeep);
}

#[test]
fn functions_have_addresses_of_which_the_first_counts() {
    let FieldKinds::Known { symbols: Some(symbols), .. } = fields() else { unreachable!() };
    let named = |name: &str| FilterFunction::Named(name.into()).addresses(&symbols);
    let base = 0xffff_ffff_8100_0000_u64;
    assert_eq!(named("vfs_read"), Some(base + 0x100..base + 0x180));
    assert_eq!(named("twice"), Some(base + 0x180..base + 0x200));
    assert_eq!(named("thrice"), None);
    let at = |at| FilterFunction::At(at).addresses(&symbols);
    assert_eq!((at(base + 0x1ff), at(7)), (named("twice"), None));
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let number = ("[a-z_][a-z0-9_]{0,5}", 0..Comparison::ALL.len(), any::<u64>()).prop_map(
        |(field, which, operand)| Filter::Test {
            field,
            comparison: Comparison::ALL[which],
            operand,
        },
    );
    let text = ("[a-z_][a-z0-9_]{0,5}(\\.ustring)?", any::<[bool; 2]>(), "[^\"]{0,60}|[^']{0,60}")
        .prop_map(|(field, [glob, not], text)| Filter::Match {
            field,
            test: TextTest { glob, not, text },
        });
    let named = "[a-z_][a-z0-9_.]{0,5}".prop_map(|name| FilterFunction::Named(name.into()));
    let function = prop_oneof![named, any::<u64>().prop_map(FilterFunction::At)];
    let function = ("[a-z_][a-z0-9_]{0,5}", any::<bool>(), function)
        .prop_map(|(field, not, function)| Filter::Function { field, not, function });
    let test = prop_oneof![number, text, function];
    test.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|one| Filter::Not(Box::new(one))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::All),
            prop::collection::vec(inner, 2..4).prop_map(Filter::Any),
        ]
    })
}

fn tests(filter: &Filter) -> usize {
    match filter {
        Filter::Test { .. } | Filter::Match { .. } => 1,
        Filter::Function { .. } => 2,
        Filter::Not(inner) => tests(inner),
        Filter::All(all) | Filter::Any(all) => all.iter().map(tests).sum(),
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "[ -~]{0,40}|.{0,40}|[ai()!&|=~<'\"0-9 CPUS{}.function]{0,40}") {
        let _ = parse(&text, &FieldKinds::Unknown);
        let _ = parse(&text, &fields());
    }

    #[test]
    fn what_is_printed_parses_to_the_same(filter in any_filter()) {
        prop_assume!(tests(&filter) <= TESTS_MAX);
        prop_assert_eq!(parse(&filter.to_string(), &FieldKinds::Unknown).unwrap(), filter);
    }
}

#[test]
fn a_filter_is_shorter_than_a_page() {
    let of_len = |len: usize| format!("{:1$}", "a == 1", len).parse::<Filter>();
    assert!(of_len(FILTER_MAX - 1).is_ok());
    assert_eq!(of_len(FILTER_MAX).unwrap_err().id, "TOO_LONG");
}
