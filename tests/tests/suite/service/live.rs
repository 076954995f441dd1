//! Scripts that go on while the guest changes, their samples, and readers of their output.

use std::cell::Cell;
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Running, Service, TestKernel, cases, exoprobe};
use serde_json::{Value, json};

use super::scripts::trace;

pub(crate) const CASES: &[Case] = cases![
    every_cpu_is_sampled_at_each_tick(vcpus),
    a_busy_task_is_the_one_that_is_sampled(vcpus),
    samples_have_the_kernels_stack,
    a_paused_guest_has_no_samples needs [Kvm, Repeat],
    samples_and_hits_are_in_order_of_time needs [Kvm, Repeat],
    too_many_samples_are_refused needs [Kvm, Repeat],
    debians_samplers_run_as_they_are needs [Kvm, BpftraceTools, Repeat],
    a_hit_has_the_users_stack_and_the_control_group needs [Kvm, Repeat],
    a_script_goes_on_over_a_reboot needs [Kvm, QuickKernel],
    what_a_script_names_by_address_follows_the_kernel needs [Kvm, QuickKernel],
    lost_hits_are_counted_exactly_and_shown needs [Kvm, Repeat],
    a_script_goes_on_while_its_module_comes_and_goes needs [Kvm, Repeat],
    each_kind_of_probe_has_each_call,
    probes_are_listed_with_arguments needs [Kvm, Repeat],
    output_comes_as_lines_and_as_events needs [Kvm, Repeat],
];

/// A script that runs over HTTP.
struct Script<'a> {
    service: &'a Service,
    id: u64,
}

impl<'a> Script<'a> {
    fn start(service: &'a Service, text: &str) -> Self {
        let answer = post(service, &json!({ "text": text }));
        assert_eq!(answer.status, 201, "{text}: {answer:?}");
        Self { service, id: answer.json()["id"].as_u64().expect("its number") }
    }

    fn ask(&self, method: &str, below: &str) -> Value {
        let path = format!("/v1/scripts/{}{below}", self.id);
        http::ask(self.service.socket(), method, &path, &[], b"").json()
    }

    fn map(&self, name: &str) -> Value {
        self.ask("GET", "/maps")[name].clone()
    }

