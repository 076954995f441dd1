//! Jump optimization: hits that never leave the guest, and all that ends them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exoprobe_probes::{
    Action, Kprobe, NewProbe, ProbeDefinition, ProbeStatus, StatusFlag, Verdict,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, definition, http, kernel_symbols};
use exoprobe_vmm::Gva;

pub(crate) const CASES: &[Case] = cases![
    optimized_hits_are_recorded_without_an_exit(vcpus),
    what_ends_an_optimization_and_what_brings_it_back(vcpus),
    the_rule_that_stops_an_optimization_is_named(vcpus),
    a_full_ring_loses_records_and_no_hit(vcpus),
    what_the_guest_writes_into_its_rings_costs_records_only(vcpus),
    every_function_that_the_rules_allow_is_optimized_and_put_back needs [Kvm, Smp],
    the_service_optimizes_by_itself_and_can_be_told_not_to,
];

const GETPID: &str = "__x64_sys_getpid";
const ARGS: &str = "%di %si %dx %cx";

fn is_optimized(guest: &TestGuest, event: &str) -> bool {
    guest.status(event).flags == [StatusFlag::Optimized]
}

/// Why a probe is not optimized after a pass.
fn reason(guest: &TestGuest, event: &str) -> String {
    guest.engine.optimize();
    let status = guest.status(event);
    assert!(!status.flags.contains(&StatusFlag::Optimized), "{status:?}");
    status.reason.unwrap_or_default()
}

fn breakpoints(guest: &TestGuest) -> u64 {
    guest.vm.exit_counts().breakpoint
}

fn optimized_hits_are_recorded_without_an_exit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let text = guest.kernel_text();
    guest.probe(&format!("p:args {GETPID} {ARGS}"));
    assert_eq!(guest.work("getpid 10"), 10);
    guest.optimize("args");
    assert!(guest.engine.list_text().contains("[OPTIMIZED]"), "{}", guest.engine.list_text());
    let before = breakpoints(&guest);
    let calls = if vcpus == 1 { guest.work("getpid 1000") } else { guest.work("par 2 getpid 500") };
    assert_eq!((calls, breakpoints(&guest) - before), (1000, 0));
    let status = guest.status("args");
    assert_eq!((status.hits, status.recorded, status.lost), (1010, 1010, 0), "{status:?}");
    guest.engine.drain();
    let events = guest.engine.events().read(1, 2000).events;
    assert_eq!(events.len(), 1010);
    assert!(events.windows(2).all(|pair| pair[0].time <= pair[1].time), "by time");
    // The same system call, told by an int3's hit and by a detour's: by the same clock.
    let (first, last) = (&events[0], &events[1009]);
    assert!(last.time - first.time < PATIENCE.as_secs_f64(), "{} {}", first.time, last.time);
    assert_eq!(first.args.len(), 4);
    assert_eq!(first.args.keys().collect::<Vec<_>>(), last.args.keys().collect::<Vec<_>>());
    let vcpus_seen: std::collections::BTreeSet<u8> = events.iter().map(|e| e.vcpu).collect();
    assert_eq!(vcpus_seen.len(), usize::from(vcpus));
    guest.engine.unregister_all().unwrap();
    assert!(guest.kernel_text() == text, "the guest's text is not as it was");
    guest.assert_unharmed();
    assert!(guest.engine.traceless().is_some());
}

fn what_ends_an_optimization_and_what_brings_it_back(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:count {GETPID}"));
    guest.optimize("count");
    let engine = &guest.engine;
    engine.disable_kprobe("kprobes", "count").unwrap();
    assert_eq!(guest.work("getpid 5"), 5);
    assert_eq!(guest.status("count").flags, [StatusFlag::Disabled]);
    engine.enable_kprobe("kprobes", "count").unwrap();
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
    engine.register_kprobe(post).unwrap();
    assert!(reason(&guest, "count").starts_with("post-handler: "));
    assert_eq!(guest.work("getpid 11"), 11);
    engine.unregister_kprobe("kprobes", "post").unwrap();
    guest.optimize("count");
    guest.probe(&format!("p:inside {GETPID}+1"));
    assert!(reason(&guest, "count").starts_with("other-probe: "));
    assert_eq!(guest.work("getpid 13"), 13);
    assert_eq!(guest.hits("inside"), 13);
    engine.unregister_kprobe("kprobes", "inside").unwrap();
    guest.probe(&format!("p:second {GETPID} %di"));
    guest.optimize("second");
    assert!(is_optimized(&guest, "count"), "both are");
    let before = breakpoints(&guest);
    assert_eq!(guest.work("getpid 17"), 17);
    assert_eq!(breakpoints(&guest), before);
    assert_eq!((guest.hits("count"), guest.hits("second")), (7 + 11 + 13 + 17, 17));
    engine.unregister_all().unwrap();
    guest.assert_unharmed();
}

