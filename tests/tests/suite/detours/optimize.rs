//! Jump optimization: hits that never leave the guest, and all that ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gpa, Gva};
use exoprobe_probes::{
    Action, Event, Kprobe, NewProbe, ProbeDefinition, ProbeStatus, Selection, StatusFlag, Verdict,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{
    PATIENCE, Service, TestGuest, address, cases, definition, http, kernel_symbols,
};

use crate::support::returned::{By, SCRATCH, assert_durations, events_of, follow, values};

pub(crate) const CASES: &[Case] = cases![
    optimized_hits_are_recorded_without_an_exit(vcpus),
    optimized_return_probes_follow_calls_without_an_exit(vcpus),
    calls_within_one_another_are_missed_beyond_maxactive(vcpus),
    detours_read_the_same_values_as_the_vmm(vcpus),
    memory_that_may_not_be_there_is_read_by_the_vmm(vcpus),
    optimizations_end_and_come_back(vcpus),
    the_rule_that_stops_an_optimization_is_named(vcpus),
    a_full_ring_loses_records_and_no_hit(vcpus),
    guest_writes_into_rings_cost_records_only(vcpus),
    every_function_that_the_rules_allow_is_optimized_and_put_back needs [Kvm, Smp, Repeat],
    the_service_optimizes_by_itself_unless_switched_off,
];

const GETPID: &str = "__x64_sys_getpid";
/// f: nop; dec edi; jz 1f; call f; inc eax; ret; 1: mov eax, 1; ret. So f(n) is n, by n calls in
/// one another.
const RECURSIVE: [u8; 23] = [
    0x0f, 0x1f, 0x44, 0x00, 0x00, 0xff, 0xcf, 0x74, 0x08, 0xe8, 0xf2, 0xff, 0xff, 0xff, 0xff, 0xc0,
    0xc3, 0xb8, 1, 0, 0, 0, 0xc3,
];
const ARGS: &str = "%di %si %dx %cx";

fn is_optimized(guest: &TestGuest, event: &str) -> bool {
    guest.status(event).flags == [StatusFlag::Optimized]
}

/// Why a probe is not optimized after a pass.
fn reason(guest: &TestGuest, event: &str) -> String {
    guest.engine.optimize();
    let status = guest.status(event);
    assert!(!status.flags.contains(&StatusFlag::Optimized), "{status:?}");
    status.unoptimized_reason.unwrap_or_default()
}

/// Exits of the guest by int3s so far.
pub(super) fn breakpoints(guest: &TestGuest) -> u64 {
    guest.vm.exit_counts().breakpoint
}

fn optimized_hits_are_recorded_without_an_exit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let text = guest.kernel_text();
    guest.probe(&format!("p:args {GETPID} {ARGS}"));
    assert_eq!(guest.work("getpid 10"), 10);
    guest.optimize("args");
    assert!(guest.list_text().contains("[OPTIMIZED]"), "{}", guest.list_text());
    let before = breakpoints(&guest);
    let calls = if vcpus == 1 { guest.work("getpid 1000") } else { guest.work("par 2 getpid 500") };
    assert_eq!((calls, breakpoints(&guest) - before), (1000, 0));
    let status = guest.status("args");
    assert_eq!((status.hits, status.recorded, status.lost), (1010, 1010, 0), "{status:?}");
    guest.engine.drain();
    let events = guest.engine.events().read(1, 2000).events;
    assert_eq!(events.len(), 1010);
    assert!(events.windows(2).all(|pair| pair[0].time <= pair[1].time), "by time");
    // The same system call, recorded by an int3's hit and by a detour's: by the same clock.
    let (first, last) = (&events[0], &events[1009]);
    assert!(last.time - first.time < PATIENCE.as_secs_f64(), "{} {}", first.time, last.time);
    assert_eq!(first.args.len(), 4);
    assert!(first.pid.is_some() && first.comm.is_some(), "{first:?}");
    assert!(vcpus > 1 || (first.pid, &first.comm) == (last.pid, &last.comm), "{last:?}");
    assert_eq!(first.args.keys().collect::<Vec<_>>(), last.args.keys().collect::<Vec<_>>());
    let vcpus_seen: BTreeSet<u8> = events.iter().map(|e| e.vcpu).collect();
    assert_eq!(vcpus_seen.len(), usize::from(vcpus));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_text(&text);
    guest.assert_unharmed();
    assert!(guest.engine.traceless().is_some());
    // By KVM's log of what the guest writes, no stop was for a look at all RAM.
    let searches = guest.engine.stop_statistics().searches;
    assert!(searches.searches > 1 && searches.pages_running > 0, "{searches:?}");
    assert_eq!((searches.all_stopped, searches.reason), (0, None));
    assert!(searches.most_pages_stopped <= 512, "{}", searches.most_pages_stopped);
}

