//! Arrays in detours.

use exoprobe_probes::Selection;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases};
use serde_json::{Value, json};

use super::optimize::breakpoints;
use crate::support::returned::events_of;

pub(crate) const CASES: &[Case] = cases![
    arrays_are_recorded_without_an_exit(vcpus),
    arrays_of_texts_are_recorded_without_an_exit(vcpus),
    arrays_that_cannot_be_read_in_the_guest_are_read_by_the_vmm(vcpus),
    arrays_have_the_room_of_a_record(vcpus),
];

/// The values of arguments of an event's hits, all but the first so many.
fn values_of(guest: &TestGuest, event: &str, args: &[&str], after: usize) -> Vec<Vec<Value>> {
    let events = events_of(guest, event);
    let values = |event: &std::sync::Arc<exoprobe_probes::Event>| {
        args.iter().map(|arg| json!(event.args[*arg])).collect()
    };
    events.iter().skip(after).map(values).collect()
}

/// Numbers of so many bytes each, as they are shown.
fn shown(bytes: &[u8], width: usize) -> Value {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let each = bytes.chunks_exact(width).map(|one| format!("{:#x}", number(one)));
    json!(each.collect::<Vec<_>>())
}

/// Hits of an event: how many, and how many of them were recorded and lost.
fn books(guest: &TestGuest, event: &str) -> [u64; 3] {
    let status = guest.status(event);
    [status.hits, status.recorded, status.lost]
}

/// The same calls are first recorded by int3s, then by detours.
fn arrays_are_recorded_without_an_exit(vcpus: u8) {
    const CALLS: u64 = 20;
    let guest = TestGuest::restored(vcpus);
    let users = "chars=+u0(%si):char[9] odd=+u1(%si):x8[5] pairs=+u1(%si):x16[3]";
    let how = "words=+u0(%si):x32[2] how=+0(%dx):x64[3] stack=+8(%sp):s64[2]";
    guest.probe(&format!("p:user do_sys_openat2 {users} {how}"));
    // A struct filename begins with the address of its text.
    let name = "name=+0(+0(%si)):x8[9] pointers=+0(%si):x64[2]";
    let banner = "banner=@linux_banner:x8[13] long=@linux_banner:x64[16]";
    guest.probe(&format!("p:kernel do_filp_open {name} {banner}"));
    guest.probe("r:both do_sys_openat2 path=+u0($arg2):x8[9] three=+u0($arg2):x8[3] fd=$retval");
    let events = ["user", "kernel", "both"];
    let open = || {
        for path in ["/dev/null", "/dev/zero"] {
            assert_eq!(guest.work(&format!("open {path} {CALLS}")), CALLS);
        }
    };
    open();
    events.iter().for_each(|event| guest.optimize(event));
    let before = breakpoints(&guest);
    open();
    assert_eq!(breakpoints(&guest), before);
    let args = [
        &["chars", "odd", "pairs", "words", "how", "stack"][..],
        // Where a struct filename is may change from call to call.
        &["name", "banner", "long"],
        &["path", "three", "fd"],
    ];
    let all = 2 * usize::try_from(CALLS).unwrap();
    for (event, args) in events.into_iter().zip(args) {
        let count = 4 * CALLS;
        assert_eq!(books(&guest, event), [count, count, 0], "{event}");
        let by_vmm = values_of(&guest, event, args, 0);
        let by_detour = values_of(&guest, event, args, all);
        assert_eq!(by_vmm[..all], by_detour, "{event}");
    }
    let values = |event: &str, args| values_of(&guest, event, args, all);
    let paths = [&b"/dev/null"[..], b"/dev/zero"];
    for (at, path) in paths.into_iter().enumerate() {
        let at = at * usize::try_from(CALLS).unwrap();
        let chars: Vec<String> = path.iter().map(|byte| char::from(*byte).to_string()).collect();
        let user =
            [json!(chars), shown(&path[1..6], 1), shown(&path[1..7], 2), shown(&path[..8], 4)];
        assert_eq!(values("user", &args[0][..4])[at], user);
        assert_eq!(values("kernel", &["name"])[at], [shown(path, 1)]);
        let both = [shown(path, 1), shown(&path[..3], 1)];
        assert_eq!(values("both", &["path", "three"])[at], both);
    }
    assert_eq!(values("kernel", &["banner"])[0], [shown(b"Linux version", 1)]);
    let pointers = values("kernel", &["pointers"]);
    assert!(pointers.iter().all(|it| it[0][0].as_str().unwrap().starts_with("0xffff")));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// A struct filename begins with the addresses of its text in the kernel and in the program. The
/// same calls are first recorded by int3s, then by detours.
fn arrays_of_texts_are_recorded_without_an_exit(vcpus: u8) {
    const CALLS: u64 = 20;
    let guest = TestGuest::restored(vcpus);
    let texts = "both=+0(%si):string[2] dfd=%di:s32 one=+8(%si):ustring[1] name=+0(+0(%si)):string";
    let names = "flags=+0(%dx):x32[1] names=@migratetype_names:string[3]";
    guest.probe(&format!("p:hit do_filp_open {texts} {names}"));
    guest.probe("r:back do_filp_open both=+0($arg2):string[2] dfd=$arg1:s32 file=$retval");
    let open = || {
        for path in ["/dev/null", "/dev/zero"] {
            assert_eq!(guest.work(&format!("open {path} {CALLS}")), CALLS);
        }
    };
    open();
    ["hit", "back"].iter().for_each(|event| guest.optimize(event));
    let before = breakpoints(&guest);
    open();
    assert_eq!(breakpoints(&guest), before);
    let args = [&["both", "dfd", "one", "name", "flags", "names"][..], &["both", "dfd"]];
    let all = usize::try_from(2 * CALLS).unwrap();
    for (event, args) in ["hit", "back"].into_iter().zip(args) {
        assert_eq!(books(&guest, event), [4 * CALLS, 4 * CALLS, 0], "{event}");
        let by_vmm = values_of(&guest, event, args, 0);
        assert_eq!(by_vmm[..all], values_of(&guest, event, args, all), "{event}");
        for (at, path) in [(0, "/dev/null"), (all - 1, "/dev/zero")] {
            assert_eq!(by_vmm[at][..2], [json!([path, path]), json!(-100)], "{event}");
        }
    }
    let one = &values_of(&guest, "hit", &["one", "name", "names"], all)[0];
    let names = json!(["Unmovable", "Movable", "Reclaimable"]);
    assert_eq!(one[..], [json!(["/dev/null"]), json!("/dev/null"), names]);
    guest.engine.unregister(Selection::all()).unwrap();
    // The first is none of a program's; the VMM reads both.
    guest.probe("p:hit do_filp_open both=+0(%si):ustring[2]");
    guest.optimize("hit");
    let (before, seen) = (breakpoints(&guest), events_of(&guest, "hit").len());
    assert_eq!(guest.work("open /dev/null 10"), 10);
    assert_eq!((breakpoints(&guest) - before, books(&guest, "hit")), (10, [10, 10, 0]));
    let found = values_of(&guest, "hit", &["both"], seen);
    assert_eq!(found, vec![[json!(["(fault)", "/dev/null"])]; 10]);
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Pointers to nothing fault in the detour; memory of a user that is not said to be one's may not
/// be mapped, and the kernel's is no user's.
fn arrays_that_cannot_be_read_in_the_guest_are_read_by_the_vmm(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:one do_sys_openat2 path=+u0(%si):x8[9] two=+u0(+u0(%si)):x32[2]");
    guest.optimize("one");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("badptr 10"), 10);
    let faults = guest.hits("one");
    assert!(faults > 1);
    assert_eq!(breakpoints(&guest) - before, faults, "one exit a hit");
    let found = values_of(&guest, "one", &["path", "two"], 0);
    assert!(found.iter().flatten().all(|value| value == "(fault)"), "{found:?}");
    guest.engine.unregister(Selection::all()).unwrap();
    // Where only one of them faults, the others are there.
    guest.probe("p:some do_sys_openat2 path=+u0(%si):x8[9] two=+u0(+u0(%si)):x32[2]");
    guest.optimize("some");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("open /dev/null 10"), 10);
    assert_eq!(breakpoints(&guest) - before, 10);
    assert_eq!(books(&guest, "some"), [10, 10, 0]);
    let path = shown(b"/dev/null", 1);
    let expected = vec![vec![path.clone(), json!("(fault)")]; 10];
    assert_eq!(values_of(&guest, "some", &["path", "two"], 0), expected);
    guest.engine.unregister(Selection::all()).unwrap();
    for (arg, value) in [("+0(%si):x8[9]", path), ("+u0(%sp):x64[4]", json!("(fault)"))] {
        guest.probe(&format!("p:plain do_sys_openat2 it={arg}"));
        guest.optimize("plain");
        let (before, seen) = (breakpoints(&guest), events_of(&guest, "plain").len());
        assert_eq!(guest.work("open /dev/null 10"), 10);
        assert_eq!(breakpoints(&guest) - before, 10, "{arg}");
        assert_eq!(books(&guest, "plain"), [10, 10, 0], "{arg}");
        assert_eq!(values_of(&guest, "plain", &["it"], seen), vec![[value]; 10], "{arg}");
        guest.engine.unregister(Selection::all()).unwrap();
    }
    guest.assert_unharmed();
}

