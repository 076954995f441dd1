//! Statements, numbers, casts, structs and the preprocessor.

use exoprobe_script::Datum;

use crate::common::{printed, reads};

/// Lines of a body's output, without the empty lines of maps that are not there.
fn lines(body: &str, hit: &[Datum<'_>]) -> Vec<String> {
    let text = printed(&format!("kprobe:vfs_read {{ {body} }}"), &[hit]);
    text.strip_suffix("\n\n").unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn return_ends_an_action() {
    let body = "print(1); if (arg0 > 1) { return; } print(2);";
    assert_eq!(lines(body, &[Datum::Int(1)]), ["1", "2"]);
    assert_eq!(lines(body, &[Datum::Int(2)]), ["1"]);
    for looped in [
        "$i = 0; while ($i < 5) { $i++; print($i); if ($i == 2) { return; } } print(9);",
        "for ($i : 1..5) { print($i); if ($i == 2) { return; } } print(9);",
        "$i = 0; unroll(5) { $i++; print($i); if ($i == 2) { return; } } print(9);",
    ] {
        assert_eq!(lines(looped, &[]), ["1", "2"], "{looped}");
    }
}

#[test]
fn numbers_have_units_of_time() {
    for (number, nanoseconds) in [
        ("5ns", "5"),
        ("7us", "7000"),
        ("100ms", "100000000"),
        ("2s", "2000000000"),
        ("1m", "60000000000"),
        ("1h", "3600000000000"),
        ("1d", "86400000000000"),
    ] {
        assert_eq!(lines(&format!("print({number});"), &[]), [nanoseconds]);
    }
}

#[test]
fn arrays_are_cast_to_numbers() {
    let words = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0x80];
    let hit = [Datum::Bytes(&words)];
    let words = "((struct file *)arg0)->words";
    assert_eq!(reads(&format!("@ = (uint64){words};")), ["16 bytes at arg0+40"]);
    assert_eq!(lines(&format!("print((uint64){words});"), &hit), ["8589934593"]);
    assert_eq!(lines(&format!("print((uint32){words});"), &hit), ["1"]);
    assert_eq!(lines("printf(\"%x\\n\", (uint32)pton(\"1.2.3.4\"));", &[]), ["4030201"]);
    let bytes = [Datum::Bytes(&[0xfe, 0xff])];
    assert_eq!(lines("print((int16)buf(arg0, 2));", &bytes), ["-2"]);
    assert_eq!(lines("print((uint16)buf(arg0, 2));", &bytes), ["65534"]);
}

#[test]
fn members_of_a_union_are_at_its_start() {
    let types =
        "union word { int whole; unsigned char bytes[4]; struct { short low; short high; }; };
        struct pair { long first; union { int a; long b; }; union word word; };";
    let printed = |body: &str, hit: &[Datum<'_>]| {
        printed(&format!("{types} kprobe:vfs_read {{ {body} }}"), &[hit])
    };
    let text = "$w = (union word *)arg0; print($w->whole); print($w->bytes[1]); print($w->high);";
    // Three reads, in the order of their use.
    let hit = [Datum::Int(u64::MAX), Datum::Int(7), Datum::Int(9)];
    assert_eq!(printed(text, &hit), "-1\n7\n9\n\n\n");
    // All of the union is one read.
    let hit = [Datum::Bytes(&[0x34, 0x12, 0xff, 0xff])];
    let text = "$w = *(union word *)arg0; print($w.low); print($w.high); print($w.bytes[1]); print(sizeof($w));";
    assert_eq!(printed(text, &hit), "4660\n-1\n18\n4\n\n\n");
    let text = "print(offsetof(struct pair, a)); print(offsetof(struct pair, b)); print(offsetof(struct pair, word.high)); print(sizeof(struct pair));";
    assert_eq!(printed(text, &[]), "8\n8\n18\n24\n\n\n");
}

#[test]
fn offsets_are_those_of_the_compiler() {
    for (of, offset) in [
        ("struct file, pad", "0"),
        ("struct file, in", "8"),
        ("struct file, in.b", "16"),
        ("struct file, words", "40"),
        ("struct file, s", "56"),
        ("*(struct file *)arg0, list", "24"),
        ("((struct file *)arg0)->in, b", "8"),
    ] {
        assert_eq!(lines(&format!("print(offsetof({of}));"), &[]), [offset], "{of}");
    }
}

#[test]
fn bit_fields_are_cut_from_their_number() {
    let body = "$f = (struct file *)arg0; print($f->low); print($f->high);";
    let number = 0b1000_1101;
    assert_eq!(lines(body, &[Datum::Int(number), Datum::Int(number)]), ["5", "-15"]);
}

#[test]
fn the_preprocessor_chooses_lines() {
    let text = "#include <linux/fs.h>
#include \"own.h\"
#pragma once
#define DEBUG
#define LIMIT (2 + 3)
#define NAME \"a name\"
#define TWICE LIMIT * 2
#ifdef DEBUG
#define WORD 1
#else
#define WORD 2
#endif
#ifndef DEBUG
#define OTHER 1
#ifdef LIMIT
this is no script
#endif
#else
#define OTHER 2
#endif
#undef DEBUG
#ifdef DEBUG
neither is this
#endif
#ifdef BPFTRACE_HAVE_BTF
kprobe:vfs_read {
#else
kprobe:vfs_write {
#endif
    printf(\"%s %d %d %d %d\\n\", NAME, LIMIT, TWICE, WORD, OTHER);
}";
    assert_eq!(printed(text, &[&[]]), "a name 5 10 1 2\n\n\n");
}

#[test]
fn a_line_of_a_comment_or_text_is_no_directive() {
    let text = "/* a comment\n#else\n*/ kprobe:vfs_read { print(\"#x\"); // \"\n print(1); }";
    assert_eq!(printed(text, &[&[]]), "#x\n1\n\n\n");
}
