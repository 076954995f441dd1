//! Reads of bodies at a hit, and the values computed from them.

mod common;

use exoprobe_script::{Base, Chain, Datum, Flow, LimitError, Limits, MemoryKind, Outcome, Read};

use common::{printed, program, reads, run, wrong};

#[test]
fn chains_of_fixed_offsets_are_read_at_the_hit() {
    let file = "(struct file *)arg0";
    for (body, wanted) in [
        ("@ = arg1;", vec!["arg1"]),
        ("@[pid, comm] = count();", vec!["pid", "comm"]),
        (&format!("@ = ({file})->in.b;"), vec!["int64 at arg0+16"]),
        (&format!("$f = {file}; @ = $f->in.a;"), vec!["int32 at arg0+8"]),
        (&format!("@ = ({file})->list->next->value;"), vec!["int32 at *(*(arg0+24))+8"]),
        (&format!("@ = str(({file})->name);"), vec!["text of at most 8 bytes at arg0+32"]),
        (&format!("@ = ({file})->words[2];"), vec!["int32 at arg0+48"]),
        (&format!("@ = ({file})->words[arg1];"), vec!["arg1", "16 bytes at arg0+40"]),
        (&format!("@ = ({file})->s;"), vec!["int16 at arg0+56"]),
        (&format!("@ = ({file})->low;"), vec!["uint32 at arg0+4"]),
        (&format!("@ = *(uint8 *)(({file})->list + 2);"), vec!["uint8 at *(arg0+24)+32"]),
        ("@ = str(arg0, 5);", vec!["text of at most 4 bytes at arg0"]),
        ("@ = str(*(arg0 + 8));", vec!["text of at most 1023 bytes at *(arg0+8)"]),
        ("@ = *kaddr(\"counter\");", vec!["uint64 at counter"]),
        ("@ = reg(\"ip\");", vec!["%rip"]),
        ("@ = sarg1;", vec!["sarg1"]),
        ("@[kstack(3)] = count();", vec!["kstack, 3 frames"]),
        ("@ = buf(arg0, 4);", vec!["4 bytes at arg0"]),
        (&format!("$f = {file}; @ = (uint64)$f + $f->in.a;"), vec!["arg0", "int32 at arg0+8"]),
        ("$a = arg0; $b = $a; $c = pid; if ($c) { $d = $b; }", vec!["pid"]),
        (&format!("@ = (uint64)&({file})->in.b;"), vec!["arg0"]),
    ] {
        assert_eq!(reads(body), wanted, "{body}");
    }
}

#[test]
fn unrolled_loops_follow_pointers() {
    let walk = "$p = (struct list *)arg0; unroll(3) { @[$p->value] = count(); $p = $p->next; }";
    let found = reads(walk);
    let wanted = ["int32 at arg0+8", "int32 at *(arg0)+8", "int32 at *(*(arg0))+8"];
    assert!(wanted.iter().all(|read| found.iter().any(|it| it == read)), "{found:?}");
    assert!(!found.iter().any(|it| it.starts_with("exit")), "{found:?}");
}

#[test]
fn addresses_that_are_computed_need_an_exit() {
    let computed = "exit: it reads memory at an address that it computes";
    for body in [
        "@a[tid] = arg0; @b = str(@a[tid]);",
        "@b = *(uint32 *)(arg0 + arg1);",
        "$p = (struct list *)arg0; if (arg1) { $p = (struct list *)arg2; } @ = $p->value;",
        "$p = (struct list *)arg0; while ($p) { @ = $p->value; $p = $p->next; }",
        "$p = arg0; $p++; @ = *$p;",
    ] {
        assert_eq!(reads(body).last().unwrap(), computed, "{body}");
    }
    let both = "$p = (struct list *)arg0; if (arg1) { $p = (struct list *)arg0; } @ = $p->value;";
    assert!(!reads(both).contains(&computed.to_owned()));
    assert_eq!(
        reads("@ = buf(arg0, arg1);").last().unwrap(),
        "exit: it reads memory of a length that it computes"
    );
    assert_eq!(reads("join(arg0);").last().unwrap(), "exit: join() reads a list of addresses");
    assert_eq!(reads("override(5);").last().unwrap(), "exit: override() changes the hit itself");
}