fn optimized_return_probes_follow_calls_without_an_exit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let text = guest.kernel_text();
    guest.probe(&format!("p:entered {GETPID} regs=%di above=$stack1"));
    guest.probe(&format!("r:ret {GETPID} pid=$retval regs=$arg1 above=$arg7"));
    guest.probe(&format!("r:also {GETPID} pid=$retval"));
    let calls = |count: u64| match vcpus {
        1 => guest.work(&format!("getpid {count}")),
        _ => guest.work(&format!("par 2 getpid {}", count / 2)),
    };
    assert_eq!(calls(10), 10);
    guest.optimize("ret");
    let before = breakpoints(&guest);
    assert_eq!(calls(1000), 1000);
    assert_eq!(breakpoints_since(&guest, before, deaths(vcpus)), deaths(vcpus));
    let status = guest.status("ret");
    assert_eq!((status.hits, status.recorded, status.lost), (1010, 1010, 0), "{status:?}");
    assert_eq!((status.nmissed, status.active), (0, Some(0)));
    let events = events_of(&guest, "ret");
    assert_eq!(events.len(), 1010);
    let caller = events[0].ret_addr.as_ref();
    for event in &events {
        assert_eq!(event.ret_addr.as_ref(), caller, "as the VMM saw it");
        let pid = format!("{:#x}", event.pid.expect("it is known"));
        assert_eq!(event.args["pid"], pid, "the caller got the answer");
    }
    // Its site has an int3 again, and its calls still return within the guest.
    guest.engine.allow_optimization(false);
    let before = breakpoints(&guest);
    assert_eq!(calls(100), 100);
    let expected = 100 + deaths(vcpus);
    assert_eq!(breakpoints_since(&guest, before, expected), expected);
    assert_eq!(guest.hits("ret"), 1110);
    let status = guest.status("also");
    assert_eq!((status.hits, status.nmissed, status.active), (1110, 0, Some(0)), "{status:?}");
    let assert_same = |name: &str, events: [&str; 2]| {
        let all = events.map(|event| events_of(&guest, event));
        let mut all = all.each_ref().map(|events| values(events, name));
        all.iter_mut().for_each(|values| values.sort_unstable());
        assert_eq!(all[0].len(), 1110);
        assert_eq!(all[0], all[1], "{name}");
    };
    assert_same("pid", ["ret", "also"]);
    // The guest kept these in its instances, and at the end the VMM.
    for name in ["regs", "above"] {
        assert_same(name, ["entered", "ret"]);
    }
    assert_durations(&guest, "ret");
    if vcpus == 1 {
        assert_lie_between(&events_of(&guest, "entered"), &events_of(&guest, "ret"));
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_text(&text);
    guest.assert_unharmed();
    assert!(guest.engine.traceless().is_some());
}

/// Each call began when it was entered, as the kprobe before it saw that, or later; and the last
/// one had ended then.
#[expect(clippy::cast_precision_loss, reason = "2^53 nanoseconds are 104 days")]
fn assert_lie_between(entered: &[Arc<Event>], returned: &[Arc<Event>]) {
    // Of a double's seconds, in nanoseconds.
    const ROUNDING: f64 = 2.0;
    let nanos = |event: &Event| event.time * 1e9;
    let began = |event: &Event| nanos(event) - event.duration_ns.unwrap() as f64;
    assert_eq!(entered.len(), returned.len());
    for (entered, returned) in entered.iter().zip(returned) {
        assert!(began(returned) >= nanos(entered) - ROUNDING, "{entered:?} {returned:?}");
    }
    for calls in returned.windows(2) {
        assert!(began(&calls[1]) >= nanos(&calls[0]) - ROUNDING, "{calls:?}");
    }
}

/// Breakpoints since there were `before`, once there are as many as `expected`, or after
/// [`PATIENCE`]: a child's parent goes on before the child has died.
fn breakpoints_since(guest: &TestGuest, before: u64, expected: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    while breakpoints(guest) - before < expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    breakpoints(guest) - before
}