fn the_rule_that_stops_an_optimization_is_named(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:memory {GETPID} +0(%di)"));
    guest.probe("p:entry entry_SYSCALL_64");
    guest.probe("r:ret vfs_read");
    let handler = Kprobe {
        definition: definition("p:handler vfs_write"),
        pre_handler: Some(Box::new(|_| Verdict::Continue)),
        ..Kprobe::default()
    };
    guest.engine.register_kprobe(handler).unwrap();
    guest.engine.optimize();
    for (event, rule) in [
        ("memory", "memory"),
        ("entry", "reserved"),
        ("ret", "return-probe"),
        ("handler", "handler"),
    ] {
        let why = reason(&guest, event);
        assert!(why.starts_with(&format!("{rule}: ")), "{event}: {why}");
    }
    guest.engine.unregister_all().unwrap();
    guest.assert_unharmed();
}

fn a_full_ring_loses_records_and_no_hit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:args {GETPID} {}", "%di ".repeat(100).trim_end()));
    guest.optimize("args");
    // 820 bytes each: more than the ring holds, with nobody reading.
    assert_eq!(guest.work("getpid 1500"), 1500);
    let status = guest.status("args");
    assert_eq!(status.hits, 1500);
    assert!(status.lost > 0 && status.recorded > 100, "{status:?}");
    assert_eq!(guest.work("getpid 100"), 100);
    let after = guest.status("args");
    assert_eq!((after.hits, after.lost), (1600, status.lost), "it goes on");
    guest.engine.unregister_all().unwrap();
    guest.assert_unharmed();
}

fn what_the_guest_writes_into_its_rings_costs_records_only(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    guest.probe(&format!("p:args {GETPID} %di"));
    guest.optimize("args");
    assert_eq!(guest.work("getpid 50"), 50);
    // As code of the guest's could: all that detours write to.
    let window = guest.vm.hidden().data_window().unwrap();
    guest.vm.hidden().write(window.offset + 32_768, &vec![0xa5; 65_536]);
    let status = guest.status("args");
    assert!(status.hits <= 50, "{status:?}");
    assert_eq!(guest.work("getpid 50"), 50);
    let after = guest.status("args");
    assert_eq!(after.hits - status.hits, 50, "{after:?}");
    guest.engine.unregister_all().unwrap();
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

/// Probes that only count at these addresses, but for those that are refused; gives how many these are.
fn count_at(guest: &TestGuest, mut places: Vec<Gva>) -> usize {
    let total = places.len();
    let probe = |at: &Gva| {
        let (addr, actions) = (Some(*at), vec![Action::Count]);
        NewProbe::from(ProbeDefinition { addr, actions, ..ProbeDefinition::default() })
    };
    while let Err(refused) = guest.engine.register_probes(places.iter().map(probe).collect()) {
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
        guest.engine.unregister_all().unwrap();
        assert!(guest.kernel_text() == text, "the guest's text is not as it was");
    }
    eprintln!("{optimized} functions optimized; {refused} not probed; not optimized: {rules:?}");
    assert!(optimized > 1000, "{optimized}: {rules:?}");
    guest.assert_unharmed();
}

fn the_service_optimizes_by_itself_and_can_be_told_not_to() {
    const SWITCH: &str = "/v1/kprobes/optimization";
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().unwrap()]);
    let ask = |method: &str, path: &str, body: &str| {
        let headers = ["content-type: text/plain"];
        http::ask(service.socket(), method, path, &headers, body.as_bytes())
    };
    let made =
        ask("POST", "/v1/probes", &format!("p:count {GETPID} %di\np:memory {GETPID}+1 +0(%di)"));
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
        probe["optimized"] == false && probe["reason"].as_str().is_some_and(|r| r.starts_with(rule))
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
    let reason = status.reason.as_deref().unwrap_or("none given");
    (!optimized).then(|| reason.split(": ").next().unwrap_or(reason).to_owned())
}
