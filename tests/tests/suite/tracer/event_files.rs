//! The tracer's files over all events and those of a group, and those that scripts look for first.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases};

use crate::support::tracer::{append, ask, cat, events, refused, replace, work};

pub(crate) const CASES: &[Case] = cases![
    set_event_enables_and_disables_by_name needs [Kvm, Repeat],
    a_filter_of_a_group_is_set_for_events_that_have_its_fields needs [Kvm, Repeat],
    dynamic_events_are_those_of_kprobe_events needs [Kvm, Repeat],
    the_readme_has_each_file_and_what_is_in_it_can_be_defined needs [Kvm, Repeat],
];

const GETPID: &str = "__x64_sys_getpid";
const OPEN: &str = "do_sys_openat2";

fn set_event_enables_and_disables_by_name() {
    let service = Service::restored(1);
    append(&service, "kprobe_events", &format!("p:a {GETPID}\np:g/b {OPEN}"));
    assert_eq!(cat(&service, "available_events"), "g:b\nkprobes:a\n", "the newest first");
    assert_eq!(cat(&service, "set_event"), "");
    let shown = || {
        let trace = cat(&service, "trace");
        let of = |name: &str| events(&trace).iter().filter(|line| line.contains(name)).count();
        (of(": a: ("), of(": b: ("))
    };
    append(&service, "set_event", "kprobes:a");
    work(&service, "getpid 3");
    work(&service, "open /dev/null 2");
    assert_eq!(shown(), (3, 0));
    append(&service, "set_event", "!a g:*");
    assert_eq!(cat(&service, "set_event"), "g:b\n");
    work(&service, "getpid 5");
    work(&service, "open /dev/null 4");
    assert_eq!(shown(), (3, 4));
    for word in ["none", "kprobes:b", "*", "!", "g:b:"] {
        assert_eq!(refused(&service, "set_event", word), "EINVAL", "{word}");
    }
    assert_eq!(cat(&service, "set_event"), "g:b\n", "nothing is changed by what is refused");
    replace(&service, "set_event", "");
    assert_eq!(cat(&service, "set_event"), "");
    work(&service, "open /dev/null 1");
    assert_eq!(shown(), (3, 4));
}

fn a_filter_of_a_group_is_set_for_events_that_have_its_fields() {
    let service = Service::restored(1);
    let define = format!("p:a {GETPID} n=\\1\np:b {GETPID} m=\\2\np:g/c {GETPID} n=\\3");
    append(&service, "kprobe_events", &define);
    append(&service, "events/enable", "1");
    let filter = "events/kprobes/filter";
    append(&service, filter, "n == 5");
    work(&service, "getpid 3");
    let trace = cat(&service, "trace");
    let of = |name: &str| events(&trace).iter().filter(|line| line.contains(name)).count();
    assert_eq!((of(": a: ("), of(": b: ("), of(": c: (")), (0, 3, 3));
    append(&service, filter, "z == 5");
    let log = cat(&service, "error_log");
    assert_eq!(log.matches("Couldn't find or set field").count(), 1 + 2, "{log}");
    assert!(cat(&service, "events/kprobes/a/filter").starts_with("z == 5\n^\nparse_error: "));
    work(&service, "getpid 3");
    let trace = cat(&service, "trace");
    assert_eq!(trace.matches(": a: (").count(), 3, "all are recorded: {trace}");
    append(&service, filter, "0");
    assert_eq!(cat(&service, "events/kprobes/a/filter"), "none\n");
    assert!(cat(&service, filter).starts_with('#'));
    assert_eq!(refused(&service, "events/none/filter", "0"), "ENOENT");
}

fn dynamic_events_are_those_of_kprobe_events() {
    let service = Service::restored(1);
    append(&service, "dynamic_events", &format!("p:a {GETPID} n=\\1"));
    append(&service, "kprobe_events", &format!("r:b {GETPID}"));
    assert_eq!(cat(&service, "dynamic_events"), cat(&service, "kprobe_events"));
    assert_eq!(cat(&service, "dynamic_events").lines().count(), 2);
    append(&service, "dynamic_events", "-:kprobes/b");
    assert_eq!(cat(&service, "dynamic_events").lines().count(), 1);
    assert_eq!(refused(&service, "dynamic_events", "e:x kprobes/a"), "EINVAL");
    replace(&service, "dynamic_events", "");
    assert_eq!(cat(&service, "kprobe_events"), "");
    assert_eq!(cat(&service, "current_tracer"), "nop\n");
    replace(&service, "current_tracer", "nop");
    assert_eq!(refused(&service, "current_tracer", "function"), "EINVAL");
}

/// Texts that perf and the kernel's own tests look for in the file, each with a definition that
/// needs it.
const FEATURES: [(&str, &str); 12] = [
    ("Create/append/", "p:f0 do_sys_openat2"),
    (
        "place (kretprobe): [<module>:]<symbol>[+<offset>]%return|<memaddr>",
        "p:f1 do_sys_openat2%return",
    ),
    ("[u]<offset>", "p:f2 do_sys_openat2 a=+u0(%si):ustring"),
    ("\\imm-value", "p:f3 do_sys_openat2 a=\\1"),
    ("\\\"imm-string\"", "p:f4 do_sys_openat2 a=\\\"x\":string"),
    ("x8/16/32/64", "p:f5 do_sys_openat2 a=%si:x16"),
    ("char, string, symbol,", "p:f6 do_sys_openat2 a=%si:char b=%ip:symbol"),
    ("symstr", "p:f7 do_sys_openat2 a=%ip:symstr"),
    ("<type>\\[<array-size>\\]", "p:f8 do_sys_openat2 a=+0(%sp):u8[4]"),
    ("r[maxactive][:", "r3:f9 do_sys_openat2"),
    ("$arg<N>", "p:f10 do_sys_openat2 a=$arg2"),
    ("b<bit-width>@<bit-offset>/<container-size>", "p:f11 do_sys_openat2 a=%si:b4@2/8"),
];

fn the_readme_has_each_file_and_what_is_in_it_can_be_defined() {
    let service = Service::restored(1);
    let readme = cat(&service, "README");
    for (feature, definition) in FEATURES {
        assert!(readme.contains(feature), "{feature}");
        append(&service, "kprobe_events", definition);
    }
    let events = ["events", "events/ftrace/print", "events/kprobes", "events/kprobes/f0"];
    for folder in ["", "kprobes", "options", "per_cpu/cpu0"].into_iter().chain(events) {
        let listed = ask(&service, "GET", folder, "").json();
        for entry in listed["entries"].as_array().unwrap() {
            let name = entry["name"].as_str().unwrap();
            let is_named =
                [" ", "/"].iter().any(|before| readme.contains(&format!("{before}{name}\t")));
            assert!(
                is_named || name == "README" || entry["kind"] == "directory",
                "{folder}/{name}"
            );
        }
    }
}
