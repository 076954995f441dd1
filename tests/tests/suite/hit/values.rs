//! Values of the tracer's language, of both its generations, as a guest's calls have them.

use exoprobe_probes::ProbeError;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, cases, definition};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    both_generations_of_the_language_see_the_same_call,
    selectors_are_the_kernels_own(vcpus),
    arrays_texts_and_constants_are_recorded,
    text_chooses_the_hits_that_are_recorded(vcpus),
    a_filter_changes_while_its_probe_is_there(vcpus),
    a_return_probes_filter_changes_too(vcpus),
    filters_compare_addresses_of_a_probe_and_lists_of_cpus needs [Kvm, Repeat],
];

/// The arguments of a probe's events.
fn events_of(guest: &TestGuest, event: &str) -> Vec<serde_json::Map<String, Value>> {
    guest.engine.drain();
    let events = guest.engine.events().read(1, 10_000).events;
    events.iter().filter(|it| &*it.event == event).map(|it| it.args.clone()).collect()
}

fn both_generations_of_the_language_see_the_same_call() {
    let guest = TestGuest::restored(1);
    let line = "p:w ksys_write a0 a1 a2 sa s0 $arg1 $arg2 $arg3 $stack $stack0 fd=%di count=%dx";
    guest.probe(line);
    guest.probe("r:ret ksys_write rv ra $retval at=%ip");
    assert_eq!(guest.work("write 3"), 3);
    let is_work = |args: &&serde_json::Map<String, Value>| args["a2"] == "0x1";
    let of_work: Vec<_> = events_of(&guest, "w");
    assert_eq!(of_work.iter().filter(is_work).count(), 3);
    for args in &of_work {
        for (old, new) in
            [("a0", "arg6"), ("a1", "arg7"), ("a2", "arg8"), ("sa", "arg9"), ("s0", "arg10")]
        {
            assert_eq!(args[old], args[new], "{old}: {args:?}");
        }
        assert_eq!((&args["a0"], &args["a2"]), (&args["fd"], &args["count"]));
    }
    for args in events_of(&guest, "ret") {
        assert_eq!((&args["rv"], &args["ra"]), (&args["arg3"], &args["at"]), "{args:?}");
    }
    guest.assert_unharmed();
}

/// __KERNEL_CS (arch/x86/include/asm/segment.h); SS is __KERNEL_DS, or null where the kernel was
/// entered as by an interrupt, as KVM without hardware does it.
fn selectors_are_the_kernels_own(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:g __x64_sys_getpid cs=%cs ss=%ss orig_ax=%orig_ax n=%cs:u8");
    assert_eq!(guest.work("getpid 3"), 3);
    guest.optimize("g");
    let before = guest.vm.exit_counts().breakpoint;
    assert_eq!(guest.work("getpid 3"), 3);
    assert_eq!(guest.vm.exit_counts().breakpoint, before, "within the guest");
    let events = events_of(&guest, "g");
    assert_eq!(events.len(), 6);
    let ss = &events[0]["ss"];
    assert!(ss == "0x18" || ss == "0x0", "{ss}");
    let expected = json!({"cs": "0x10", "ss": ss, "orig_ax": "0xffffffffffffffff", "n": 16});
    assert!(events.iter().all(|args| json!(args) == expected), "{events:?}");
    guest.assert_unharmed();
}

fn arrays_texts_and_constants_are_recorded() {
    let guest = TestGuest::restored(1);
    let args = [
        "$comm c=\\0x2a t=\\\"exo:probe\" b=@linux_banner:char[5] w=@linux_banner:x16[2]",
        "s=@linux_banner:string y=%ip:symbol n=%ip:symstr v=@linux_banner:b4@4/8 z=+u0(%ip):x8",
    ];
    guest.probe(&format!("p:g __x64_sys_getpid {}", args.join(" ")));
    assert_eq!(guest.work("getpid 2"), 2);
    let events = events_of(&guest, "g");
    assert_eq!(events.len(), 2);
    let args = &events[0];
    assert_eq!(args["arg1"], "init");
    assert_eq!((&args["c"], &args["t"]), (&json!("0x2a"), &json!("exo:probe")));
    assert_eq!(args["b"], json!(["L", "i", "n", "u", "x"]));
    assert_eq!(args["w"], json!(["0x694c", "0x756e"]));
    assert!(args["s"].as_str().is_some_and(|text| text.starts_with("Linux version ")), "{args:?}");
    assert!(
        args["y"].as_str().is_some_and(|at| at.starts_with("__x64_sys_getpid+0x0/")),
        "{args:?}"
    );
    assert_eq!((&args["n"], &args["v"]), (&args["y"], &json!(4)), "'L' is 0x4c");
    assert_eq!(args["z"], "(fault)", "text of the kernel is no user's");
    guest.assert_unharmed();
}

/// Hits, and how many of them were recorded and filtered.
fn books(guest: &TestGuest, event: &str) -> (u64, u64, u64) {
    let status = guest.status(event);
    (status.hits, status.recorded, status.filtered)
}

fn set_filter(guest: &TestGuest, event: &str, filter: Option<&str>) -> Result<(), ProbeError> {
    let filter = filter.map(|text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}")));
    guest.engine.set_filter("kprobes", event, filter)
}

