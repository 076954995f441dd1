//! Scripts in the bpftrace language, by the command line and over HTTP.

use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Running, Service, cases, exoprobe};
use serde_json::{Value, json};

use crate::support::histograms::sum;

pub(crate) const CASES: &[Case] = cases![
    counts_by_task_equal_the_calls(vcpus),
    a_latency_is_there_for_each_call(vcpus),
    system_calls_have_their_fields_and_texts needs [Kvm, Repeat],
    the_guests_tasks_and_functions_have_names needs [Kvm, Repeat],
    a_script_is_explained_as_it_is_armed needs [Kvm, Repeat],
    a_script_ends_in_each_way_and_leaves_nothing needs [Kvm, Repeat],
    wrong_scripts_change_nothing needs [Kvm, Repeat],
    several_run_at_once_over_http needs [Kvm, Repeat],
    an_address_from_a_map_is_read_at_the_hit(vcpus),
    override_leaves_the_function_where_it_is_allowed,
    an_optimized_probe_stays_so_and_counts_each_call(vcpus),
    hits_of_a_script_take_no_exit needs [Kvm, QuickKernel],
    hits_of_five_hundred_functions_are_all_counted needs [Kvm, Repeat],
    debians_tools_run_as_they_are needs [Kvm, BpftraceTools, Repeat],
];

fn list(service: &Service, what: &[&str]) -> Vec<Value> {
    serde_json::from_str(&service.ok(&[&["--json"], what].concat())).expect("a list")
}

fn scripts(service: &Service) -> Vec<Value> {
    let Value::Array(all) = ask(service, "GET", "/v1/scripts", b"").json() else {
        panic!("a list")
    };
    all
}

fn ask(service: &Service, method: &str, path: &str, body: &[u8]) -> Answer {
    let headers = ["content-type: application/json"];
    http::ask(service.socket(), method, path, &headers, body)
}