/// Beyond it they are read by the VMM.
fn arrays_have_the_room_of_a_record(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let array = |name: &str, count: u8| format!("{name}=@linux_banner:x64[{count}]");
    let most = [array("a", 64), array("b", 64)].join(" ");
    guest.probe(&format!("p:most __x64_sys_getpid {most}"));
    assert_eq!(guest.work("getpid 1"), 1);
    guest.optimize("most");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("getpid 300"), 300);
    assert_eq!((breakpoints(&guest), books(&guest, "most")), (before, [301, 301, 0]));
    let found = values_of(&guest, "most", &["a", "b"], 0);
    assert_eq!(found.len(), 301);
    assert!(found.iter().all(|values| *values == found[0]), "the first is the VMM's");
    assert_eq!(found[0][0].as_array().map(Vec::len), Some(64));
    guest.engine.unregister(Selection::all()).unwrap();
    for (args, rule) in [
        (format!("{most} c=%ip"), "assembler: a record has no room for its arrays"),
        ("a=+0(%sp):string[9]".to_owned(), "assembler: arguments that read memory need more"),
    ] {
        guest.probe(&format!("p:more __x64_sys_getpid {args}"));
        guest.engine.optimize();
        let reason = guest.status("more").unoptimized_reason.unwrap_or_default();
        assert!(reason.starts_with(rule), "{args}: {reason}");
        assert_eq!(guest.work("getpid 3"), 3);
        assert_eq!(books(&guest, "more"), [3, 3, 0]);
        guest.engine.unregister(Selection::all()).unwrap();
    }
    guest.assert_unharmed();
}
