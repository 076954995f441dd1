//! Parts of the language that this crate refuses, by name and with the reason.

use exoprobe_script::{Options, Script, check};

use crate::common::{Functions, wrong};

/// The error of a script with the options; `None` if it is right.
fn error(text: &str, options: Options) -> Option<String> {
    let script = Script::parse(text, &[]).unwrap_or_else(|error| panic!("{error}"));
    check(&script, &Functions, &options).err().map(|error| error.to_string())
}

#[test]
fn functions_are_refused_with_the_reason() {
    for (call, reason) in [
        ("@ = uaddr(\"main\")", "`uaddr()` is not served: symbols of processes"),
        ("@ = cgroupid(\"/sys/fs/cgroup\")", "`cgroupid()` is not served: files of the guest"),
        ("@ = cgroup_path(cgroup)", "`cgroup_path()` is not served: files of the guest"),
        ("unwatch(arg0)", "`unwatch()` is not served: watchpoints"),
        ("signal(9)", "`signal()` is not served: the guest is changed by nothing"),
        ("@ = nsecs(tai)", "`nsecs()` is not served: the guest's TAI clock"),
        ("@ = nsecs(sw_tai)", "`nsecs()` is not served: the guest's TAI clock"),
        ("@ = nsecs(moon)", "nsecs() has no such clock"),
    ] {
        let error = wrong(&format!("kprobe:vfs_read {{ {call}; }}"));
        assert!(error.contains(reason), "{call}\n{error}");
    }
}

#[test]
fn functions_of_newer_versions_are_unknown() {
    for name in [
        "path",
        "skboutput",
        "strerror",
        "strlen",
        "strstr",
        "memcmp",
        "find",
        "percpu_kaddr",
        "socket_cookie",
        "assert",
        "warnf",
        "debugf",
    ] {
        let error = wrong(&format!("kprobe:vfs_read {{ {name}(arg0); }}"));
        assert!(error.contains(&format!("unknown function `{name}`")), "{error}");
    }
}

#[test]
fn builtins_that_are_not_there_are_unknown() {
    for name in ["cpid", "ppid", "pcomm", "probetype", "usermode"] {
        let error = wrong(&format!("kprobe:vfs_read {{ @ = {name}; }}"));
        assert!(error.contains(&format!("unknown name `{name}`")), "{error}");
        // What is suggested is there.
        assert!(!error.contains(&format!("did you mean `{name}`")), "{error}");
    }
    assert!(wrong("kprobe:vfs_read { @ = ppidd; }").contains("did you mean `pid`"));
    let error = wrong("fentry:vfs_read { @ = args; }");
    assert!(error.contains("`args` is used without the name of an argument"), "{error}");
}

#[test]
fn parts_of_the_language_are_refused() {
    for (text, wanted) in [
        ("fn f($x: int64): int64 { return $x; }\nBEGIN { exit(); }", "expected"),
        ("import \"stdlib\";\nBEGIN { exit(); }", "expected"),
        ("BEGIN { @ = getopt(\"x\"); }", "unknown function `getopt`"),
        ("struct ops { int (*open)(int); };\nBEGIN { exit(); }", "members that are functions"),
        ("BEGIN { $a = (uint8[8])5; }", "`int64` cannot be cast to `uint8[8]`"),
        ("#if X\n#endif\nBEGIN { exit(); }", "#if with a condition is not known here"),
        ("#define ADD(x) x\nBEGIN { print(ADD(1)); }", "unknown function `ADD`"),
    ] {
        let error = wrong(text);
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}

#[test]
fn override_is_for_the_entry_of_a_kprobe() {
    let allowed = Options { allow_unsafe: true, ..Options::default() };
    assert_eq!(error("kprobe:vfs_read { override(1); }", allowed), None);
    assert_eq!(error("kprobe:vfs_read, kprobe:xfs_open { override(1); }", allowed), None);
    for probes in [
        "kprobe:vfs_read+4",
        // The body of the first is not for the second.
        "kprobe:vfs_read, kprobe:vfs_read+4",
        "kprobe:vfs_read+4, kprobe:vfs_read",
        "kretprobe:vfs_read",
        "fentry:vfs_read",
        "tracepoint:syscalls:sys_enter_openat",
        "interval:s:1",
    ] {
        let error = error(&format!("{probes} {{ override(1); }}"), allowed).unwrap();
        let wanted = "override() is for kprobe alone, and without an offset";
        assert!(error.contains(wanted), "{probes}\n{error}");
    }
    let error = error("kprobe:vfs_read { override(1); }", Options::default()).unwrap();
    assert!(error.contains("`override()` is unsafe"), "{error}");
    assert!(error.contains("help: allow it with --unsafe"), "{error}");
}

#[test]
fn system_needs_a_shell() {
    let text = "BEGIN { system(\"ls %d\", 5); }";
    let options =
        |allow_unsafe, has_shell| Options { allow_unsafe, has_shell, ..Options::default() };
    assert_eq!(error(text, options(true, true)), None);
    let without = error(text, options(true, false)).unwrap();
    assert!(without.contains("system() is not served: there is no shell"), "{without}");
    let safe = error(text, options(false, true)).unwrap();
    assert!(safe.contains("`system()` is unsafe"), "{safe}");
}