/// Starts `exoprobe trace`, and waits until its script runs.
pub(super) fn trace(service: &Service, args: &[&str]) -> Running {
    let before = scripts(service).len();
    let mut trace = exoprobe();
    let running =
        Running::spawn(trace.arg("--socket").arg(service.socket()).arg("trace").args(args));
    let begun = Instant::now();
    while scripts(service).len() == before {
        assert!(begun.elapsed() < PATIENCE, "no script; {running}");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

/// Ends it as Ctrl-C does; returns what it printed. Nothing is left.
pub(super) fn end(service: &Service, running: Running) -> String {
    running.signal(libc::SIGINT);
    finish(service, running)
}

fn finish(service: &Service, running: Running) -> String {
    let output = running.finish(PATIENCE);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no hit is missing");
    assert_eq!(list(service, &["probe", "list"]), [] as [Value; 0]);
    assert_eq!(scripts(service), [] as [Value; 0]);
    String::from_utf8(output.stdout).expect("text")
}

fn work(service: &Service, line: &str) {
    let answer = service.work(line);
    assert!(answer.starts_with("done"), "{answer}");
}

fn counts_by_task_equal_the_calls(vcpus: u8) {
    let service = Service::restored(vcpus);
    let script =
        "kprobe:__x64_sys_getpid { @[comm] = count(); @tasks[tid] = count(); @sizes = hist(cpu); }";
    let running = trace(&service, &["-e", script]);
    let (tasks, calls) = match vcpus {
        1 => {
            work(&service, "getpid 10000");
            (1, 10_000)
        }
        _ => {
            work(&service, "par 4 getpid 2500");
            (4, 2500)
        }
    };
    let text = end(&service, running);
    assert!(text.starts_with("Attaching 1 probe...\n"), "{text}");
    assert!(text.contains("@[init]: 10000\n"), "{text}");
    let of_tasks: Vec<&str> = text.lines().filter(|line| line.starts_with("@tasks[")).collect();
    assert_eq!(of_tasks.len(), tasks, "{text}");
    assert!(of_tasks.iter().all(|line| line.ends_with(&format!("]: {calls}"))), "{text}");
    assert_eq!(sum(&text), 10_000, "{text}");
}

fn a_latency_is_there_for_each_call(vcpus: u8) {
    let service = Service::restored(vcpus);
    let script = "kprobe:do_sys_openat2 { @start[tid] = nsecs; }
        kretprobe:do_sys_openat2 /@start[tid]/ {
            if (nsecs < @start[tid]) { @negative = count(); }
            @calls = count(); @total = sum(nsecs - @start[tid]); delete(@start[tid]);
        }
        kretprobe:do_sys_openat2 /!@start[tid]/ { @ends = count(); }";
    let running = trace(&service, &["-q", "-e", script]);
    match vcpus {
        1 => work(&service, "open /dev/null 200"),
        _ => work(&service, "par 2 open /dev/null 100"),
    }
    let text = end(&service, running);
    assert!(text.contains("@calls: 200\n") && text.contains("@ends: 200\n"), "{text}");
    assert!(text.contains("@negative: 0\n") && !text.contains("@start["), "{text}");
}

fn system_calls_have_their_fields_and_texts() {
    let service = Service::restored(1);
    let script = "tracepoint:syscalls:sys_enter_openat
        { printf(\"%s %d %s %d\\n\", comm, pid == tid, str(args.filename), args.flags & 3); }
        tracepoint:syscalls:sys_exit_openat /args.ret < 0/ { @failed = count(); }";
    let running = trace(&service, &["-q", "-e", script]);
    work(&service, "open /dev/null 2");
    let refused = service.client(&["vm", "send", "open", "/none", "1"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = end(&service, running);
    assert_eq!(text.matches("init 1 /dev/null 0\n").count(), 2, "{text}");
    assert_eq!(text.matches("init 1 /none 0\n").count(), 1, "{text}");
    assert!(text.contains("@failed: 1\n"), "{text}");
}

fn the_guests_tasks_and_functions_have_names() {
    let service = Service::restored(1);
    let script =
        "kprobe:vfs_open { @[func, ksym(reg(\"ip\")), kstack(3)] = count(); @uid[uid] = count(); }";
    let running = trace(&service, &["-q", "-e", script]);
    work(&service, "open /dev/null 5");
    let text = end(&service, running);
    assert!(text.contains("@[vfs_open, vfs_open, \n") && text.contains("vfs_open+"), "{text}");
    assert!(text.contains("]: 5\n") && text.contains("@uid[0]: 5\n"), "{text}");
    let listed = service.ok(&["trace", "-l", "kprobe:vfs_rea*"]);
    assert!(listed.lines().any(|line| line == "kprobe:vfs_read"), "{listed}");
    let explained =
        service.ok(&["trace", "--explain", "-e", "kprobe:vfs_read { @[pid] = hist(arg2); }"]);
    let by_jmp = "armed by a jmp: its detour in the guest reads the values, without an exit";
    let expected =
        format!("kprobe:vfs_read: no exit for its action\n  {by_jmp}\n    pid\n    arg2\n");
    assert_eq!(explained, expected);
    assert_eq!(list(&service, &["probe", "list"]), [] as [Value; 0], "neither runs anything");
}

fn a_script_is_explained_as_it_is_armed() {
    let service = Service::restored(1);
    let post = |body: Value| {
        let answer = ask(&service, "POST", "/v1/scripts", body.to_string().as_bytes());
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        answer.json()
    };
    let words: Vec<String> = (0..17).map(|word| format!("sarg{word}")).collect();
    let many = format!("kprobe:vfs_read {{ @ = {}; }}", words.join(" + "));
    for (text, by, why) in [
        ("kprobe:vfs_read { @[pid] = hist(arg2); }", "jmp", ""),
        ("kretprobe:vfs_read { @[retval] = count(); }", "jmp", ""),
        ("kprobe:do_sys_openat2 { @[str(arg1)] = count(); }", "jmp", ""),
        ("kprobe:vfs_read { @at = arg0; @[*(uint64 *)@at] = count(); }", "int3", "script: "),
        ("kprobe:vfs_read { @[kstack] = count(); }", "int3", "actions: "),
        (&many, "int3", "assembler: arguments that read memory need more than 16 words"),
    ] {
        let checked = post(json!({ "text": text, "dry_run": true }));
        let armed = &checked["explained"][0]["armed"];
        let arming = &armed[0];
        assert_eq!(
            (armed.as_array().map(Vec::len), &arming["by"]),
            (Some(1), &json!(by)),
            "{armed}"
        );
        let reason = arming["reason"].as_str().unwrap_or_default();
        assert!(reason.starts_with(why) && reason.is_empty() == why.is_empty(), "{armed}");
        let explained = service.ok(&["trace", "--explain", "-e", text]);
        assert!(
            explained.contains(&format!("\n  armed by an {by}").replace("an j", "a j")),
            "{explained}"
        );
        assert!(explained.contains(reason), "{explained}");
        // So it is.
        let id = post(json!({ "text": text }))["id"].clone();
        let begun = Instant::now();
        loop {
            let probe = &list(&service, &["probe", "list"])[0];
            if (&probe["optimized"], &probe["unoptimized_reason"])
                == (&json!(by == "jmp"), &arming["reason"])
            {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{text}: {probe}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = ask(&service, "DELETE", &format!("/v1/scripts/{id}"), b"");
    }
    let text = "BEGIN { } rawtracepoint:sys_enter { @ = count(); } kprobe:*int3* { }";
    let checked = post(json!({ "text": text, "dry_run": true }));
    let of = |index: usize| checked["explained"][index]["armed"].as_array().expect("a list");
    assert_eq!(of(0), &[] as &[Value]);
    let places: u64 = of(1).iter().map(|one| one["places"].as_u64().expect("a number")).sum();
    assert!(places > 100, "{checked}");
    let mut patterns = checked["explained"].as_array().expect("a list").iter().skip(2);
    assert!(patterns.any(|probe| probe["armed"][0]["by"] == "refused"), "{checked}");
    assert_eq!(list(&service, &["probe", "list"]), [] as [Value; 0], "nothing runs");
}

fn a_script_ends_in_each_way_and_leaves_nothing() {
    let mut service = Service::restored(1);
    let begins = service.ok(&["trace", "-e", "BEGIN { printf(\"%d\\n\", $1 + 1); exit(); }", "41"]);
    assert_eq!(begins, "Attaching 1 probe...\n42\n\n\n");
    let output = service.client(&["trace", "-q", "-e", "BEGIN { exit(3); }"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let running = trace(
        &service,
        &[
            "-q",
            "-e",
            "kprobe:__x64_sys_getpid { @n++; if (@n == 7) { exit(); } } END { printf(\"end\\n\"); }",
        ],
    );
    work(&service, "getpid 20");
    let text = finish(&service, running);
    assert!(text.contains("end\n") && text.contains("@n: 7\n"), "{text}");
    let counted = service.ok(&[
        "trace",
        "-q",
        "-e",
        "kprobe:__x64_sys_getpid { @ = count(); }",
        "-c",
        "getpid 30",
    ]);
    assert!(counted.contains("@: 30\n"), "{counted}");
    let folder = tempfile::tempdir().unwrap();
    let [file, output] = ["script.bt", "output"].map(|name| folder.path().join(name));
    std::fs::write(&file, "BEGIN { printf(\"%s %d\\n\", str($1), $2); exit(); }").unwrap();
    let [file_name, output_name] = [&file, &output].map(|path| path.to_str().unwrap());
    let printed = service.ok(&["trace", "-f", "json", "-o", output_name, file_name, "a", "7"]);
    let written = std::fs::read_to_string(&output).unwrap();
    let lines: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(printed, "", "{written}");
    assert!(lines.contains(&json!({ "type": "printf", "data": "a 7\n" })), "{written}");
    let timed =
        service.ok(&["trace", "-q", "--for", "1", "-e", "interval:ms:100 { @ticks = count(); }"]);
    assert!(timed.contains("@ticks: "), "{timed}");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let running = trace(&service, &["-q", "-e", "kprobe:__x64_sys_getpid { @ = count(); }"]);
        running.signal(signal);
        let _ = finish(&service, running);
    }
    let gone = trace(&service, &["-q", "-e", "kprobe:__x64_sys_getpid { @ = count(); }"]);
    gone.signal(libc::SIGKILL);
    drop(gone);
    assert_eq!(scripts(&service)[0]["state"], "running", "it outlives its client");
    // Its script goes with the service.
    assert!(service.end(libc::SIGTERM).success(), "{}", service.log());
}

fn wrong_scripts_change_nothing() {
    let service = Service::restored(1);
    let before = service.ok(&["vm", "status"]);
    for (script, why) in [
        ("kprobe:vfs_raed { }", "vfs_raed"),
        ("kprobe:vfs_read { printf(\"%d\\n\", nothing); }", "1:"),
        ("kprobe:vfs_read { @ = count(); @ = hist(1); }", "1:"),
        ("interval:s:1 { @ = ustack; }", "ustack"),
        ("hardware:cache-misses:1000 { }", "hardware"),
        ("kprobe:vfs_read {", "1:"),
        ("", "no probe"),
        ("profile:hz:0 { @ = count(); }", "has no period"),
        ("profile:us:10 { @ = count(); }", "a script takes at most 1000"),
    ] {
        for args in [&["trace", "-e", script][..], &["trace", "--explain", "-e", script]] {
            let output = service.client(args);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
            assert!(error.contains(why), "{args:?}: {error}");
        }
    }
    let output = service.client(&["trace"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = service.client(&["trace", "/none.bt"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none.bt"), "{output:?}");
    assert_eq!(scripts(&service), [] as [Value; 0]);
    assert_eq!(list(&service, &["probe", "list"]), [] as [Value; 0]);
    assert_eq!(service.ok(&["vm", "status"]).lines().count(), before.lines().count());
}

fn several_run_at_once_over_http() {
    let service = Service::restored(1);
    let post = |text: &str| {
        let body = json!({ "text": text, "format": "json" }).to_string();
        let answer = ask(&service, "POST", "/v1/scripts", body.as_bytes());
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    };
    let get = |path: &str| ask(&service, "GET", path, b"");
    let delete = |path: &str| ask(&service, "DELETE", path, b"");
    let first = post("kprobe:__x64_sys_getpid { @a = count(); }");
    let second = post("kprobe:__x64_sys_getpid { @b[pid, tid] = count(); }");
    assert_eq!((&first["id"], &second["id"]), (&json!(1), &json!(2)));
    work(&service, "getpid 50");
    let maps = |id: u32| get(&format!("/v1/scripts/{id}/maps")).json();
    assert_eq!(maps(1), json!({ "@a": 50 }));
    assert_eq!(maps(2), json!({ "@b": { "1,1": 50 } }));
    let ended = delete("/v1/scripts/1").json();
    assert_eq!((&ended["state"], &ended["run"]), (&json!("ended"), &json!(50)), "{ended}");
    work(&service, "getpid 50");
    assert_eq!(maps(2), json!({ "@b": { "1,1": 100 } }), "the other one runs on");
    assert_eq!(maps(1), json!({ "@a": 50 }));
    let output = get("/v1/scripts/1/output?follow=true");
    assert!(output.body.contains("\"@a\": 50"), "{output:?}");
    assert_eq!(get("/v1/scripts/9").status, 404);
    assert_eq!(list(&service, &["probe", "list"]).len(), 1);
    let _ = delete("/v1/scripts/1");
    assert_eq!(get("/v1/scripts/1").status, 404, "forgotten");
    let text = "interval:s:100 { @ = count(); }";
    // One runs.
    for _ in 0..63 {
        let _ = post(text);
    }
    let body = json!({ "text": text }).to_string();
    let refused = ask(&service, "POST", "/v1/scripts", body.as_bytes());
    assert_eq!(refused.status, 507, "{refused:?}");
    assert!(refused.body.contains("64 scripts run already"), "{refused:?}");
}

fn an_address_from_a_map_is_read_at_the_hit(vcpus: u8) {
    let service = Service::restored(vcpus);
    let script = "tracepoint:syscalls:sys_enter_openat { @name[tid] = args.filename; }
        tracepoint:syscalls:sys_exit_openat /@name[tid]/
            { @opened[str(@name[tid])] = count(); delete(@name[tid]); }";
    let explained = service.ok(&["trace", "--explain", "-e", script]);
    assert_eq!(explained.matches("takes an exit").count(), 2, "{explained}");
    let running = trace(&service, &["-q", "-e", script]);
    match vcpus {
        1 => work(&service, "open /dev/null 40"),
        _ => work(&service, "par 2 open /dev/null 20"),
    }
    let text = end(&service, running);
    assert!(text.contains("@opened[/dev/null]: 40\n") && !text.contains("@name["), "{text}");
}

/// Waits until the only script's only probe is optimized.
fn wait_until_optimized(service: &Service) {
    let begun = Instant::now();
    while scripts(service)[0]["optimized"] != 1 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", list(service, &["probe", "list"]));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn override_leaves_the_function_where_it_is_allowed() {
    let service = Service::restored(1);
    let script = "kprobe:do_sys_openat2 /str(arg1) == \"/dev/null\"/
        { @calls = count(); @n++; if (@n == 3) { override(-28); } }";
    let refusal = |args: &[&str]| {
        let refused = service.client(&[&["trace", "-q"], args].concat());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    assert!(refusal(&["-e", script]).contains("allow it with --unsafe"));
    let within = "kprobe:do_sys_openat2+4 { override(1); }";
    assert!(refusal(&["--unsafe", "-e", within]).contains("without an offset"));
    let running = trace(&service, &["-q", "--unsafe", "-e", script]);
    let failed = service.client(&["vm", "send", "open", "/dev/null", "10"]);
    let answer = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(answer.contains("errno 28 (2 done)"), "{failed:?}");
    work(&service, "open /dev/null 4");
    let text = end(&service, running);
    assert!(text.contains("@calls: 7\n"), "{text}");
    work(&service, "open /dev/null 5");
}

fn an_optimized_probe_stays_so_and_counts_each_call(vcpus: u8) {
    let service = Service::restored(vcpus);
    let script = "kprobe:ksys_write { @[pid, tid] = hist(arg2); }";
    let running = trace(&service, &["-q", "-e", script]);
    wait_until_optimized(&service);
    match vcpus {
        1 => work(&service, "write 500"),
        _ => work(&service, "par 2 write 250"),
    }
    assert_eq!(scripts(&service)[0]["optimized"], 1);
    let text = end(&service, running);
    let counts = text.lines().filter(|line| line.starts_with("[1] "));
    let counts = counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 500, "{text}");
}

/// The exits of the vCPU so far that a hit can take.
fn exits(service: &Service) -> u64 {
    let status: Value = serde_json::from_str(&service.ok(&["--json", "vm", "status"])).expect("it");
    let of = |kind: &str| status["exits"][kind].as_u64().expect("a count");
    of("breakpoint") + of("step") + of("mmio")
}

fn hits_of_a_script_take_no_exit() {
    let service = Service::restored(1);
    for (script, map) in [
        ("kprobe:__x64_sys_getpid { @ = count(); }", "@: 3000\n"),
        ("kprobe:__x64_sys_getpid { @[pid] = hist(arg2); }", "@[1]:"),
    ] {
        let running = trace(&service, &["-q", "-e", script]);
        wait_until_optimized(&service);
        let before = exits(&service);
        work(&service, "getpid 1000");
        let between = exits(&service);
        work(&service, "getpid 2000");
        assert_eq!((between - before, exits(&service) - between), (0, 0), "{script}");
        let text = end(&service, running);
        assert!(text.contains(map), "{text}");
    }
    // A hit that takes an exit is seen so.
    let script = "kprobe:__x64_sys_getpid { @at = arg0; @[*(uint64 *)@at] = count(); }";
    let running = trace(&service, &["-q", "-e", script]);
    let before = exits(&service);
    work(&service, "getpid 1000");
    assert!(exits(&service) - before >= 1000, "{}", exits(&service));
    let _ = end(&service, running);
}

fn hits_of_five_hundred_functions_are_all_counted() {
    let service = Service::restored(1);
    let pattern = "kprobe:__x64_sys_*,kprobe:vfs_*,kprobe:tty_*,kprobe:proc_*";
    let mut trace = exoprobe();
    let script = format!("{pattern} {{ @[func] = count(); }}");
    let running = Running::spawn(
        trace.arg("--socket").arg(service.socket()).args(["trace", "-q", "-e"]).arg(script),
    );
    let begun = Instant::now();
    while scripts(&service).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "no script; {running}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let probes = list(&service, &["probe", "list"]).len();
    assert!(probes >= 500, "{probes} functions");
    work(&service, "getpid 321");
    work(&service, "open /dev/null 123");
    let counts = || {
        let maps = ask(&service, "GET", "/v1/scripts/1/maps", b"").json();
        let Value::Object(counts) = &maps["@"] else { panic!("{maps}") };
        counts.clone()
    };
    let hits = || {
        let probes = list(&service, &["probe", "list"]);
        probes.iter().map(|probe| probe["hits"].as_u64().expect("hits")).sum::<u64>()
    };
    // The guest is idle once its answer is there; its last hits may still be under way.
    let sum = |counts: &serde_json::Map<String, Value>| {
        counts.values().map(|count| count.as_u64().expect("a count")).sum::<u64>()
    };
    let begun = Instant::now();
    loop {
        let (before, summed) = (hits(), sum(&counts()));
        if (before, before) == (summed, hits()) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{before} hits, {summed} in the map");
        std::thread::sleep(Duration::from_millis(100));
    }
    let counts = counts();
    assert_eq!((&counts["__x64_sys_getpid"], &counts["vfs_open"]), (&json!(321), &json!(123)));
    running.signal(libc::SIGINT);
    let output = running.finish(PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("@[__x64_sys_getpid]: 321\n"), "{output:?}");
    assert_eq!(list(&service, &["probe", "list"]), [] as [Value; 0]);
}

fn debians_tools_run_as_they_are() {
    let service = Service::restored(1);
    let run = |tool: &str, work: &str| {
        let path = format!("/usr/sbin/{tool}.bt");
        let text = service.ok(&["trace", &path, "-c", work]);
        assert!(text.starts_with("Attaching "), "{text}");
        text
    };
    let opens = run("opensnoop", "open /dev/null 3");
    let rows = opens.lines().filter(|line| line.starts_with("1 ") && line.ends_with("/dev/null"));
    assert_eq!(rows.count(), 3, "{opens}");
    // openat, close, and the write of the answer.
    let calls = run("syscount", "open /dev/null 30");
    assert!(
        calls.contains("@syscall[257]: 30\n") && calls.contains("@syscall[3]: 30\n"),
        "{calls}"
    );
    let functions = run("vfscount", "open /dev/null 40");
    assert!(functions.contains("@[vfs_open]: 40\n"), "{functions}");
    for tool in ["vfsstat", "statsnoop", "syncsnoop", "execsnoop", "setuids", "killsnoop", "loads"]
    {
        let _ = run(tool, "open /dev/null 1");
    }
}