#[test]
fn arguments_have_names_through_types() {
    let program = program(
        "fentry:vfs_read { @[args.count] = hist(args->file->in.b); } fexit:vfs_read { @r = retval + args.count; }",
    );
    let file = Chain { base: Base::Arg(0), offsets: vec![16] };
    let long = MemoryKind::Int { bytes: 8, signed: true };
    let member = Read::Memory { address: file, what: long };
    assert_eq!(program.bodies[0].reads, [Read::Base(Base::Arg(1)), member]);
    assert_eq!(program.bodies[1].reads, [Read::Base(Base::Retval), Read::Base(Base::Arg(1))]);
    assert_eq!(&*program.attachments[1].name, "fexit:vmlinux:vfs_read");
}

#[test]
fn system_calls_have_their_fields() {
    let program = program(
        "tracepoint:syscalls:sys_enter_openat { @ = str(args.filename); } t:syscalls:sys_exit_* { @r[probe] = args.ret; } t:raw_syscalls:sys_enter { @i[args.id] = args.args[1]; }",
    );
    assert_eq!(program.bodies[0].reads[0].to_string(), "text of at most 1023 bytes at arg1");
    assert_eq!(program.bodies[1].reads, [Read::Base(Base::Retval)]);
    assert_eq!(program.attachments[1].bodies, program.attachments[2].bodies);
    assert_eq!(
        program.bodies[2].reads,
        [Read::Base(Base::SyscallNumber), Read::Base(Base::Arg(1))]
    );
}

#[test]
fn probes_of_one_action_share_its_body() {
    let program = program(
        "kprobe:vfs_*, kprobe:vfs_read+4, k:xfs:xfs_open { @[func] = count(); } kprobe:vfs_open { @x = 1; }",
    );
    let names: Vec<&str> = program.attachments.iter().map(|it| &*it.name).collect();
    let wanted = [
        "kprobe:vfs_open",
        "kprobe:vfs_read",
        "kprobe:vfs_write",
        "kprobe:vfs_read+4",
        "kprobe:xfs:xfs_open",
    ];
    assert_eq!(names, wanted);
    assert_eq!(program.bodies.len(), 2);
    assert_eq!(program.attachments[0].bodies, [0, 1]);
}

#[test]
fn bodies_compute_from_the_values_of_a_hit() {
    let (one, two) =
        ([Datum::Int(7), Datum::Bytes(b"cat\0x")], [Datum::Int(7), Datum::Bytes(b"dog")]);
    let text = printed("kprobe:vfs_read { @[pid, comm] = count(); }", &[&one, &two, &two]);
    assert_eq!(text, "\n\n@[7, cat]: 1\n@[7, dog]: 2\n");
    let stack = [Datum::Stack(&[0x8004, 0x10])];
    let text = printed("kprobe:vfs_read { @[kstack] = count(); }", &[&stack]);
    assert_eq!(text, "\n\n@[\n    start+4\n    0x10\n]: 1\n");
    let text = printed(
        "kprobe:vfs_read { $f = (struct file *)0; @ = ((struct file *)arg0)->high; }",
        &[&[Datum::Int(0b1000_1000)]],
    );
    assert_eq!(text, "\n\n@: -15\n");
    let text = printed(
        "kprobe:vfs_read { printf(\"%d %s\\n\", arg1, str(arg0)); }",
        &[&[Datum::Int(5), Datum::Fault]],
    );
    assert_eq!(text, "5 \n\n\n");
    let text =
        printed("kprobe:vfs_read { printf(\"%s %s\\n\", probe, func); @ = elapsed; }", &[&[], &[]]);
    assert_eq!(text, "kprobe:vfs_read vfs_read\nkprobe:vfs_read vfs_read\n\n\n@: 1000\n");
}

#[test]
fn bodies_with_an_exit_read_memory_at_once() {
    let text = "kprobe:vfs_read { @a = arg0; $p = @a; printf(\"%x %s\\n\", *(uint16 *)$p, str($p + 1, 4)); }";
    assert_eq!(printed(text, &[&[Datum::Int(0x41)]]), "4241 BCD\n\n\n@a: 65\n");
    assert_eq!(printed(text, &[&[Datum::Int(0x10_0000)]]), "0 \n\n\n@a: 1048576\n");
}

#[test]
fn filters_exits_and_overrides_are_reported() {
    let text = "kprobe:vfs_read /arg0 > 5/ { if (arg0 == 7) { exit(3); } override(arg0 * 2); }";
    let (outcomes, _) =
        run(text, &[&[Datum::Int(5)], &[Datum::Int(6)], &[Datum::Int(7)]], Limits::default());
    let outcome = |flow, override_return| Ok(Outcome { flow, override_return });
    let wanted =
        [outcome(Flow::Filtered, None), outcome(Flow::Ran, Some(12)), outcome(Flow::Exit(3), None)];
    assert_eq!(outcomes, wanted);
}