fn text_chooses_the_hits_that_are_recorded(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let mut named = definition("p:named __x64_sys_getpid $comm by=%ip:symstr");
    named.filter =
        Some("arg1 ~ \"in?t\" && comm != \"other\" && by ~ \"*_getpid+*\"".parse().unwrap());
    guest.engine.register(named).unwrap();
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!(books(&guest, "named"), (20, 20, 0));
    set_filter(&guest, "named", Some("comm == \"nobody\"")).unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(books(&guest, "named"), (30, 20, 10));
    guest.assert_unharmed();
}

fn a_filter_changes_while_its_probe_is_there(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:g __x64_sys_getpid pid=%di c=$comm n=\\5");
    assert_eq!(guest.work("getpid 20"), 20);
    guest.optimize("g");
    set_filter(&guest, "g", Some("common_pid == 0x7fffffff")).unwrap();
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(books(&guest, "g"), (30, 20, 10));
    guest.optimize("g");
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(books(&guest, "g"), (40, 20, 20), "within the guest");
    assert_eq!(guest.status("g").filter.as_deref(), Some("common_pid == 0x7fffffff"));
    let refused = set_filter(&guest, "g", Some("nope == 1")).unwrap_err();
    assert!(refused.to_string().contains("`nope` is no field"), "{refused}");
    assert_eq!(guest.work("getpid 5"), 5);
    assert_eq!(books(&guest, "g"), (45, 20, 25), "the filter of before is still there");
    set_filter(&guest, "g", None).unwrap();
    guest.optimize("g");
    assert_eq!(guest.work("getpid 5"), 5);
    assert_eq!(books(&guest, "g"), (50, 25, 25));
    let last = events_of(&guest, "g").pop().expect("25 events");
    assert_eq!((&last["c"], &last["n"]), (&json!("init"), &json!("0x5")), "of a detour");
    guest.assert_unharmed();
}

fn a_return_probes_filter_changes_too(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("r:ret ksys_write result=$retval:s32");
    set_filter(&guest, "ret", Some("result == 1")).unwrap();
    assert_eq!(guest.work("write 20"), 20);
    guest.optimize("ret");
    let exits = || guest.vm.exit_counts().breakpoint;
    let before = exits();
    assert_eq!(guest.work("write 20"), 20);
    assert_eq!(exits(), before, "within the guest");
    assert_eq!(books(&guest, "ret").1, 40);
    set_filter(&guest, "ret", Some("result == 12345")).unwrap();
    assert_eq!(guest.work("write 20"), 20);
    guest.optimize("ret");
    let before = exits();
    assert_eq!(guest.work("write 20"), 20);
    assert_eq!(exits(), before, "by new code, within the guest");
    assert_eq!(books(&guest, "ret").1, 40);
    set_filter(&guest, "ret", Some("result == 1 && comm == \"init\"")).unwrap();
    assert_eq!(guest.work("write 20"), 20);
    set_filter(&guest, "ret", None).unwrap();
    let (hits, recorded, filtered) = books(&guest, "ret");
    assert_eq!((recorded, filtered), (60, hits - 60));
    // The workload's answer is a write, too, and is read here before that returns.
    guest.wait_until("the answer's write returns", |g| g.status("ret").active == Some(0));
    let status = guest.status("ret");
    assert_eq!((status.lost, status.nmissed), (0, 0));
    guest.assert_unharmed();
}

fn filters_compare_addresses_of_a_probe_and_lists_of_cpus() {
    let guest = TestGuest::restored(1);
    guest.probe("p:g __x64_sys_getpid");
    guest.probe("r:ret __x64_sys_getpid to=ra");
    assert_eq!(guest.work("getpid 1"), 1);
    let to = events_of(&guest, "ret").pop().expect("the call")["to"].clone();
    let to = to.as_str().expect("an address").to_owned();
    let address = |event: &str| guest.status(event).addr.expect("it is placed").to_string();
    let (at, function) = (address("g"), address("ret"));
    // Over an int3, and within the guest.
    for optimized in [false, true] {
        for (sign, recorded) in [("==", 10), ("!=", 0)] {
            set_filter(&guest, "g", Some(&format!("__probe_ip {sign} {at}"))).unwrap();
            let both = format!("__probe_func == {function} && __probe_ret_ip {sign} {to}");
            set_filter(&guest, "ret", Some(&both)).unwrap();
            if optimized {
                guest.optimize("g");
                guest.optimize("ret");
            }
            let before = ["g", "ret"].map(|event| books(&guest, event).1);
            let exits = guest.vm.exit_counts().breakpoint;
            assert_eq!(guest.work("getpid 10"), 10);
            let after = ["g", "ret"].map(|event| books(&guest, event).1);
            assert_eq!(after, before.map(|count| count + recorded), "{sign} {optimized}");
            let has_exits = guest.vm.exit_counts().breakpoint > exits;
            assert_eq!(has_exits, !optimized, "{sign} {optimized}");
        }
    }
    for (list, recorded) in [("0,2-3", 5), ("1-N", 0)] {
        set_filter(&guest, "g", Some(&format!("CPU & CPUS{{{list}}}"))).unwrap();
        let before = books(&guest, "g").1;
        assert_eq!(guest.work("getpid 5"), 5);
        assert_eq!(books(&guest, "g").1, before + recorded, "{list}");
    }
    for (event, field) in [("g", "__probe_func"), ("g", "__probe_ret_ip"), ("ret", "__probe_ip")] {
        let refused = set_filter(&guest, event, Some(&format!("{field} == 1"))).unwrap_err();
        assert!(refused.to_string().contains("is no field"), "{refused}");
    }
    guest.assert_unharmed();
}
