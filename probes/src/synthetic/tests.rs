//! Tests of definitions.

use proptest::prelude::*;

use super::*;

fn listed(line: &str) -> String {
    match parse_synthetic(line) {
        Ok(SyntheticCommand::Define(definition)) => definition.to_string(),
        other => panic!("{line}: {other:?}"),
    }
}

/// Lines of Linux 6.12's own tracer.
#[test]
fn definitions_are_listed_as_by_the_kernel() {
    let cases = [
        ("lat u64 lat; pid_t pid; char comm[16]", "lat\tu64 lat; pid_t pid; char[16] comm"),
        ("lat u64 lat pid_t pid", "lat\tu64 lat; pid_t pid"),
        ("lat u64 lat;pid_t pid;", "lat\tu64 lat; pid_t pid"),
        (" lat u64  a ;  u64   b", "lat\tu64 a; u64 b"),
        ("lat char[16] a; u64 a", "lat\tchar[16] a; u64 a"),
        ("lat char a[]; unsigned long b", "lat\tchar[] a; unsigned long b"),
        ("lat unsigned long[] a; long b[]", "lat\tunsigned long[] a; long[] b"),
        ("lat u64 common_pid; u64 comm", "lat\tu64 common_pid; u64 comm"),
    ];
    for (line, expected) in cases {
        assert_eq!(listed(line), expected, "{line}");
        assert_eq!(listed(expected), expected, "{line}");
    }
    for line in ["!lat", "!lat u64 a; u64 b"] {
        assert_eq!(parse_synthetic(line), Ok(SyntheticCommand::Delete("lat".to_owned())));
    }
}

#[test]
fn faults_of_definitions_have_their_place() {
    let cases = [
        ("", "INVALID_CMD", 0),
        ("lat", "INVALID_CMD", 0),
        ("lat;", "INVALID_CMD", 0),
        ("lat u64", "INVALID_CMD", 0),
        ("lat u65 a", "INVALID_TYPE", 4),
        ("lat u64 a; string b", "INVALID_TYPE", 11),
        ("lat u64[4] a", "INVALID_TYPE", 4),
        ("lat struct foo a", "INVALID_TYPE", 4),
        ("lat u64 a; unsigned long[4] b", "INVALID_TYPE", 11),
        ("lat u64 a-b", "BAD_NAME", 8),
        ("lat u64 1a", "BAD_NAME", 8),
        ("1at u64 a", "BAD_NAME", 0),
        ("s:lat u64 a", "BAD_NAME", 0),
        ("lat unsigned a", "INCOMPLETE_TYPE", 4),
        ("lat u64 a b", "INVALID_FIELD", 10),
        ("lat char a[257]", "INVALID_ARRAY_SPEC", 9),
        ("lat char a[x]", "INVALID_ARRAY_SPEC", 9),
        ("lat u64 a; char b[", "INVALID_ARRAY_SPEC", 16),
    ];
    for (line, id, position) in cases {
        let error = parse_synthetic(line).unwrap_err();
        assert_eq!((error.id, error.position), (id, position), "{line}: {error}");
    }
    let many = |number: usize| parse_synthetic(&format!("e {}", "u64 a;".repeat(number)));
    assert!(many(64).is_ok());
    assert_eq!(many(65).unwrap_err().id, "TOO_MANY_FIELDS");
}

/// Values that Linux 6.12 takes for a field of each type.
#[test]
fn types_take_the_values_that_the_kernel_takes() {
    let takes = |field: &str, value: &str, is_field: bool| {
        let [field, value] = [field, value].map(|name| TypeName::named(name).unwrap());
        field.takes(value, is_field)
    };
    for (field, taken) in [
        ("u64", vec!["u64"]),
        ("long", vec!["s64"]),
        ("s32", vec!["s32"]),
        ("pid_t", vec!["s32"]),
        ("int", vec!["s32"]),
        ("unsigned char", vec!["u8"]),
        ("bool", vec![]),
        ("char", vec![]),
    ] {
        for value in ["u64", "s64", "s32", "u8"] {
            assert_eq!(takes(field, value, false), taken.contains(&value), "{field} {value}");
        }
    }
    for (field, taken) in [
        ("u64", vec!["u64", "s64"]),
        ("s64", vec!["s64"]),
        ("u32", vec!["u32", "s32", "int"]),
        ("s32", vec!["s32"]),
        ("int", vec!["int"]),
        ("unsigned long", vec!["u64", "s64"]),
        ("pid_t", vec![]),
        ("gfp_t", vec!["u32", "s32", "int"]),
    ] {
        for value in ["u64", "s64", "u32", "s32", "int"] {
            assert_eq!(takes(field, value, true), taken.contains(&value), "{field} {value}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_a_definition_or_a_fault_within_it(
        line in "\\PC{0,40}|[ab1-]{0,3}( |;|u64|unsigned|char|a|b|\\[|\\]|1){0,12}"
    ) {
        match parse_synthetic(&line) {
            Err(error) => prop_assert!(error.position <= line.len()),
            Ok(SyntheticCommand::Define(found)) => {
                prop_assert_eq!(listed(&found.to_string()), found.to_string());
            }
            Ok(SyntheticCommand::Delete(_)) => {}
        }
    }
}
