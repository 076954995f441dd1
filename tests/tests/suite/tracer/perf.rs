//! perf over the mounted files: `perf probe` and `perf list`.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, address, cases, guest_file};

use crate::support::mounted::{Line, Mounted, lines};
use crate::support::tracer::{append, cat, work};

pub(crate) const CASES: &[Case] = cases![
    perf_adds_lists_and_deletes_probes needs [Kvm, Fuse, Namespaces, Perf],
    perf_adds_each_function_of_a_pattern needs [Kvm, Fuse, Namespaces, Perf],
    perf_reads_arguments_and_lines_from_debug_info needs [Kvm, Fuse, Namespaces, Perf, DebugInfo],
    perf_refuses_what_may_not_be_probed needs [Kvm, Fuse, Namespaces, Perf],
];

/// Bytes between the begin of the kernel's text, from where perf counts, and a function.
fn from_text(function: &str) -> u64 {
    address(function).0 - address("_text").0
}

/// Names and arguments of events, in order of time.
fn shown_events(trace: &str) -> Vec<String> {
    let lines = lines(trace).into_iter();
    lines.map(|Line(_, event, args)| format!("{event} {args}")).collect()
}

fn perf_adds_lists_and_deletes_probes() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(&service, "kprobe_events", "p:mine __x64_sys_getpid");
    let shown = mounted.run(
        "perf probe --add 'opening=do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring' 2>&1
        perf probe --add 'do_sys_openat2%return fd=$retval:s32' 2>&1
        for at in 1 2 3 4 5 6; do perf probe --add \"sc:inside=do_sys_openat2+$at \\$comm\" 2>&1 && break; done
        perf probe --list; perf list 'probe:*'",
    );
    assert!(shown.contains("probe:opening        (on do_sys_openat2 with dfd"), "{shown}");
    assert!(shown.contains("sc:inside            (on do_sys_openat2+"), "{shown}");
    assert!(shown.contains("kprobes:mine "), "{shown}");
    let entry = from_text("do_sys_openat2");
    let expected = format!(
        "p:kprobes/mine __x64_sys_getpid\n\
         p:probe/opening _text+{entry} dfd=%di:s32 name=+0(%si):ustring\n\
         r:probe/do_sys_openat2__return _text+{entry} fd=$retval:s32\n"
    );
    let listed = cat(&service, "kprobe_events");
    let inside = listed.strip_prefix(&expected).unwrap_or_else(|| panic!("{listed}"));
    assert!(
        inside.starts_with("p:sc/inside _text+") && inside.ends_with(" arg1=$comm\n"),
        "{inside}"
    );
    append(&service, "events/probe/enable", "1");
    append(&service, "events/sc/enable", "1");
    work(&service, "open /dev/null 2");
    let trace = cat(&service, "trace");
    let shown = shown_events(&trace);
    let expected = [
        "opening dfd=-100 name=\"/dev/null\"",
        "inside arg1=\"init\"",
        "do_sys_openat2__return fd=4",
    ];
    assert_eq!(shown, [expected, expected].concat(), "{trace}");

    append(&service, "events/enable", "0");
    let shown = mounted.run("perf probe --del 'probe:*' 2>&1; perf probe --del sc:inside 2>&1");
    assert_eq!(shown.matches("Removed event").count(), 3, "{shown}");
    assert_eq!(cat(&service, "kprobe_events"), "p:kprobes/mine __x64_sys_getpid\n");
}

fn perf_adds_each_function_of_a_pattern() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    let functions = mounted.run("perf probe -F '__x64_sys_getp*'");
    let functions: Vec<&str> = functions.lines().collect();
    assert!(functions.contains(&"__x64_sys_getpid") && functions.len() > 2, "{functions:?}");
    let _ = mounted.run("perf probe --add '__x64_sys_getp* %di' 2>&1");
    let listed = cat(&service, "kprobe_events");
    assert_eq!(listed.lines().count(), functions.len(), "{listed}");
    for function in functions {
        assert!(
            listed.contains(&format!(" _text+{} ", from_text(function))),
            "{function}: {listed}"
        );
    }
}

fn perf_reads_arguments_and_lines_from_debug_info() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    let vmlinux = guest_file("vmlinux.debug");
    let shown = mounted.run(&format!(
        "probe() {{ perf probe -k {} \"$@\" 2>&1; }}
        probe --vars do_sys_openat2
        probe --add 'opening=do_sys_openat2 dfd filename:string@user how->flags'
        for line in {{1..20}}; do probe --add \"l:line=do_sys_openat2:$line dfd\" && break; done
        probe --list",
        vmlinux.display()
    ));
    assert!(
        shown.contains("char*\tfilename") && shown.contains("struct open_how*\thow"),
        "{shown}"
    );
    assert!(
        shown.contains("(on do_sys_openat2@fs/open.c with dfd filename_string flags)"),
        "{shown}"
    );
    let listed = cat(&service, "kprobe_events");
    let expected = format!(
        "p:probe/opening _text+{} dfd=%di:s32 filename_string=+u0(%si):string flags=+0(%dx):x64\n\
         p:l/line _text+",
        from_text("do_sys_openat2")
    );
    assert!(listed.starts_with(&expected), "{listed}");
    append(&service, "events/enable", "1");
    work(&service, "open /dev/null 2");
    let trace = cat(&service, "trace");
    let shown = shown_events(&trace);
    let expected = ["opening dfd=-100 filename_string=\"/dev/null\" flags=0x8000", "line dfd=-100"];
    assert_eq!(shown, [expected, expected].concat(), "{trace}");
}

fn perf_refuses_what_may_not_be_probed() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    for (probe, reason) in [
        ("asm_exc_nmi %ax", "asm_exc_nmi is blacklisted function"),
        ("no_such_function", "Failed to find symbol no_such_function"),
        ("do_sys_openat2+1000000", "is bigger than the size of do_sys_openat2"),
        ("do_sys_openat2%return x=%nope", "Invalid argument"),
    ] {
        let shown = mounted.run(&format!("! perf probe --add '{probe}' 2>&1"));
        assert!(shown.contains(reason), "{probe}: {shown}");
        assert_eq!(cat(&service, "kprobe_events"), "", "{probe}");
    }
}