#[test]
fn limits_end_a_run_with_their_names() {
    let small = Limits {
        map_entries: 2,
        text_bytes: 4,
        loop_rounds: 10,
        output_bytes: 8,
        value_bytes: 64,
        ..Limits::default()
    };
    for (body, name, limit) in [
        ("@[1] = 1; @[2] = 2; @[3] = 3;", "map_entries", 2),
        ("@[1] = count(); @[2] = count(); @[3] = count();", "map_entries", 2),
        ("while (1) { $x = 1; }", "loop_rounds", 10),
        ("for ($i : 0..20) { @ = $i; }", "loop_rounds", 10),
        ("printf(\"123456789\\n\");", "output_bytes", 8),
        ("@a = arg0; @ = str(@a);", "text_bytes", 4),
        ("@a = arg0; @ = buf(@a, 100);", "value_bytes", 64),
    ] {
        let (outcomes, _) =
            run(&format!("kprobe:vfs_read {{ {body} }}"), &[&[Datum::Int(1)]], small);
        assert_eq!(outcomes, [Err(LimitError { name, limit })], "{body}");
    }
}

#[test]
fn wrong_scripts_are_shown_with_their_place_and_what_would_be_right() {
    for (text, wanted) in [
        (
            "kprobe:vfs_raed { }",
            "1:1: error: no function matches `vfs_raed`\nkprobe:vfs_raed { }\n^^^^^^^^^^^^^^^\nhelp: did you mean `vfs_read`?",
        ),
        ("kprobee:vfs_read { }", "help: did you mean `kprobe`?"),
        ("BEGIN {\n\tprinft(\"a\");\n}", "2:2: error: unknown function `prinft`\n printf"),
        ("BEGIN { @a = nsecss; }", "help: did you mean `nsecs`?"),
        ("BEGIN { @abc = 1; print(@abd); }", "nothing is ever assigned to map `@abd`"),
        ("BEGIN { $x = 1; print($y); }", "variable `$y` has no value yet"),
        ("t:syscalls:sys_enter_openta { }", "help: did you mean `sys_enter_openat`?"),
        (
            "t:sched:sched_switch { }",
            "`tracepoint:sched:sched_switch`: this tracepoint is not there",
        ),
        ("uprobe:/bin/sh:main { }", "`uprobe`: probes of processes are not served yet"),
        ("watchpoint:0x1000:8:w { }", "`watchpoint`: watchpoints are not served yet"),
        ("usdt:/bin/sh:x { }", "`usdt`: this kind of probe is not there"),
        ("hardware:cache-misses:1000 { }", "`hardware`: this kind of probe is not there"),
        ("fentry:vfs_open { }", "the kernel's types do not describe `vfs_open`"),
        ("fentry:vfs_read { @ = args.coutn; }", "help: did you mean `count`?"),
        ("kprobe:vfs_read { @ = args.count; }", "this probe has no `args`"),
        ("BEGIN { system(\"ls\"); }", "help: allow it with --unsafe"),
        ("BEGIN { signal(9); }", "`signal()` is not served"),
        ("BEGIN { while (1) { print(1) }", "1:31: error: expected"),
        ("interval:s:0 { }", "`interval` has no period"),
        ("struct s { struct s x; };\nBEGIN { exit(); }", "struct s contains itself"),
        ("kprobe:vfs_read { @[1] = 1; @[\"a\"] = 2; }", "help: elsewhere its keys are [int64]"),
        ("#if 1\n#endif\nBEGIN { }", "use #ifdef"),
        ("#ifdef X\nBEGIN { }", "no #endif follows"),
        ("config = { max_strln = 5 }\nBEGIN { }", "help: did you mean `max_strlen`?"),
    ] {
        let error = wrong(text);
        let wanted = wanted.replace("printf", "prinft");
        assert!(error.contains(&wanted), "{text}\n{error}\nwanted: {wanted}");
    }
}