    /// A number of a map: of `key`, or of the map itself.
    fn number(&self, name: &str, key: Option<&str>) -> u64 {
        let map = self.map(name);
        let value = key.map_or(&map, |key| &map[key]);
        value.as_u64().unwrap_or(0)
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !reached(self) {
            let maps = || self.ask("GET", "/maps");
            assert!(begun.elapsed() < PATIENCE, "{what}: {} {}", maps(), self.service.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it. Returns its status and its maps.
    fn end(self) -> (Value, Value) {
        let status = self.ask("DELETE", "");
        (status, self.ask("GET", "/maps"))
    }
}

fn post(service: &Service, body: &Value) -> Answer {
    let headers = ["content-type: application/json"];
    http::ask(service.socket(), "POST", "/v1/scripts", &headers, body.to_string().as_bytes())
}

fn work(service: &Service, line: &str) {
    let answer = service.work(line);
    assert!(answer.starts_with("done"), "{answer}");
}

/// Starts work in the guest that does not end before the guest does.
fn begin(service: &Service, line: &str) -> Running {
    let mut client = exoprobe();
    Running::spawn(client.arg("--socket").arg(service.socket()).args(["vm", "send", line]))
}

fn every_cpu_is_sampled_at_each_tick(vcpus: u8) {
    let service = Service::restored(vcpus);
    let script = Script::start(&service, "profile:hz:99 { @[cpu] = count(); }");
    script.wait_until("samples", |script| script.number("@", Some("0")) >= 30);
    let (status, maps) = script.end();
    let of_cpu = |cpu: u8| maps["@"][cpu.to_string()].as_u64().expect("samples of it");
    assert_eq!(maps["@"].as_object().expect("by CPU").len(), usize::from(vcpus), "{maps}");
    for cpu in 1..vcpus {
        assert_eq!(of_cpu(cpu), of_cpu(0), "{maps}");
    }
    assert_eq!(status["run"].as_u64(), Some(of_cpu(0) * u64::from(vcpus)), "{status}");
    assert_eq!(status["probes"], 0, "it has no probe in the guest");
}

fn a_busy_task_is_the_one_that_is_sampled(vcpus: u8) {
    let service = Service::restored(vcpus);
    let busy = vcpus - 1;
    let text =
        "profile:hz:199 /pid/ { @busy[cpu, comm] = count(); @mode[reg(\"ip\") >> 63] = count(); }
        profile:hz:199 /!pid/ { @idle[cpu, comm] = count(); }";
    let script = Script::start(&service, text);
    let spinning = begin(&service, &format!("spawn {busy} spin 4000000000"));
    let key = format!("{busy},init");
    script.wait_until("a busy task", |script| script.number("@busy", Some(&key)) >= 50);
    script.wait_until("user mode", |script| script.number("@mode", Some("0")) >= 20);
    let (_, maps) = script.end();
    if vcpus > 1 {
        assert!(maps["@idle"]["0,swapper/0"].as_u64() > Some(0), "{maps}");
        let idle = maps["@idle"].as_object().expect("by CPU");
        assert!(idle.keys().all(|key| key.contains(",swapper/")), "{maps}");
    }
    drop((service, spinning));
}

fn samples_have_the_kernels_stack() {
    let service = Service::restored(1);
    let text = "profile:hz:499 /comm == \"init\"/ { @[ksym(reg(\"ip\")), kstack] = count(); }";
    let script = Script::start(&service, text);
    // The more calls the quicker a CPU is: of a quick one's time few instructions are in getpid.
    let calls = Cell::new(1000_u32);
    let is_in_a_call = |script: &Script<'_>| {
        work(&service, &format!("getpid {}", calls.get()));
        calls.set(calls.get().saturating_mul(2).min(1_000_000));
        let stacks = script.map("@");
        let stacks = stacks.as_object().into_iter().flatten();
        stacks
            .map(|(key, _)| key)
            .any(|key| key.contains("__x64_sys_getpid") && key.contains("do_syscall_64+"))
    };
    script.wait_until("a sample in getpid", is_in_a_call);
    let (_, maps) = script.end();
    assert!(maps["@"].as_object().is_some_and(|found| !found.is_empty()), "{maps}");
}

fn a_paused_guest_has_no_samples() {
    let service = Service::restored(1);
    let text = "profile:hz:199 { @samples = count(); } interval:ms:10 { @ticks = count(); }";
    let script = Script::start(&service, text);
    let wait_for = |name: &str, count: u64| {
        script.wait_until(name, |script| script.number(name, None) >= count);
    };
    wait_for("@samples", 10);
    assert_eq!(service.ok(&["vm", "pause"]), "paused\n");
    // One may be under way.
    wait_for("@ticks", script.number("@ticks", None) + 5);
    let samples = script.number("@samples", None);
    wait_for("@ticks", script.number("@ticks", None) + 50);
    assert_eq!(script.number("@samples", None), samples);
    assert_eq!(service.ok(&["vm", "resume"]), "running\n");
    wait_for("@samples", samples + 10);
}

fn samples_and_hits_are_in_order_of_time() {
    let service = Service::restored(1);
    // The guest's clock and the host's agree to some microseconds.
    let order = "if (nsecs + 1000000 < @last) { @back++; } @last = nsecs;";
    let text = format!(
        "kprobe:__x64_sys_getpid {{ @calls = count(); {order} }}
        profile:hz:499 {{ @samples = count(); {order} }}"
    );
    let script = Script::start(&service, &text);
    let calls = Cell::new(0);
    script.wait_until("both", |script| {
        work(&service, "getpid 200");
        calls.set(calls.get() + 200);
        script.number("@samples", None) >= 100
    });
    let (_, maps) = script.end();
    assert_eq!(maps["@calls"], json!(calls.get()), "{maps}");
    // A hit that is being recorded while a sample is taken comes after it: that is rare. Without
    // an order, samples would come after all hits that are handed over with them.
    let back = maps["@back"].as_u64().unwrap_or(0);
    assert!(back * 10 < maps["@samples"].as_u64().unwrap(), "{maps}");
}

fn too_many_samples_are_refused() {
    let service = Service::restored(1);
    for text in ["profile:us:10 { @ = count(); }", "profile:hz:900, profile:hz:101 { }"] {
        let output = service.client(&["trace", "-e", text]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}: {error}");
        assert!(error.contains("samples a second of each CPU"), "{text}: {error}");
    }
    let explained =
        service.ok(&["trace", "--explain", "-e", "profile:hz:99 { @[pid] = count(); }"]);
    assert!(explained.contains("a sample takes each vCPU out of the guest"), "{explained}");
}

/// Of a kernel whose scheduler has groups, as runqlen needs.
fn debians_samplers_run_as_they_are() {
    let service = linux_6_12();
    let run = |tool: &str| {
        let path = format!("/usr/sbin/{tool}.bt");
        service.ok(&["trace", &path, "-c", "spin 1000"])
    };
    let lengths = run("runqlen");
    assert!(lengths.contains("Sampling run queue length at 99 Hertz"), "{lengths}");
    assert!(lengths.contains("@runqlen: \n[0, 1)"), "nothing waits for one CPU: {lengths}");
    let cpus = run("cpuwalk");
    assert!(cpus.contains("@cpu: \n[0, 1)"), "{cpus}");
}

fn a_hit_has_the_users_stack_and_the_control_group() {
    let service = linux_6_12();
    let text = "kprobe:__x64_sys_getpid { @[ustack(1)] = count(); @group[cgroup] = count(); }
        profile:hz:99 /pid/ { @frames[len(ustack(3)) > 0] = count(); }";
    let script = Script::start(&service, text);
    work(&service, "getpid 100");
    let spinning = begin(&service, "spin 4000000000");
    script.wait_until("a sample", |script| script.number("@frames", Some("1")) > 5);
    let (_, maps) = script.end();
    let stacks = maps["@"].as_object().expect("by stack");
    let [(stack, count)] = stacks.iter().collect::<Vec<_>>()[..] else { panic!("one: {maps}") };
    assert_eq!(count, 100, "{maps}");
    let address = stack.trim().strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
    assert!(matches!(address, Some(Ok(1..0x8000_0000_0000))), "{stack:?}");
    assert_eq!(maps["@group"], json!({ "1": 100 }), "the root's");
    drop((service, spinning));
}

fn linux_6_12() -> Service {
    let snapshot = TestKernel::Linux6_12.snapshot(1);
    Service::start(&["--restore", snapshot.to_str().expect("its path is text")])
}

fn a_script_goes_on_over_a_reboot() {
    let service = Service::restored(1);
    let text = "kprobe:__x64_sys_getpid { @calls = count(); @by[comm] = count(); }
        kretprobe:__x64_sys_getpid { @ends = count(); }
        profile:hz:99 { @samples = count(); }";
    let script = Script::start(&service, text);
    let check = |calls: u64| {
        let counts = ["@calls", "@ends"].map(|name| script.number(name, None));
        assert_eq!((counts, script.number("@by", Some("init"))), ([calls; 2], calls));
        let samples = script.number("@samples", None);
        script.wait_until("samples", |script| script.number("@samples", None) > samples);
    };
    work(&service, "getpid 300");
    check(300);
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    work(&service, "getpid 7");
    check(307);
    let (status, maps) = script.end();
    assert_eq!((&maps["@calls"], &maps["@ends"]), (&json!(307), &json!(307)), "{maps}");
    assert_eq!((&status["nmissed"], &status["limited"]), (&json!(0), &json!(0)), "{status}");
}

/// Over reboots of a kernel that KASLR places elsewhere each time.
fn what_a_script_names_by_address_follows_the_kernel() {
    let snapshot = TestKernel::Linux6_12.snapshot(1);
    let config = TestKernel::Linux6_12.config(1);
    let initramfs = config.initramfs.expect("its own");
    let files = [&snapshot, &config.kernel, &initramfs].map(|path| path.to_str().expect("text"));
    let [snapshot, kernel, initramfs] = files;
    let restore = ["--restore", snapshot, "--kernel", kernel, "--initramfs", initramfs];
    let service = Service::start(&[&restore[..], &["--cmdline", &config.cmdline]].concat());
    // Since the boot, plus INITIAL_JIFFIES: five minutes before 32 bits are full.
    let is_new = "jiffies > 0xff000000 && jiffies < 0x200000000";
    let banner = "kaddr(\"linux_banner\")";
    let read = format!(
        "@banner[str({banner}, 14)] = count(); @at[{banner}] = count(); @new[{is_new}] = count();"
    );
    let start = |text: &str| Script::start(&service, text);
    let recorded = start(&format!("kprobe:__x64_sys_getpid {{ {read} }}"));
    let timed = start(&format!("interval:ms:20 {{ {read} }}"));
    let at_hit = format!("@at = {banner}; @banner[str(@at, 14)] = count();");
    let at_hit = start(&format!("kprobe:__x64_sys_getpid {{ {at_hit} }}"));
    let begun = Instant::now();
    let places = |script: &Script<'_>| script.map("@at").as_object().map_or(0, |all| all.len());
    for boots in 1.. {
        work(&service, "getpid 10");
        let expected = json!({ "Linux version": 10 * boots });
        assert_eq!(
            [recorded.map("@banner"), at_hit.map("@banner")],
            [&expected; 2].map(Value::clone)
        );
        assert_eq!(recorded.map("@new"), json!({ "1": 10 * boots }));
        let read = |timed: &Script<'_>| timed.number("@banner", Some("Linux version"));
        let before = read(&timed);
        timed.wait_until("an interval", |timed| read(timed) > before + 2);
        assert_eq!(places(&timed), places(&recorded), "{}", timed.map("@at"));
        // KASLR may choose the same place again.
        if places(&recorded) > 1 {
            break;
        }
        assert!(begun.elapsed() < 4 * PATIENCE, "it is not moved: {}", service.log());
        assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    }
}

/// Of a probe whose records have no room; those of detours are counted by the same counters.
fn lost_hits_are_counted_exactly_and_shown() {
    const CALLS: u64 = 5000;
    let service = Service::restored(1);
    // Records that are large, and an action that is slower than the guest.
    let structs = "struct part { uint64 words[64]; };
        struct parts { struct part a; struct part b; struct part c; struct part d; };";
    let copies = ["a", "b", "c", "d"];
    let copies = copies.map(|part| format!("@{part} = ((struct parts *)curtask)->{part};"));
    let text = format!(
        "{structs} kprobe:__x64_sys_getpid /@n++ % 2 == 1/
        {{ {} $i = 0; while ($i < 100000) {{ $i++; }} @calls = count(); }}",
        copies.concat()
    );
    let running = trace(&service, &["-q", "-e", &text]);
    work(&service, &format!("getpid {CALLS}"));
    running.signal(libc::SIGINT);
    let output = running.finish(PATIENCE);
    assert!(output.status.success(), "{output:?}");
    let [shown, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    let number = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|number| number.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("{name} {shown}"))
    };
    let (run, seen) = (number("@calls: "), number("@n: "));
    let (filtered, lost) = (seen - run, CALLS - seen);
    assert!(run > 0 && filtered > 0 && lost > 0, "{run} {filtered} {lost}");
    let expected = format!(
        "warning: {lost} hits lost: their records had no room\n\
        hits: {CALLS} = {run} run + {filtered} filtered + 0 limited + 0 late + {lost} lost\n"
    );
    assert_eq!(said, expected);
}

fn a_script_goes_on_while_its_module_comes_and_goes() {
    let service = linux_6_12();
    work(&service, "insmod ttynull");
    let text = "kprobe:ttynull_open { @opens = count(); @name = ksym(reg(\"ip\")); }
        kretprobe:ttynull:ttynull_open { @ends = count(); }
        kprobe:__x64_sys_getpid { @calls = count(); }";
    let script = Script::start(&service, text);
    for round in 1..=3 {
        work(&service, "open /dev/ttynull 20");
        let counts = ["@opens", "@ends"].map(|name| script.number(name, None));
        assert_eq!(counts, [20 * round; 2]);
        assert_eq!(script.map("@name"), "ttynull_open", "wherever it is");
        let begun = Instant::now();
        // It may be in use for a moment.
        while !service.work("rmmod ttynull").starts_with("done") {
            assert!(begun.elapsed() < PATIENCE, "{}", service.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        work(&service, "getpid 10");
        assert_eq!(script.number("@calls", None), 10 * round, "its other probe goes on");
        if round == 1 {
            // In the place that became free.
            work(&service, "insmod test_module");
        }
        work(&service, "insmod ttynull");
    }
    let (_, maps) = script.end();
    assert_eq!((&maps["@opens"], &maps["@calls"]), (&json!(60), &json!(30)), "{maps}");
}

fn each_kind_of_probe_has_each_call() {
    let service = linux_6_12();
    let mut within = (1..16).map(|offset| format!("kprobe:do_sys_openat2+{offset}"));
    // The first place that is an instruction's.
    let within = within.find(|place| {
        let answer = post(&service, &json!({ "text": format!("{place} {{ @ = count(); }}") }));
        let id = &answer.json()["id"];
        let path = format!("/v1/scripts/{id}");
        answer.status == 201 && http::ask(service.socket(), "DELETE", &path, &[], b"").status == 200
    });
    let text = "fentry:do_sys_openat2 /str(args.filename) == \"/dev/null\"/ { @fentry = count(); }
        kfunc:vfs_open { @kfunc = count(); }
        fexit:do_sys_openat2 /retval >= 0/ { @fexit = count(); }
        kretfunc:vfs_open /retval == 0/ { @kretfunc = count(); }
        rawtracepoint:sys_enter /args.args[1] != 0/ { @enter[args.id] = count(); }
        tracepoint:raw_syscalls:sys_exit { @exit[args.id] = count(); }";
    let within = format!("{} {{ @within = count(); }}", within.expect("it has instructions"));
    let script = Script::start(&service, &format!("{text} {within}"));
    work(&service, "open /dev/null 50");
    let counts = ["@fentry", "@kfunc", "@fexit", "@kretfunc", "@within"];
    assert_eq!(counts.map(|name| script.number(name, None)), [50; 5], "{}", script.map("@enter"));
    // openat
    let calls = ["@enter", "@exit"].map(|name| script.number(name, Some("257")));
    assert_eq!(calls, [50; 2]);
    let (status, _) = script.end();
    assert_eq!((&status["lost"], &status["limited"]), (&json!(0), &json!(0)), "{status}");
}

fn probes_are_listed_with_arguments() {
    let service = linux_6_12();
    let listed = service.ok(&["trace", "-lv", "kprobe:vfs_ope*"]);
    assert_eq!(
        listed, "kprobe:vfs_open\n    const struct path * path\n    struct file * file\n",
        "{listed}"
    );
    let fexit = service.ok(&["trace", "-lv", "fexit:vfs_open"]);
    assert!(fexit.ends_with("    struct file * file\n    int retval\n"), "{fexit}");
    let call = service.ok(&["trace", "-l", "-v", "tracepoint:syscalls:sys_*_openat"]);
    let fields = "    int __syscall_nr\n    int dfd\n    char * filename\n    int flags\n";
    assert!(call.contains(&format!("sys_enter_openat\n{fields}")), "{call}");
    assert!(call.ends_with("sys_exit_openat\n    int __syscall_nr\n    long ret\n"), "{call}");
    assert_eq!(service.ok(&["trace", "-l", "kprobe:vfs_open"]), "kprobe:vfs_open\n");
    assert_eq!(service.client(&["trace", "-l"]).status.code(), Some(2));
}

fn output_comes_as_lines_and_as_events() {
    let service = Service::restored(1);
    let text = "BEGIN { printf(\"one\\n\"); @[1] = 2; exit(); }";
    let start = |format: &str| {
        let answer = post(&service, &json!({ "text": text, "format": format }));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_u64().expect("its number")
    };
    let read = |id: u64, query: &str, headers: &[&str]| {
        let path = format!("/v1/scripts/{id}/output{query}");
        http::ask(service.socket(), "GET", &path, headers, b"")
    };
    let json = start("json");
    let lines = read(json, "?follow=true", &[]);
    assert!(lines.head.to_lowercase().contains("content-type: application/x-ndjson"), "{lines:?}");
    let parsed = lines.body.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let parsed: Vec<Value> = parsed.collect();
    assert!(parsed.contains(&json!({ "type": "printf", "data": "one\n" })), "{parsed:?}");
    let sse = "accept: text/event-stream";
    let events = read(json, "", &[sse]).body;
    let data = events.lines().filter_map(|line| line.strip_prefix("data: "));
    assert_eq!(data.collect::<Vec<_>>().join("\n"), lines.body.trim_end(), "the same lines");
    let last = events.lines().filter_map(|line| line.strip_prefix("id: ")).next_back();
    let resume = format!("last-event-id: {}", last.expect("an event"));
    assert_eq!(read(json, "", &[sse, &resume]).body, "", "nothing after the last");
    let text = start("text");
    let events = read(text, "?follow=true", &[sse]).body;
    assert!(events.contains("event: line\ndata: \"one\"\n\n"), "{events}");
}
