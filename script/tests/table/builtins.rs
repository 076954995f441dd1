//! Builtins: what they read at a hit, and their values.

use exoprobe_script::{Base, Chain, Datum, MemoryKind, Read};

use crate::common::{printed, program, reads, wrong};

#[test]
fn clocks_are_those_of_the_guest() {
    let text = "kprobe:vfs_read { printf(\"%lld %lld %lld %lld\\n\", nsecs, nsecs(), nsecs(boot), nsecs(monotonic)); }";
    // Each hit is 1000 ns later.
    assert_eq!(printed(text, &[&[], &[]]), "0 0 0 0\n1000 1000 1000 1000\n\n\n");
    assert_eq!(reads("@ = nsecs(boot);"), Vec::<String>::new());
}

#[test]
fn builtins_are_read_at_the_hit() {
    for (name, read) in [
        ("pid", Read::Pid),
        ("tid", Read::Tid),
        ("uid", Read::Uid),
        ("gid", Read::Gid),
        ("comm", Read::Comm),
        ("numaid", Read::NumaNode),
        ("cgroup", Read::Cgroup),
        ("curtask", Read::Base(Base::Task)),
        ("arg5", Read::Base(Base::Arg(5))),
        ("sarg2", Read::Base(Base::StackArg(2))),
        ("kstack", Read::KernelStack(127)),
    ] {
        let program = program(&format!("kprobe:vfs_read {{ @ = {name}; }}"));
        assert_eq!(program.bodies[0].reads, [read], "{name}");
        assert!(program.bodies[0].needs_exit.is_none(), "{name}");
    }
    assert_eq!(reads("@ = ustack;"), ["ustack, 127 frames", "pid"]);
    let text = "kprobe:vfs_read { print((numaid, cgroup, curtask)); }";
    let hit = [Datum::Int(1), Datum::Int(4242), Datum::Int(u64::MAX)];
    assert_eq!(printed(text, &[&hit]), "(1, 4242, 18446744073709551615)\n\n\n");
}

#[test]
fn jiffies_is_the_kernels_variable() {
    let program = program("kprobe:vfs_read { @ = jiffies; }");
    let address = Chain { base: Base::Symbol("jiffies".into()), offsets: vec![0] };
    let what = MemoryKind::Int { bytes: 8, signed: false };
    assert_eq!(program.bodies[0].reads, [Read::Memory { address, what }]);
    let hit = [Datum::Int(4_294_937_296)];
    assert_eq!(printed("kprobe:vfs_read { print(jiffies); }", &[&hit]), "4294937296\n\n\n");
}

#[test]
fn symbols_are_where_they_are_at_the_hit() {
    for (body, read) in [
        ("@ = kaddr(\"counter\") + 1;", "counter"),
        ("@ = *(uint32 *)(kaddr(\"counter\") + 8);", "uint32 at counter+8"),
        ("@ = *(uint32 *)(8 + kaddr(\"counter\"));", "uint32 at counter+8"),
        (
            "$at = kaddr(\"counter\"); @ = str($at - 8, 16);",
            "text of at most 15 bytes at counter-8",
        ),
    ] {
        assert_eq!(reads(body), [read], "{body}");
    }
    let text = "kprobe:vfs_read { print(2 + kaddr(\"counter\")); }";
    assert_eq!(printed(text, &[&[Datum::Int(40)], &[Datum::Int(50)]]), "42\n52\n\n\n");
}

#[test]
fn arguments_of_system_calls_have_names() {
    let probe = "tracepoint:syscalls:sys_enter_openat";
    let hit = [Datum::Bytes(b"/etc/motd"), Datum::Int(5)];
    for access in [".", "->"] {
        let text = format!(
            "{probe} {{ printf(\"%s %d\\n\", str(args{access}filename), args{access}dfd); }}"
        );
        let reads: Vec<String> =
            program(&text).bodies[0].reads.iter().map(ToString::to_string).collect();
        assert_eq!(reads, ["text of at most 1023 bytes at arg1", "arg0"], "{access}");
        assert_eq!(printed(&text, &[&hit]), "/etc/motd 5\n\n\n");
    }
    let text = "tracepoint:syscalls:sys_exit_openat { print(args->ret); print(retval); }";
    assert_eq!(printed(text, &[&[Datum::Int((-2i64).cast_unsigned())]]), "-2\n-2\n\n\n");
    let error = wrong(&format!("{probe} {{ @ = args->filenam; }}"));
    assert!(error.contains("help: did you mean `filename`?"), "{error}");
}

#[test]
fn builtins_are_for_the_probes_that_have_them() {
    for (text, wanted) in [
        ("kprobe:vfs_read { @ = arg6; }", "`arg6` is in no register"),
        ("kretprobe:vfs_read { @ = arg0; }", "this probe has no `arg0`"),
        ("kprobe:vfs_read { @ = retval; }", "this probe has no result"),
        ("interval:s:1 { @ = func; }", "this probe is at no function"),
        ("fentry:vfs_read { @ = reg(\"ip\"); }", "this probe has no registers"),
    ] {
        let error = wrong(text);
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}
