//! Functions: their values over the data of a hit.

use std::sync::Arc;

use exoprobe_script::{Collected, Datum, Flow, Format, Hit, Host, Limits, Memory, Runtime};

use crate::common::{printed, program, reads, run, wrong};

/// Output of a kprobe's body over one hit, with the maps at its end.
fn shown(body: &str, hit: &[Datum<'_>]) -> String {
    printed(&format!("kprobe:vfs_read {{ {body} }}"), &[hit])
}

#[test]
fn histograms_are_divided_in_the_output() {
    let count = "$i = 0; while ($i < 10) { @l = lhist($i / 5, 0, 4, 2); @h = hist(1); $i++; }";
    let bar = "@".repeat(52);
    // 10 hits of `lhist` in the bucket of 0 and 1.
    let wanted = format!("@l: \n[0, 2)                 2 |{bar}|\n\n");
    assert!(shown(&format!("{count} print(@l, 0, 4);"), &[]).starts_with(&wanted));
    let wanted = format!("@h: \n[1]                    5 |{bar}|\n\n");
    assert!(shown(&format!("{count} print(@h, 0, 2);"), &[]).starts_with(&wanted));
    let keyed = "@k[1] = lhist(1, 0, 4, 2); @k[2] = lhist(1, 0, 4, 2); @k[2] = lhist(1, 0, 4, 2);";
    let wanted = format!("@k[2]: \n[0, 2)                 1 |{bar}|\n\n\n\n");
    assert!(shown(&format!("{keyed} print(@k, 1, 2);"), &[]).starts_with(&wanted));
}

#[test]
fn entries_are_deleted_in_both_ways() {
    let set = "@m[1] = 10; @m[2] = 20; @m[3] = 30; @t[1, \"a\"] = 5;";
    for delete in [
        "delete(@m, 2); delete(@t, (1, \"a\"));",
        "delete(@m[2]); delete(@t[1, \"a\"]);",
        "$m = delete(@m, 2); $t = delete(@t[1, \"a\"]); $none = delete(@m, 9);",
    ] {
        let text = shown(&format!("{set} {delete}"), &[]);
        assert_eq!(text, "\n\n@m[1]: 10\n@m[3]: 30\n\n", "{delete}");
    }
    let text = shown("@m[1] = 1; print(delete(@m, 1)); print(delete(@m[1])); clear(@m);", &[]);
    assert_eq!(text, "1\n0\n\n\n\n");
}

#[test]
fn addresses_of_the_kernel_and_of_processes_are_alike() {
    for call in ["str(arg0)", "kstr(arg0)", "str(kptr(arg0))", "str(uptr(arg0))"] {
        assert_eq!(
            reads(&format!("@ = {call};")),
            ["text of at most 1023 bytes at arg0"],
            "{call}"
        );
        assert_eq!(shown(&format!("print({call});"), &[Datum::Bytes(b"text\0x")]), "text\n\n\n");
    }
    assert_eq!(reads("@ = kstr(arg0, 5);"), ["text of at most 4 bytes at arg0"]);
    assert_eq!(reads("@ = *(uint32 *)kptr(arg0);"), ["uint32 at arg0"]);
    let member = "((struct file *)uptr(arg0))->in.b";
    assert_eq!(reads(&format!("@ = {member};")), ["int64 at arg0+16"]);
}

#[test]
fn stacks_have_a_mode_and_a_number_of_frames() {
    assert_eq!(reads("@[kstack(perf, 2)] = count();"), ["kstack, 2 frames"]);
    assert_eq!(reads("@[kstack(2, perf)] = count();"), ["kstack, 2 frames"]);
    assert_eq!(reads("@[kstack(raw)] = count();"), ["kstack, 127 frames"]);
    assert_eq!(reads("@[ustack(raw, 3)] = count();"), ["ustack, 3 frames", "pid"]);
    let stack = [Datum::Stack(&[0x8004, 0x10]), Datum::Int(7)];
    for (call, lines) in [
        ("kstack(2)", "    start+4\n    0x10\n"),
        ("kstack(bpftrace)", "    start+4\n    0x10\n"),
        ("kstack(perf, 2)", "\t            8004 start+4\n\t              10 0x10\n"),
        ("kstack(raw)", "    8004\n    10\n"),
        ("ustack", "    main+4\n    main+16\n"),
        ("ustack(perf, 2)", "\t            8004 main+4\n\t              10 main+16\n"),
    ] {
        let wanted = format!("\n\n@[\n{lines}]: 1\n");
        assert_eq!(shown(&format!("@[{call}] = count();"), &stack), wanted, "{call}");
    }
    assert_eq!(shown("print(len(kstack));", &stack), "2\n\n\n");
    for call in ["kstack(0)", "kstack(128)", "kstack(1, 2)", "kstack(perf, raw)"] {
        let error = wrong(&format!("kprobe:vfs_read {{ @[{call}] = count(); }}"));
        assert!(error.contains("error: "), "{call}\n{error}");
    }
}

#[test]
fn symbols_are_looked_up_when_they_are_shown() {
    assert_eq!(reads("@ = usym(arg0);"), ["arg0", "pid"]);
    let body = "printf(\"%s %s\\n\", usym(arg0), ksym(arg0)); @[usym(arg0)] = count();";
    let of = |pid| shown(body, &[Datum::Int(0x8010), Datum::Int(pid)]);
    assert_eq!(of(7), "main start\n\n\n@[main]: 1\n");
    // A process of which nothing is known.
    assert_eq!(of(8), "0x8010 start\n\n\n@[0x8010]: 1\n");
}

#[test]
fn addresses_of_ethernet_are_shown() {
    let types = "struct dev { char name[4]; unsigned char mac[6]; char text[6]; };";
    let text = |member: &str| {
        format!(
            "{types} kprobe:vfs_read {{ $d = (struct dev *)arg0; printf(\"%s\\n\", macaddr($d->{member})); @ = macaddr($d->{member}); }}"
        )
    };
    let hit = [Datum::Bytes(&[0x08, 0x00, 0x27, 0xab, 0xcd, 0xef])];
    for member in ["mac", "text"] {
        let wanted = "08:00:27:AB:CD:EF\n\n\n@: 08:00:27:AB:CD:EF\n";
        assert_eq!(printed(&text(member), &[&hit]), wanted, "{member}");
    }
    let error = wrong(&text("name"));
    assert!(error.contains("macaddr() takes an array of 6 bytes"), "{error}");
}

#[test]
fn times_have_microseconds() {
    let body = "printf(\"%s\\n\", strftime(\"%Y-%m-%d %H:%M:%S.%f %%f\", arg0));";
    let at = |time: u64| shown(body, &[Datum::Int(time)]);
    assert_eq!(at(1_700_000_000_123_456_789), "2023-11-14 22:13:20.123456 %f\n\n\n");
    assert_eq!(at(1_000), "1970-01-01 00:00:00.000001 %f\n\n\n");
    // The second hit is at 1000 ns.
    let text = printed("kprobe:vfs_read { time(\"%S.%f\\n\"); }", &[&[], &[]]);
    assert_eq!(text, "00.000000\n00.000001\n\n\n");
    let error = wrong("BEGIN { time(\"%!\"); }");
    assert!(error.contains("unknown conversion in the format of a time"), "{error}");
}

#[test]
fn errors_are_no_output() {
    let text = "kprobe:vfs_read { print(1); errorf(\"%s failed: %d\\n\", probe, arg0); }";
    let (outcomes, out) = run(text, &[&[Datum::Int(5)]], Limits::default());
    assert!(outcomes[0].is_ok());
    assert_eq!(out.bytes, b"1\n\n\n");
    assert_eq!(out.warnings, ["kprobe:vfs_read failed: 5"]);
}

#[test]
fn exit_ends_the_script_with_a_status() {
    for (call, code) in [("exit()", 0), ("exit(3)", 3), ("exit(arg0 + 1)", 6), ("exit(-1)", -1)] {
        let text = format!("kprobe:vfs_read {{ @ = arg0; {call}; @ = 9; }}");
        let (outcomes, out) = run(&text, &[&[Datum::Int(5)]], Limits::default());
        assert_eq!(outcomes[0].unwrap().flow, Flow::Exit(code), "{call}");
        assert_eq!(out.bytes, b"\n\n@: 5\n", "{call}");
    }
    let error = wrong("BEGIN { exit(1, 2); }");
    assert!(error.contains("`exit()` takes 0 to 1 arguments"), "{error}");
}

/// Memory with a list of two texts.
struct Words;

impl Memory for Words {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut all = [0u8; 0x1000];
        all[..8].copy_from_slice(&0x20u64.to_le_bytes());
        all[8..16].copy_from_slice(&0x30u64.to_le_bytes());
        all[0x20..0x23].copy_from_slice(b"ls\0");
        all[0x30..0x33].copy_from_slice(b"-l\0");
        let found = usize::try_from(address).ok().and_then(|start| all.get(start..));
        let part = found.and_then(|rest| rest.get(..into.len()));
        part.map(|part| into.copy_from_slice(part)).is_some()
    }
}

impl Host for Words {
    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }
}

#[test]
fn join_writes_the_texts_of_a_list() {
    let text = "kprobe:vfs_read { join(arg0); join(arg0, \", \"); }";
    let mut runtime = Runtime::new(Arc::new(program(text)), Format::Text, Limits::default());
    let mut out = Collected::default();
    let hit = Hit { time: 0, cpu: 0, values: &[Datum::Int(0)] };
    runtime.run(0, 0, &hit, &Words, &mut out).unwrap();
    assert_eq!(String::from_utf8(out.bytes).unwrap(), "ls -l\nls, -l\n");
}