/// Exits of children that end, which return probes are watched for at two places.
fn deaths(vcpus: u8) -> u64 {
    if vcpus == 1 { 0 } else { 2 * 2 }
}

fn calls_within_one_another_are_missed_beyond_maxactive(vcpus: u8) {
    const DEPTH: u64 = 5;
    let guest = TestGuest::restored(vcpus);
    let f = address(SCRATCH);
    let gpa = Gpa(f.0 - KERNEL_IMAGE_BASE.0);
    guest.vm.ram().write(gpa, &RECURSIVE).expect("kernel text is in RAM");
    let divert = Kprobe {
        definition: definition(&format!("p:divert {GETPID}")),
        pre_handler: Some(Box::new(move |hit| {
            (hit.regs.rip, hit.regs.rdi) = (f.0, DEPTH);
            Verdict::Done
        })),
        ..Kprobe::default()
    };
    guest.engine.register(divert).unwrap();
    guest.probe(&format!("r3:three {SCRATCH} $retval"));
    let rounds = |rounds: u64| assert_eq!(guest.work(&format!("getpid {rounds}")), rounds);
    rounds(10);
    guest.optimize("three");
    rounds(10);
    guest.engine.allow_optimization(false);
    rounds(10);
    let three = guest.status("three");
    assert_eq!((three.hits, three.nmissed, three.active), (30 * 3, 30 * 2, Some(0)));
    let events = events_of(&guest, "three");
    let values: Vec<&str> = events.iter().filter_map(|e| e.args["arg1"].as_str()).collect();
    assert_eq!(values, ["0x3", "0x4", "0x5"].repeat(30), "the outer calls");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Memory of the kernel's that stays: a file's operations, its image, the stack.
fn detours_read_the_same_values_as_the_vmm(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let banner = kernel_symbols().address_of("linux_banner").unwrap();
    // A write's struct file, its operations, the first of them; and the caller.
    guest.probe(&format!(
        "p:file vfs_write %di +40(%di) +8(+40(%di)) $stack0 $stack1 $stack banner=@{banner}"
    ));
    let write = |count: u64| assert_eq!(guest.work(&format!("write {count}")), count);
    write(20);
    guest.optimize("file");
    let before = (guest.hits("file"), breakpoints(&guest));
    write(20);
    assert_eq!(breakpoints(&guest) - before.1, 0);
    assert!(guest.hits("file") >= before.0 + 20, "answers are written, too");
    let events = events_of(&guest, "file");
    let (by_vmm, by_detour) = events.split_at(usize::try_from(before.0).unwrap());
    let different = |events: &[Arc<Event>]| {
        // Where the file is differs from open to open, when the kernel frees late.
        let all = events.iter().map(|event| {
            let args = event.args.iter().filter(|(name, _)| *name != "arg1");
            format!("{:?}", args.collect::<Vec<_>>())
        });
        all.collect::<BTreeSet<String>>()
    };
    assert_eq!(different(by_vmm), different(by_detour));
    assert_eq!(by_detour[0].args["banner"], "0x65762078756e694c", "Linux ve");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Memory that is not said to be a user's is read by the tables of the moment, with an exit, where
/// the kernel does not keep it mapped.
fn memory_that_may_not_be_there_is_read_by_the_vmm(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe("p:user vfs_write +0(%si) len=%dx");
    guest.probe("r:user_ret vfs_write $retval");
    let write = |count: u64| assert_eq!(guest.work(&format!("write {count}")), count);
    write(5);
    guest.optimize("user");
    let before = (guest.hits("user"), breakpoints(&guest));
    write(20);
    let hits = guest.hits("user") - before.0;
    assert_eq!(breakpoints(&guest) - before.1, hits, "one exit a hit");
    let status = guest.status("user");
    assert_eq!((status.recorded, status.lost), (status.hits, 0));
    let events = events_of(&guest, "user");
    assert!(events.iter().all(|event| event.args["arg1"] != "(fault)"), "{:?}", events[0]);
    guest.wait_until("the answer's write returns", |g| g.hits("user_ret") == g.hits("user"));
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn optimizations_end_and_come_back(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:count {GETPID}"));
    guest.optimize("count");
    let engine = &guest.engine;
    engine.set_enabled(Selection::kprobe("kprobes", "count"), false).unwrap();
    assert_eq!(guest.work("getpid 5"), 5);
    assert_eq!(guest.status("count").flags, [StatusFlag::Disabled]);
    engine.set_enabled(Selection::kprobe("kprobes", "count"), true).unwrap();
    assert_eq!(guest.status("count").flags, []);
    guest.optimize("count");
    engine.switch(false).unwrap();
    assert_eq!(guest.work("getpid 5"), 5);
    engine.switch(true).unwrap();
    assert_eq!((guest.hits("count"), is_optimized(&guest, "count")), (0, false));
    guest.optimize("count");
    engine.allow_optimization(false);
    assert!(!is_optimized(&guest, "count") && !engine.is_optimization_allowed());
    assert!(reason(&guest, "count").starts_with("off: "));
    assert_eq!(guest.work("getpid 7"), 7);
    engine.allow_optimization(true);
    guest.optimize("count");
    let post = Kprobe {
        definition: definition(&format!("p:post {GETPID}")),
        post_handler: Some(Box::new(|_| {})),
        ..Kprobe::default()
    };
    engine.register(post).unwrap();
    assert!(reason(&guest, "count").starts_with("post-handler: "));
    assert_eq!(guest.work("getpid 11"), 11);
    engine.unregister(Selection::kprobe("kprobes", "post")).unwrap();
    guest.optimize("count");
    guest.probe(&format!("p:inside {GETPID}+1"));
    assert!(reason(&guest, "count").starts_with("other-probe: "));
    assert_eq!(guest.work("getpid 13"), 13);
    assert_eq!(guest.hits("inside"), 13);
    engine.unregister(Selection::kprobe("kprobes", "inside")).unwrap();
    guest.probe(&format!("p:second {GETPID} %di"));
    guest.optimize("second");
    assert!(is_optimized(&guest, "count"), "both are");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("getpid 17"), 17);
    assert_eq!(breakpoints(&guest), before);
    assert_eq!((guest.hits("count"), guest.hits("second")), (7 + 11 + 13 + 17, 17));
    engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn the_rule_that_stops_an_optimization_is_named(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:memory {GETPID} @0x1000"));
    guest.probe("p:entry entry_SYSCALL_64");
    follow(&guest, "r:site vfs_read", By::Site);
    let handler = Kprobe {
        definition: definition("p:handler vfs_write"),
        pre_handler: Some(Box::new(|_| Verdict::Continue)),
        ..Kprobe::default()
    };
    guest.engine.register(handler).unwrap();
    guest.engine.optimize();
    for (event, rule) in [
        ("memory", "memory"),
        ("entry", "reserved"),
        ("site", "return-mode"),
        ("handler", "handler"),
    ] {
        let why = reason(&guest, event);
        assert!(why.starts_with(&format!("{rule}: ")), "{event}: {why}");
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn a_full_ring_loses_records_and_no_hit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:args {GETPID} {}", "%di ".repeat(128).trim_end()));
    guest.optimize("args");
    // 1056 bytes each: more than all vCPUs' rings hold, without a reader. The caller may be moved
    // from one vCPU to another.
    let calls = 4500 * u64::from(vcpus);
    assert_eq!(guest.work(&format!("getpid {calls}")), calls);
    let status = guest.status("args");
    assert_eq!(status.hits, calls);
    assert!(status.lost > 0 && status.recorded > 100, "{status:?}");
    assert_eq!(guest.work("getpid 100"), 100);
    let after = guest.status("args");
    assert_eq!((after.hits, after.lost), (calls + 100, status.lost), "it goes on");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

fn guest_writes_into_rings_cost_records_only(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:args {GETPID} %di"));
    guest.optimize("args");
    assert_eq!(guest.work("getpid 50"), 50);
    // As code of the guest's could: all that detours write to, but for counters.
    let window = guest.vm.hidden().rings_window().unwrap();
    let len = usize::try_from(window.len).unwrap();
    guest.vm.hidden().write(window.offset, &vec![0xa5; len]);
    let status = guest.status("args");
    assert!(status.hits <= 50, "{status:?}");
    assert_eq!(guest.work("getpid 50"), 50);
    let after = guest.status("args");
    assert_eq!(after.hits - status.hits, 50, "{after:?}");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.assert_unharmed();
}

/// Functions of the resident text, each once.
fn functions() -> Vec<Gva> {
    let symbols = kernel_symbols();
    let text = symbols.lookup("_stext").unwrap().address..symbols.lookup("_etext").unwrap().address;
    let starts = symbols.iter().filter_map(|symbol| {
        let function = symbols.function_at(symbol.address)?;
        let is_start = function.start == symbol.address && text.contains(&symbol.address);
        is_start.then_some(symbol.address)
    });
    let mut starts: Vec<Gva> = starts.collect();
    starts.dedup();
    starts
}

/// Probes that only count at these addresses, but for those that are refused; gives how many these
/// are.
fn count_at(guest: &TestGuest, mut places: Vec<Gva>) -> usize {
    let total = places.len();
    let probe = |at: &Gva| {
        let (addr, actions) = (Some(*at), vec![Action::Count]);
        NewProbe::from(ProbeDefinition { addr, actions, ..ProbeDefinition::default() })
    };
    let batch = |places: &[Gva]| places.iter().map(probe).collect::<Vec<_>>();
    while let Err(refused) = guest.engine.register(batch(&places)) {
        places.remove(refused.index);
    }
    total - places.len()
}

fn every_function_that_the_rules_allow_is_optimized_and_put_back() {
    let guest = TestGuest::restored(2);
    let text = guest.kernel_text();
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    let (mut optimized, mut refused) = (0, 0);
    for batch in functions().chunks(2000) {
        refused += count_at(&guest, batch.to_vec());
        guest.engine.optimize();
        assert_eq!(guest.work("getpid 20"), 20);
        for command in ["open /dev/null 5", "write 5", "fork 2", "mmap 5"] {
            let _ = guest.work(command);
        }
        for status in guest.engine.list() {
            match rule(&status) {
                None => optimized += 1,
                Some(rule) => *rules.entry(rule).or_default() += 1,
            }
        }
        guest.engine.unregister(Selection::all()).unwrap();
        guest.assert_text(&text);
    }
    eprintln!("{optimized} functions optimized; {refused} not probed; not optimized: {rules:?}");
    assert!(optimized > 1000, "{optimized}: {rules:?}");
    guest.assert_unharmed();
}

fn the_service_optimizes_by_itself_unless_switched_off() {
    const SWITCH: &str = "/v1/kprobes/optimization";
    let service = Service::restored(1);
    let ask = |method: &str, path: &str, body: &str| {
        let headers = ["content-type: text/plain"];
        http::ask(service.socket(), method, path, &headers, body.as_bytes())
    };
    let made =
        ask("POST", "/v1/probes", &format!("p:count {GETPID} %di\np:memory {GETPID}+1 @0x1000"));
    assert_eq!(made.status, 201, "{made:?}");
    let probes = || ask("GET", "/v1/probes", "").json();
    let until = |what: &str, reached: &dyn Fn(&serde_json::Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !reached(&probes()) {
            assert!(Instant::now() < deadline, "{what}: {}", probes());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let why = |probe: &serde_json::Value, rule: &str| {
        probe["optimized"] == false
            && probe["unoptimized_reason"].as_str().is_some_and(|r| r.starts_with(rule))
    };
    until("refused", &|probes| why(&probes[0], "other-probe: ") && why(&probes[1], "memory: "));
    assert_eq!(ask("DELETE", "/v1/probes/memory", "").status, 204);
    until("optimized", &|probes| probes[0]["optimized"] == true);
    assert!(ask("GET", "/v1/kprobes/list", "").body.ends_with("[OPTIMIZED]\n"));
    assert!(service.work("getpid 100").starts_with("done getpid 100"));
    assert_eq!(probes()[0]["hits"], 100);
    assert_eq!(ask("GET", "/v1/events?limit=1000", "").body.lines().count(), 100);
    assert_eq!(ask("PUT", SWITCH, "0").body, "0\n");
    assert_eq!((&probes()[0]["optimized"], &*ask("GET", SWITCH, "").body), (&false.into(), "0\n"));
    assert_eq!(service.ok(&["probe", "optimization", "on"]), "on\n");
    until("optimized again", &|probes| probes[0]["optimized"] == true);
}

fn rule(status: &ProbeStatus) -> Option<String> {
    let optimized = status.flags.contains(&StatusFlag::Optimized);
    let reason = status.unoptimized_reason.as_deref().unwrap_or("none given");
    (!optimized).then(|| reason.split(": ").next().unwrap_or(reason).to_owned())
}
