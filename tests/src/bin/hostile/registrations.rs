//! Clients that register and remove probes of all kinds, right and wrong ones, while the guest
//! works.

use exoprobe_tests::http::Answer;
use exoprobe_tests::{Dice, Service};
use serde_json::Value;

use crate::attack::{Ground, Tally, ask, check_alive, end, work};
use crate::load::Load;

/// Clients beside the one that has the guest work.
const CLIENTS: u64 = 2;
/// Calls of one round.
const CALLS: u64 = 500;
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
    let load = Load { service: &service, clients: CLIENTS, calls: CALLS, request: one };
    let calls = load.run(ground, tally, |_| {});
    balance(&service, calls, tally);
    check_alive(&service, tally);
    end(service, tally);
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
