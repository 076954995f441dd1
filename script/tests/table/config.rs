//! The `config` block, and declarations of maps.

use exoprobe_script::{Datum, LimitError, Limits};

use crate::common::{printed, program, run, wrong};

/// The first body's reads as text.
fn reads(text: &str) -> Vec<String> {
    program(text).bodies[0].reads.iter().map(ToString::to_string).collect()
}

#[test]
fn max_strlen_is_the_longest_text() {
    let text = |config: &str| format!("{config} kprobe:vfs_read {{ @ = str(arg0); }}");
    assert_eq!(reads(&text("")), ["text of at most 1023 bytes at arg0"]);
    // One byte is for the zero at the end.
    let short = "config = { max_strlen = 10 }";
    assert_eq!(reads(&text(short)), ["text of at most 9 bytes at arg0"]);
    let old = "config = { BPFTRACE_MAX_STRLEN = 20; }";
    assert_eq!(reads(&text(old)), ["text of at most 19 bytes at arg0"]);
    for value in ["0", "65537", "many"] {
        let error = wrong(&format!("config = {{ max_strlen = {value} }} BEGIN {{ exit(); }}"));
        assert!(error.contains("write 1 to 65536"), "{error}");
    }
}

#[test]
fn stack_mode_is_that_of_stacks_without_one() {
    let stack = [Datum::Stack(&[0x8004, 0x10])];
    let shown = |config: &str, call: &str| {
        printed(&format!("{config} kprobe:vfs_read {{ print({call}); }}"), &[&stack])
    };
    let own = "\n        start+4\n        0x10\n\n\n\n";
    let perf = "\n\t            8004 start+4\n\t              10 0x10\n\n\n\n";
    let raw = "\n        8004\n        10\n\n\n\n";
    assert_eq!(shown("", "kstack"), own);
    assert_eq!(shown("config = { stack_mode = bpftrace }", "kstack"), own);
    assert_eq!(shown("config = { stack_mode = perf }", "kstack"), perf);
    assert_eq!(shown("config = { stack_mode = raw }", "kstack"), raw);
    assert_eq!(shown("config = { stack_mode = raw }", "kstack(perf)"), perf);
    let error = wrong("config = { stack_mode = tall } BEGIN { exit(); }");
    assert!(error.contains("write bpftrace, perf or raw"), "{error}");
}

#[test]
fn maps_have_the_entries_that_a_script_gives_them() {
    let full = |limit| Err(LimitError { name: "map_entries", limit });
    let body = "kprobe:vfs_read { @a[1] = 1; @a[2] = 2; @b[1] = 1; @b[2] = 2; @b[3] = 3; }";
    let outcome = |text: &str, limits| {
        let (mut outcomes, out) = run(text, &[&[]], limits);
        (outcomes.remove(0), String::from_utf8(out.bytes).unwrap())
    };
    let (ran, _) = outcome(body, Limits::default());
    assert!(ran.is_ok());
    let config = format!("config = {{ max_map_keys = 2 }} {body}");
    let (ran, text) = outcome(&config, Limits::default());
    assert_eq!(ran, full(2));
    assert_eq!(text, "\n\n@a[1]: 1\n@a[2]: 2\n@b[1]: 1\n@b[2]: 2\n");
    // Of one map, against the `config` block.
    let own = format!("config = {{ max_map_keys = 2 }} let @b = hash(3); {body}");
    assert!(outcome(&own, Limits::default()).0.is_ok());
    let own = format!("let @a = lruhash(1); {body}");
    assert_eq!(outcome(&own, Limits::default()).0, full(1));
    // Neither raises the service's limit.
    let large = format!("config = {{ max_map_keys = 100 }} let @b = hash(100); {body}");
    let limits = Limits { map_entries: 2, ..Limits::default() };
    assert_eq!(outcome(&large, limits).0, full(2));
    let error = wrong("config = { max_map_keys = 0 } BEGIN { exit(); }");
    assert!(error.contains("write a number from 1 on"), "{error}");
    let error = wrong("let @a = tree(5); BEGIN { @a[1] = 1; }");
    assert!(error.contains("unknown kind of map"), "{error}");
}

#[test]
fn maps_are_shown_at_the_end_unless_a_script_says_no() {
    let body = "kprobe:vfs_read { @a = 5; print(@a); }";
    assert_eq!(printed(body, &[&[]]), "@a: 5\n\n\n@a: 5\n");
    for yes in ["true", "1"] {
        let text = format!("config = {{ print_maps_on_exit = {yes} }} {body}");
        assert_eq!(printed(&text, &[&[]]), "@a: 5\n\n\n@a: 5\n");
    }
    for no in ["false", "0"] {
        let text = format!("config = {{ print_maps_on_exit = {no} }} {body}");
        assert_eq!(printed(&text, &[&[]]), "@a: 5\n");
    }
    let error = wrong("config = { print_maps_on_exit = maybe } BEGIN { exit(); }");
    assert!(error.contains("write true or false"), "{error}");
}

#[test]
fn other_settings_have_no_effect() {
    let config = "config = { missing_probes = \"warn\"; log_size = 5; unstable_import = true }";
    let body = "kprobe:vfs_read { @a = str(arg0); }";
    let hit = [Datum::Bytes(b"text")];
    assert_eq!(printed(&format!("{config} {body}"), &[&hit]), printed(body, &[&hit]));
}
