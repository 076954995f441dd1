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

/// A place as perf writes it.
fn from_text(name: &str, offset: u64) -> String {
    format!("_text+{}", address(name).0 - address("_text").0 + offset)
}

fn perf_adds_lists_and_deletes_probes() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    append(&service, "kprobe_events", "p:mine __x64_sys_getpid");
    let shown = mounted.run(
        "perf probe --add 'opening=do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring' 2>&1
        perf probe --add 'do_sys_openat2%return fd=$retval:s32' 2>&1
        perf probe --add 'sc:inside=__x64_sys_getpid+4 $comm' 2>&1
        perf probe --list; perf list 'probe:*'",
    );
    assert!(shown.contains("probe:opening        (on do_sys_openat2 with dfd"), "{shown}");
    let (entry, inside) = (from_text("do_sys_openat2", 0), from_text("__x64_sys_getpid", 4));
    let expected = format!(
        "p:kprobes/mine __x64_sys_getpid\n\
         p:probe/opening {entry} dfd=%di:s32 name=+u0(%si):ustring\n\
         r:probe/do_sys_openat2__return {entry} fd=$retval:s32\n\
         p:sc/inside {inside} comm=$comm\n"
    );
    assert_eq!(cat(&service, "kprobe_events"), expected);
    append(&service, "events/probe/enable", "1");
    append(&service, "events/sc/enable", "1");
    work(&service, "open /dev/null 2");
    work(&service, "getpid 3");
    let trace = cat(&service, "trace");
    let of = |event: &str| lines(&trace).into_iter().filter(|line| line.1 == event).count();
    let events = ["opening", "do_sys_openat2__return", "inside"];
    assert_eq!(events.map(of), [2, 2, 3], "{trace}");

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
        assert!(listed.contains(&format!(" {} ", from_text(function, 0))), "{function}: {listed}");
    }
}

fn perf_reads_arguments_and_lines_from_debug_info() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    let vmlinux = guest_file("vmlinux.debug");
    let shown = mounted.run(&format!(
        "probe() {{ perf probe -k {} \"$@\" 2>&1; }}
        probe --vars do_sys_openat2
        probe --add 'opening=do_sys_openat2 dfd filename@user:string how->flags'
        probe --list",
        vmlinux.display()
    ));
    assert!(shown.contains("filename"), "{shown}");
    append(&service, "events/probe/enable", "1");
    work(&service, "open /dev/null 2");
    let trace = cat(&service, "trace");
    let shown = lines(&trace);
    assert_eq!(shown.len(), 2, "{trace}");
    for Line(_, event, args) in shown {
        assert_eq!(event, "opening");
        assert!(args.contains("dfd=-100") && args.contains("=\"/dev/null\""), "{args}");
    }
}

fn perf_refuses_what_may_not_be_probed() {
    let service = Service::restored(1);
    let mounted = Mounted::new(&service);
    let shown = mounted.run(
        "perf probe --add 'asm_exc_int3 %ax' 2>&1 || true
        perf probe --add 'no_such_function' 2>&1 || true
        perf probe --add 'do_sys_openat2+1' 2>&1 || true",
    );
    assert!(shown.contains("Error: Failed to add events"), "{shown}");
    assert_eq!(cat(&service, "kprobe_events"), "");
}
