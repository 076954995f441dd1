//! Clients that post scripts, right and wrong ones, faster than any can run.

use exoprobe_tests::http::Answer;
use exoprobe_tests::{Dice, Service};
use serde_json::{Value, json};

use crate::attack::{Ground, Tally, ask, check_alive, end, work};
use crate::load::Load;

const CLIENTS: u64 = 3;
/// Most scripts that run at once (docs/api.md, Scripts).
const RUNNING_MAX: usize = 64;
const CALLS: u64 = 200;

/// Scripts that cost as much as a script may.
const COSTLY: [&str; 12] = [
    "kprobe:__x64_sys_getpid { @[comm] = count(); }",
    "kprobe:vfs_* { @[func] = count(); }",
    "kprobe:ksys_write { printf(\"%s %s\\n\", comm, str(arg1)); }",
    "kprobe:hrtimer_interrupt { @[nsecs] = nsecs; }",
    "kprobe:do_syscall_64 { @[kstack] = count(); }",
    "kretprobe:vfs_write { @ = hist(retval); } interval:ms:1 { print(@); clear(@); }",
    "tracepoint:raw_syscalls:sys_enter { @[tid, args.id] = sum(1); }",
    "BEGIN { while (1) { @++; } }",
    "interval:ms:1 { $i = 0; while ($i < 100000) { $i++; } printf(\"%d\\n\", $i); }",
    "BEGIN { $i = 0; while ($i < 1000000) { @[$i] = $i; $i++; } }",
    "kprobe:ksys_write { @a[tid] = arg1; } kprobe:vfs_write { @b = *(uint64*)@a[tid]; }",
    "interval:us:100 { exit(); }",
];

/// Scripts that are wrong, each in its own way.
const WRONG: [&str; 12] = [
    "",
    "kprobe:no_such_function { @ = count(); }",
    "kprobe:vfs_write { @a = 1; @a = \"text\"; }",
    "BEGIN { unroll(100) { unroll(100) { unroll(100) { @++; } } } }",
    "BEGIN { @ = ((((((((((((((((((((((((((1",
    "BEGIN { printf(\"%s %d %s\", 1); }",
    "usdt:/bin/sh:x { }",
    "kprobe:vfs_write { @ = ((struct none *)arg0)->member; }",
    "kprobe:vfs_write /@x[1, 2] == \"a\"/ { }",
    "macro m($x) { m($x) } BEGIN { m(1); }",
    "BEGIN { \u{0}\u{202e}\u{1b}[2J }",
    "struct s { struct s inner; }; BEGIN { print(sizeof(struct s)); }",
];

/// Posts, looks at or removes a script.
fn one(service: &Service, dice: &mut Dice, _: &str) -> Result<Answer, String> {
    let large = || "@a = 1; ".repeat(150_000);
    let (method, path, body) = match dice.below(10) {
        0 => ("POST", String::new(), dice.pick(&WRONG).as_bytes().to_vec()),
        1 => ("POST", String::new(), format!("BEGIN {{ {} }}", large()).into_bytes()),
        2 => ("POST", String::new(), (0..25).flat_map(|_| dice.roll().to_le_bytes()).collect()),
        3..=6 => ("POST", String::new(), dice.pick(&COSTLY).as_bytes().to_vec()),
        7 => ("GET", String::new(), Vec::new()),
        8 => ("GET", format!("/{}/maps", 2 + dice.below(200)), Vec::new()),
        _ => ("DELETE", format!("/{}", 2 + dice.below(200)), Vec::new()),
    };
    ask(service, method, &format!("/v1/scripts{path}"), "text/plain", &body)
}

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.service();
    let steady = b"kprobe:__x64_sys_getpid { @calls = count(); }";
    let posted = ask(&service, "POST", "/v1/scripts", "text/plain", steady);
    let is_first = posted.as_ref().is_ok_and(|answer| answer.json()["id"] == 1);
    tally.check(is_first, || format!("{posted:?}"));
    let load = Load { service: &service, clients: CLIENTS, calls: CALLS, request: one };
    let calls = load.run(ground, tally, |tally| check_running(&service, tally));
    clear(&service, calls, tally);
    check_alive(&service, tally);
    end(service, tally);
}

fn scripts(service: &Service) -> Vec<Value> {
    let listed = ask(service, "GET", "/v1/scripts", "", b"").map(|answer| answer.json());
    listed.ok().and_then(|listed| listed.as_array().cloned()).unwrap_or_default()
}

fn check_running(service: &Service, tally: &mut Tally) {
    let listed = scripts(service);
    let running = listed.iter().filter(|script| script["state"] != "ended").count();
    tally.check(running <= RUNNING_MAX, || format!("{running} scripts run"));
}

/// The script that stayed has seen or lost each call; without scripts nothing is left of any.
fn clear(service: &Service, calls: u64, tally: &mut Tally) {
    for script in scripts(service) {
        let path = format!("/v1/scripts/{}", script["id"]);
        match ask(service, "DELETE", &path, "", b"").map(|answer| answer.json()) {
            Ok(ended) if script["id"] == 1 => {
                let seen = ended["run"].as_u64().zip(ended["lost"].as_u64());
                let all = seen.is_some_and(|(run, lost)| run + lost == calls);
                tally.check(all, || format!("{calls} calls, and {ended}"));
            }
            Ok(_) => {}
            Err(error) => tally.found(error),
        }
    }
    let probes = ask(service, "GET", "/v1/probes", "", b"").map(|answer| answer.json());
    tally.check(probes == Ok(json!([])), || format!("probes are left: {probes:?}"));
    if let Err(error) = work(service, "ping") {
        tally.found(error);
    }
}