#[test]
fn a_function_that_is_not_there_is_left_out_of_a_list() {
    let program = program("kprobe:vfs_none,kprobe:vfs_open,kprobe:vfs_none.* { @ = count(); }");
    let names: Vec<&str> = program.attachments.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["kprobe:vfs_open"]);
    let missing = [
        "kprobe:vfs_none: no function matches `vfs_none`",
        "kprobe:vfs_none.*: no function matches `vfs_none.*`",
    ];
    assert_eq!(program.missing, missing);
    // Of none there is nothing left; a wrong kind is wrong in any list.
    let error = wrong("kprobe:vfs_none,kprobe:vfs_neither { }");
    assert!(error.contains("`vfs_none`") && error.contains("`vfs_neither`"), "{error}");
    assert!(wrong("kprobe:vfs_open,uprobe:/bin/sh:main { }").contains("not served yet"));
}

#[test]
fn large_and_deep_scripts_are_refused() {
    let deep = format!("BEGIN {{ print({}1{}); }}", "(".repeat(10_000), ")".repeat(10_000));
    assert!(wrong(&deep).contains("nested too deeply"));
    let long = format!("BEGIN {{ print(1{}); }}", "+1".repeat(10_000));
    assert!(wrong(&long).contains("levels"));
    let blocks = format!("BEGIN {}{}", "{".repeat(10_000), "}".repeat(10_000));
    assert!(wrong(&blocks).contains("nested too deeply"));
    let stars = format!("BEGIN {{ print({}1); }}", "*".repeat(100_000));
    assert!(wrong(&stars).contains("nested too deeply"));
    let big = format!("BEGIN {{ {} }}", "@a = 1; ".repeat(140_000));
    assert!(wrong(&big).contains("at most 1048576 bytes"));
    let macros = "macro a(x) { a(x) + 1 }\nBEGIN { print(a(1)); }";
    assert!(wrong(macros).contains("limit `macros`"));
    let defines = "#define A B\n#define B A\nBEGIN { print(A); }";
    assert!(wrong(defines).contains("limit `depth`"));
    let unrolled = "BEGIN { unroll(16) { unroll(16) { unroll(16) { unroll(16) { unroll(16) { @a++; @b++; @c++; @d++; } } } } } }";
    assert!(wrong(unrolled).contains("limit `expressions`"));
}

#[test]
fn macros_have_variables_of_their_own() {
    let text = "macro add(x, y) { x + y }\nmacro twice($v) { $t = $v * 2; $v = $t; $t }\nmacro note(@m, k) { @m[k] = count(); }\nkprobe:vfs_read { $t = 1; $n = 5; print(add($n, 2) * 10); print(twice($n)); print($n); print($t); note(@calls, 3); }";
    assert_eq!(printed(text, &[&[]]), "70\n10\n10\n1\n\n\n@calls[3]: 1\n");
}

#[test]
fn constants_come_from_the_script_and_the_kernel() {
    let text = "#define N (2 + 3)\nenum e { A = 4, B };\nkprobe:vfs_read { print(N * 2); print(B); print(KERNEL_CONSTANT); print(AF_INET6); }";
    assert_eq!(printed(text, &[&[]]), "10\nB\n77\n10\n\n\n");
}

#[test]
fn explanations_name_the_reads_and_the_reason() {
    let text = program("kprobe:vfs_read { @[pid] = count(); } kretprobe:vfs_read { @s[tid] = retval; @t = str(@s[tid]); }").explain();
    let wanted = "kprobe:vfs_read: reads at the hit only\n    pid\nkretprobe:vfs_read: takes an exit, because it reads memory at an address that it computes\n    tid\n    retval\n";
    assert_eq!(text, wanted);
}

#[test]
fn time_series_show_a_star_for_each_interval() {
    let text = "kprobe:vfs_read { @ = tseries(arg0, 1us, 3); }";
    let hits: Vec<[Datum<'_>; 1]> =
        [-5, -4, 0, 5].map(|n: i64| [Datum::Int(n.cast_unsigned())]).to_vec();
    let hits: Vec<&[Datum<'_>]> = hits.iter().map(<[Datum<'_>; 1]>::as_slice).collect();
    let text = printed(text, &hits);
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(lines[0], "@: ");
    assert_eq!(lines[1], format!("{:13}-4{:50}5", "", ""));
    assert_eq!(lines[3], format!("00:00:00.000 *{}.{}| -4", " ".repeat(22), " ".repeat(28)));
    assert_eq!(lines[5], format!("00:00:00.000 |{}.{}* 5", " ".repeat(22), " ".repeat(28)));
    // The empty line is as after a histogram.
    assert_eq!((lines.len(), lines[8]), (9, ""));
}
