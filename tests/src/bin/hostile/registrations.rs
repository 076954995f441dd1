//! Clients that register and remove probes of all kinds, right and wrong ones, while the guest
//! works.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_tests::http::Answer;
use exoprobe_tests::{Dice, Service, exoprobe, finish};
use serde_json::Value;

use crate::attack::{Ground, Tally, ask, check_alive, end};

/// Clients beside the one that has the guest work.
const CLIENTS: u64 = 2;
/// Calls of one round.
const CALLS: u64 = 500;
/// Longest wait for the guest's answer.
const ANSWER: Duration = Duration::from_secs(300);
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

const PLACES: [&str; 10] = [
    "__x64_sys_getpid",
    "__x64_sys_openat",
    "ksys_write",
    "vfs_write",
    "do_sys_openat2",
    "do_syscall_64",
    "exc_page_fault",
    "handle_mm_fault",
    "__schedule",
    "hrtimer_interrupt",
];

/// Definitions and bodies that are wrong, each in its own way.
const WRONG: [&str; 12] = [
    "",
    "p:a no_such_function",
    "p:w vfs_write+99999",
    "r99999999999:w vfs_write",
    "p:w vfs_write a=@0xffffffffffffffff:x64[999999]",
    "p:w vfs_write %no",
    "p:../w vfs_write",
    "p:w 0x10",
    "p:steady __x64_sys_getpid",
    "{\"symbol_name\":\"vfs_write\",\"actions\":[\"no\"]}",
    "-:nothing",
    "p:w vfs_write if a == ((((((((((((((((1",
];

/// Registers and removes until `done`. Returns answers that no request may have.
fn client(
    service: &Service,
    index: u64,
    mut dice: Dice,
    done: &AtomicBool,
    times: &AtomicU64,
) -> Vec<String> {
    let (mut number, mut odd) = (0, Vec::new());
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let answer = one(service, &mut dice, &format!("c{index}_{number}"));
        times.fetch_add(1, Ordering::Relaxed);
        match answer {
            // Too much, or too soon, are answers.
            Ok(answer) if answer.status < 500 || [503, 507].contains(&answer.status) => {}
            Ok(answer) => odd.push(format!("{answer:?}")),
            Err(error) => odd.push(error),
        }
    }
    odd
}

fn one(service: &Service, dice: &mut Dice, name: &str) -> Result<Answer, String> {
    let (place, wrong) = (*dice.pick(&PLACES), *dice.pick(&WRONG));
    let kind = *dice.pick(&["p", "r", "r100"]);
    let arguments = *dice.pick(&["", " a=%di b=%si", " $stack0 $comm", " s=+0(%si):string"]);
    let post =
        |path: &str, kind: &str, body: &str| ask(service, "POST", path, kind, body.as_bytes());
    match dice.below(10) {
        0 => post("/v1/probes", TEXT, wrong),
        1 => post("/v1/probes", JSON, wrong),
        2 => {
            let lines: String = (0..50).map(|at| format!("p:{name}_{at} {place}\n")).collect();
            post("/v1/probes", TEXT, &lines)?;
            let names: Vec<String> = (0..50).map(|at| format!("{name}_{at}")).collect();
            post("/v1/probes/unregister", JSON, &Value::from(names).to_string())
        }
        3 => {
            let body =
                serde_json::json!({"event": name, "symbol_name": place, "actions": ["stack"]});
            post("/v1/probes", JSON, &body.to_string())?;
            ask(service, "DELETE", &format!("/v1/probes/{name}"), "", b"")
        }
        4 => ask(service, "GET", "/v1/events?limit=100", "", b""),
        5 => ask(service, "GET", "/v1/probes", "", b""),
        6 => {
            let trigger = format!("/v1/tracefs/events/kprobes/{name}/trigger");
            post("/v1/probes", TEXT, &format!("p:{name} {place} a=%di"))?;
            post(&trigger, TEXT, "hist:keys=a:size=1024 if a > 3")?;
            ask(service, "DELETE", &format!("/v1/probes/{name}"), "", b"")
        }
        _ => {
            post("/v1/probes", TEXT, &format!("{kind}:{name} {place}{arguments}"))?;
            let change = format!("/v1/probes/{name}");
            ask(service, "PATCH", &change, JSON, b"{\"enabled\":false}")?;
            ask(service, "DELETE", &change, "", b"")
        }
    }
}

pub(crate) fn churn(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.service();
    let added = ask(&service, "POST", "/v1/probes", TEXT, b"p:steady __x64_sys_getpid");
    tally.check(added.is_ok_and(|answer| answer.status == 201), || service.log());
    let (done, times, mut calls) = (AtomicBool::new(false), AtomicU64::new(0), 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let dice = Dice(ground.dice.roll());
                let (service, done, times) = (&service, &done, &times);
                scope.spawn(move || client(service, index, dice, done, times))
            })
            .collect();
        while calls == 0 || Instant::now() < ground.end() {
            match work(&service, &format!("getpid {CALLS}")) {
                Ok(said) => {
                    tally.check(said == format!("done getpid {CALLS}"), || said.clone());
                    calls += CALLS;
                }
                Err(error) => {
                    tally.found(error);
                    break;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            let odd = client.join().unwrap_or_else(|_| vec!["a client panicked".to_owned()]);
            odd.into_iter().for_each(|answer| tally.found(answer));
        }
    });
    tally.times = times.load(Ordering::Relaxed);
    balance(&service, calls, tally);
    check_alive(&service, tally);
    end(service, tally);
}

/// Has the guest do something. Returns its answer, `done COMMAND N`.
pub(crate) fn work(service: &Service, command: &str) -> Result<String, String> {
    let mut client = exoprobe();
    client.arg("--socket").arg(service.socket()).args(["vm", "send", "--timeout"]);
    client.arg(ANSWER.as_secs().to_string()).arg(command);
    let answer = finish(&mut client, 2 * ANSWER);
    let said = String::from_utf8_lossy(&answer.stdout);
    if answer.status.success() && said.starts_with("done ") {
        return Ok(said.trim().to_owned());
    }
    Err(format!("{command}: {answer:?}: {}", service.log()))
}

/// The probe that stayed has counted each call; without probes nothing is left of any.
fn balance(service: &Service, calls: u64, tally: &mut Tally) {
    let json = |path: &str| ask(service, "GET", path, "", b"").map(|answer| answer.json());
    match json("/v1/probes/steady") {
        Ok(steady) => {
            let counted = steady["hits"] == calls && steady["nmissed"] == 0;
            tally.check(counted, || format!("{calls} calls, and {steady}"));
        }
        Err(error) => tally.found(error),
    }
    let removed = ask(service, "DELETE", "/v1/probes", "", b"");
    tally.check(removed.is_ok_and(|answer| answer.status == 204), || "probes stay".to_owned());
    let listed = json("/v1/probes");
    tally.check(listed == Ok(Value::Array(Vec::new())), || format!("{listed:?}"));
    if let Err(error) = work(service, "ping") {
        tally.found(error);
    }
}
