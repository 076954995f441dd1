//! Commands against a fake service.

mod collecting;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::{get, patch, post};
use clap::CommandFactory;

use super::*;
use crate::client::testing::{Fake, endless};

const PROBE: &str = r#"{"id":1,"kind":"k","group":"kprobes","event":"getpid",
    "symbol_name":"f","offset":0,"addr":"0x10","state":"armed","flags":[],"reason":null,"hits":2,"nmissed":0,
    "recorded":2,"filtered":0,"lost":0,"instruction":"nop","displaced":"emulation",
    "definition":"p:kprobes/getpid f"}"#;

/// Runs a client command; returns its output and its result.
pub(super) async fn exoprobe(fake: &Fake, args: &[&str]) -> (String, Result<(), CliError>) {
    let cli = Cli::try_parse_from(["exoprobe"].iter().chain(args)).unwrap();
    let client = fake.client();
    let mut out = Vec::new();
    let mut context = Context { client: &client, json: cli.connection.json, out: &mut out };
    let result = match cli.command {
        Command::Probe(command) => probe::run(&mut context, command).await,
        Command::Instance(command) => instance::run(&mut context, command).await,
        Command::Vm(command) => vm::run(&mut context, command).await,
        Command::Events(args) => events::run(&mut context, &args).await,
        Command::Top(args) => top::run(&mut context, &args).await,
        Command::Hist(args) => hist::run(&mut context, &args).await,
        Command::Stacks(args) => stacks::run(&mut context, &args).await,
        Command::Trace(args) => trace::run(&mut context, &args).await,
        Command::Export(args) => export::run(&mut context, &args).await,
        Command::Symbols(args) => symbols::run(&mut context, &args).await,
        Command::Types(args) => types::run(&mut context, &args).await,
        Command::Stack(args) => stack::run(&mut context, &args).await,
        Command::Ps => ps::run(&mut context).await,
        Command::Modules => modules::run(&mut context).await,
        Command::X(args) => memory::memory(&mut context, &args).await,
        Command::Disas(args) => memory::code(&mut context, &args).await,
        other => panic!("{other:?} needs no service"),
    };
    (String::from_utf8(out).unwrap(), result)
}

fn check_help(command: &mut clap::Command) {
    let name = command.get_name().to_owned();
    let leaf = !command.has_subcommands();
    let help = command.render_long_help().to_string();
    // What `run` shows is its own matter.
    let example = help.contains("Example") || !leaf || name == "run";
    assert!(example, "{name} shows no example:\n{help}");
    command.get_subcommands_mut().filter(|c| c.get_name() != "help").for_each(check_help);
}

#[test]
fn all_commands_are_well_formed_and_show_examples() {
    let mut command = Cli::command();
    command.clone().debug_assert();
    command.build();
    check_help(&mut command);
}

#[test]
fn client_options_stand_on_both_sides_of_the_command() {
    for args in [
        ["exoprobe", "--socket", "/s", "--json", "probe", "list"],
        ["exoprobe", "probe", "list", "--socket", "/s", "--json"],
    ] {
        let cli = Cli::try_parse_from(args).unwrap();
        assert!(cli.connection.json);
        assert_eq!(cli.connection.client().unwrap().target().to_string(), "/s");
    }
    let both = ["exoprobe", "--socket", "/s", "--url", "http://h:1", "events"];
    assert!(Cli::try_parse_from(both).is_err());
}

#[test]
fn wrong_usage_is_refused() {
    for args in [
        &["probe", "add"][..],
        &["probe", "rm"],
        &["probe", "rm", "x", "--all"],
        &["probe", "enable"],
        &["probe", "show", "a/b/c"],
        &["probe", "switch", "maybe"],
        &["vm", "console", "--port", "2"],
        &["vm", "send"],
        &["instance", "add"],
        &["instance", "rm", "a/b"],
        &["instance", "enable", "a"],
        &["instance", "enable", "a", "!e"],
        &["events", "--instance", ""],
        &["events", "--instance", "a", "clear"],
    ] {
        let line = ["exoprobe"].iter().chain(args);
        assert_eq!(Cli::try_parse_from(line).unwrap_err().exit_code(), 2, "{args:?}");
    }
}

/// The probe as the kernel has not begun.
fn pending() -> String {
    let pending = PROBE.replace(
        r#""addr":"0x10","state":"armed","flags":[],"reason":null"#,
        r#""addr":null,"state":"pending","flags":["PENDING"],"reason":"no kernel yet""#,
    );
    assert_ne!(pending, PROBE);
    pending
}

#[tokio::test]
async fn add_waits_if_so_told_until_no_probe_is_pending() {
    let (looks, bodies) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, noted) = (Arc::clone(&looks), Arc::clone(&bodies));
    let add = async move |body: String| {
        noted.lock().unwrap().push(body);
        (StatusCode::CREATED, format!("[{}]", pending()))
    };
    let list = async move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => format!("[{}]", pending()),
        _ => {
            format!("[{},{PROBE}]", PROBE.replace(r#""id":1"#, r#""id":2"#).replace("getpid", "x"))
        }
    };
    let fake = Fake::serve(Router::new().route("/v1/probes", post(add).get(list)));
    let (out, result) = exoprobe(&fake, &["probe", "add", "p:getpid f", "p g"]).await;
    result.unwrap();
    assert!(
        out.contains("  pending  ") && out.contains("getpid is pending: no kernel yet"),
        "{out}"
    );
    assert_eq!(looks.load(Ordering::Relaxed), 0, "not waited for");
    let wait = ["probe", "add", "--wait", "600", "p:getpid f", "p g"];
    let (out, result) = exoprobe(&fake, &wait).await;
    result.unwrap();
    assert_eq!(looks.load(Ordering::Relaxed), 2);
    assert!(!out.contains("pending") && out.lines().count() == 2, "its own, placed: {out}");
    assert_eq!(*bodies.lock().unwrap(), ["p:getpid f\np g\n"; 2]);
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_the_probe_and_says_why() {
    let list = async || format!("[{}]", pending());
    let fake = Fake::serve(Router::new().route("/v1/probes", post(async || pending()).get(list)));
    let (out, result) = exoprobe(&fake, &["probe", "add", "--wait", "1", "p:getpid f"]).await;
    let error = result.unwrap_err();
    assert_eq!(error.status(), 3);
    let message = error.message().unwrap();
    assert!(message.contains("1 of 1") && message.contains("no kernel yet"), "{message}");
    assert!(out.contains("  pending  "), "{out}");
}

#[tokio::test]
async fn json_definitions_go_as_they_are() {
    let refuse = async |kind: axum::http::HeaderMap, body: String| {
        assert_eq!(kind["content-type"], "application/json");
        match body.trim_start().starts_with('[') {
            true => {
                let problem = r#"{"detail":"no","code":"EINVAL","position":4,"index":1}"#;
                (StatusCode::UNPROCESSABLE_ENTITY, problem.to_owned())
            }
            false => (StatusCode::CREATED, PROBE.to_owned()),
        }
    };
    let fake = Fake::serve(Router::new().route("/v1/probes", post(refuse)));
    let (out, result) = exoprobe(&fake, &["probe", "add", r#"{"symbol_name": "f"}"#]).await;
    result.unwrap();
    assert_eq!(out.lines().count(), 2, "an object is answered with one: {out}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probes");
    std::fs::write(&file, "\n[{\"event\": \"a\"}, {\"event\": \"b\"}]\n").unwrap();
    let (_, result) = exoprobe(&fake, &["probe", "add", "-f", file.to_str().unwrap()]).await;
    let message = result.unwrap_err().message().unwrap();
    assert_eq!(message, "error: no (EINVAL)\n  {\"event\":\"b\"}", "and no caret");
    let (_, mixed) = exoprobe(&fake, &["probe", "add", "p a", "-f", file.to_str().unwrap()]).await;
    assert_eq!(mixed.unwrap_err().status(), 2);
}

#[tokio::test]
async fn the_service_expands_a_pattern_and_those_left_out_are_reported() {
    let refused =
        r#"{"index":0,"place":"m:vfs_b","rule":"blacklist","code":"EINVAL","detail":"no"}"#;
    let add = async move |RawQuery(query): RawQuery, body: String| {
        let query = query.unwrap_or_default();
        match (body.as_str(), query.contains("all_or_none=true"), query.contains("dry_run=true")) {
            ("p vfs_*\n", true, false) => {
                let problem = r#"{"detail":"no","code":"EINVAL","index":0,"event":"vfs_b"}"#;
                (StatusCode::UNPROCESSABLE_ENTITY, problem.to_owned())
            }
            ("p vfs_*\n", false, false) => {
                (StatusCode::CREATED, format!(r#"{{"probes":[{PROBE}],"refused":[{refused}]}}"#))
            }
            ("r vfs_*\n", false, true) => {
                let probes = r#"[{"definition":"r vfs_a"},{"definition":"r vfs_d"}]"#;
                (StatusCode::OK, format!(r#"{{"probes":{probes},"refused":[{refused}]}}"#))
            }
            ("p none_*\n", false, false) => {
                (StatusCode::CREATED, format!(r#"{{"probes":[],"refused":[{refused}]}}"#))
            }
            other => panic!("{other:?}"),
        }
    };
    let fake = Fake::serve(Router::new().route("/v1/probes", post(add)));
    let (out, result) = exoprobe(&fake, &["probe", "add", "vfs_*"]).await;
    result.unwrap();
    assert!(out.contains("getpid"), "{out}");
    let all = ["probe", "add", "--all-or-none", "vfs_*"];
    let message = exoprobe(&fake, &all).await.1.unwrap_err().message().unwrap();
    assert!(message.contains("no (EINVAL)"), "{message}");
    let (out, result) = exoprobe(&fake, &["probe", "add", "--dry-run", "r vfs_*"]).await;
    result.unwrap();
    assert_eq!(out, "r vfs_a\nr vfs_d\n");
    let error = exoprobe(&fake, &["probe", "add", "none_*"]).await.1.unwrap_err();
    assert!(error.to_string().contains("all 1 functions were refused"), "{error}");
}

#[tokio::test]
async fn the_switch_is_turned_and_shown() {
    let put = async |body: String| body;
    let router = Router::new()
        .route("/v1/kprobes/enabled", get(async || "true").put(put))
        .route("/v1/kprobes/optimization", get(async || "false").put(put));
    let fake = Fake::serve(router);
    assert_eq!(exoprobe(&fake, &["probe", "switch"]).await.0, "on\n");
    assert_eq!(exoprobe(&fake, &["probe", "switch", "off"]).await.0, "off\n");
    assert_eq!(exoprobe(&fake, &["probe", "switch", "on", "--json"]).await.0, "true\n");
    assert_eq!(exoprobe(&fake, &["probe", "optimization"]).await.0, "off\n");
    assert_eq!(exoprobe(&fake, &["probe", "optimization", "on"]).await.0, "on\n");
}

#[tokio::test]
async fn the_blacklist_is_shown_with_its_reasons() {
    let entry = r#"[{"start":"0x10","end":"0x20","symbol":"asm_exc_nmi","reason":"is special"}]"#;
    let fake = Fake::text("/v1/kprobes/blacklist", entry);
    assert_eq!(
        exoprobe(&fake, &["probe", "blacklist"]).await.0,
        "START  END   SYMBOL       REASON\n0x10   0x20  asm_exc_nmi  is special\n"
    );
    let (out, _) = exoprobe(&fake, &["probe", "blacklist", "--json"]).await;
    assert_eq!(out, format!("{entry}\n"));
}

#[tokio::test]
async fn a_wrong_definition_among_several_is_pointed_at() {
    let refuse = async || {
        let problem = r#"{"detail":"line 4: no","code":"EINVAL","position":4,"line":4}"#;
        (StatusCode::BAD_REQUEST, problem)
    };
    let fake = Fake::serve(Router::new().route("/v1/probes", post(refuse)));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probes");
    std::fs::write(&file, "# mine\n\np:b %x\n").unwrap();
    let (_, result) = exoprobe(&fake, &["probe", "add", "p a", "-f", file.to_str().unwrap()]).await;
    let error = result.unwrap_err();
    assert_eq!(error.message().unwrap(), "error: no (EINVAL)\n  p:b %x\n      ^");
    assert_eq!(error.status(), 1);
}

#[tokio::test]
async fn probes_are_listed_for_people_and_programs() {
    let router = Router::new()
        .route("/v1/probes", get(async || format!("[{PROBE}]\n")))
        .route("/v1/probes/kprobes/getpid", get(async || PROBE))
        .route("/v1/kprobes/list", get(async || "0010  k  f+0x0    \n"));
    let fake = Fake::serve(router);
    let (out, _) = exoprobe(&fake, &["probe", "list"]).await;
    assert!(out.starts_with("KIND  EVENT "), "{out}");
    let (out, _) = exoprobe(&fake, &["probe", "list", "--json"]).await;
    assert_eq!(out, format!("[{PROBE}]\n"));
    let (out, _) = exoprobe(&fake, &["probe", "list", "--kprobes-list"]).await;
    assert_eq!(out, "0010  k  f+0x0    \n");
    let (out, _) = exoprobe(&fake, &["probe", "show", "getpid"]).await;
    assert!(out.contains("instruction  nop\n"), "{out}");
}

#[tokio::test]
async fn one_refusal_does_not_keep_other_probes_from_change() {
    let change = async |body: String| {
        assert_eq!(body, r#"{"names":["a","g/b"],"enabled":true}"#);
        format!(r#"[{{"name":"a","probes":[]}},{{"name":"g/b","probes":[{PROBE}]}}]"#)
    };
    let unregister = async |body: String| {
        assert_eq!(body, r#"["a","g/b"]"#);
        r#"[{"name":"a","addr":null},{"name":"g/b","addr":"0x10"}]"#
    };
    let router = Router::new()
        .route("/v1/probes/unregister", post(unregister))
        .route("/v1/probes", patch(change).delete(async || StatusCode::NO_CONTENT));
    let fake = Fake::serve(router);
    let (out, result) = exoprobe(&fake, &["probe", "enable", "a", "g/b"]).await;
    assert_eq!(out.lines().count(), 2, "{out}");
    let error = result.unwrap_err();
    assert_eq!((error.status(), error.to_string().as_str()), (1, "1 of 2 probes failed"));
    let error = exoprobe(&fake, &["probe", "rm", "a", "g/b"]).await.1.unwrap_err();
    assert_eq!((error.status(), error.to_string().as_str()), (1, "1 of 2 probes failed"));
    exoprobe(&fake, &["probe", "rm", "--all"]).await.1.unwrap();
}

#[tokio::test]
async fn the_guest_is_controlled() {
    let vm = r#"{"state":"paused","stopped":null,"vcpus":2}"#;
    let snapshot = async |body: String| {
        let path = serde_json::from_str::<serde_json::Value>(&body).unwrap()["path"].clone();
        assert!(path.as_str().unwrap().starts_with('/'), "{path}");
        serde_json::json!({ "path": path, "bytes": 5 }).to_string()
    };
    let dump = async |body: String| {
        let body = serde_json::from_str::<serde_json::Value>(&body).unwrap();
        // One that is forced is of a guest that runs.
        let stood = if body["force"] == true { 7 } else { 0 };
        serde_json::json!({ "path": body["path"], "bytes": 6, "stood_ms": stood }).to_string()
    };
    let router = Router::new()
        .route("/v1/vm", get(async move || vm))
        .route("/v1/vm/pause", post(async move || vm))
        .route("/v1/vm/snapshot", post(snapshot))
        .route("/v1/vm/dump", post(dump));
    let fake = Fake::serve(router);
    assert_eq!(
        exoprobe(&fake, &["vm", "status"]).await.0,
        "state    paused\nstopped  -\nvcpus    2\n"
    );
    assert_eq!(exoprobe(&fake, &["vm", "status", "--json"]).await.0, format!("{vm}\n"));
    assert_eq!(exoprobe(&fake, &["vm", "pause"]).await.0, "paused\n");
    let (out, _) = exoprobe(&fake, &["vm", "snapshot", "a.snap"]).await;
    assert!(out.ends_with("/a.snap: 5 bytes\n"), "{out}");
    let (out, _) = exoprobe(&fake, &["vm", "dump", "a.core"]).await;
    assert!(out.starts_with('/') && out.ends_with("/a.core: 6 bytes\n"), "{out}");
    let (out, _) = exoprobe(&fake, &["vm", "dump", "--force", "a.core"]).await;
    assert!(out.ends_with("/a.core: 6 bytes; the guest stood still for 7 ms\n"), "{out}");
}

#[tokio::test]
async fn the_guests_answer_decides_the_status() {
    for (answer, status) in [("done 1\n", 0), ("error \x1bno\n", 1), ("hm\n", 3)] {
        let number = Arc::new(Mutex::new(String::new()));
        let of_write = Arc::clone(&number);
        let read = async move |query: RawQuery| match query.0 {
            None => ([("exoprobe-next-offset", "0")], Body::empty()),
            Some(_) => ([("x", "y")], endless(format!("{} {answer}", number.lock().unwrap()))),
        };
        let write = async move |line: String| {
            *of_write.lock().unwrap() = line.split(' ').next().unwrap().to_owned();
            StatusCode::NO_CONTENT
        };
        let fake = Fake::serve(Router::new().route("/v1/vm/serial/1", get(read).post(write)));
        let (out, result) = exoprobe(&fake, &["vm", "send", "--timeout", "1", "go", "1"]).await;
        assert_eq!(result.map_or_else(|error| error.status(), |()| 0), status);
        let shown = answer.replace('\x1b', "\\u{1b}");
        assert_eq!(out, if status == 3 { "" } else { &shown });
    }
}

#[tokio::test]
async fn processes_are_a_table_that_the_guest_cannot_write_to_the_terminal_by() {
    const PROCESSES: &str = r#"[{"pid":1,"comm":"init","vcpus":[0,1],"state":"S","parent":0,"task":"0x1"},
        {"pid":7,"comm":"\u001b[2J","vcpus":[],"state":null,"parent":null,"task":"0x2"}]"#;
    let fake = Fake::serve(Router::new().route("/v1/tasks", get(async || PROCESSES)));
    let (out, result) = exoprobe(&fake, &["ps"]).await;
    result.unwrap();
    let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(
        lines[..2],
        [["PID", "PPID", "STATE", "VCPU", "COMM"], ["1", "0", "S", "0,1", "init"]]
    );
    assert_eq!(lines[2][..4], ["7", "-", "-", "-"]);
    assert!(!out.contains('\u{1b}'), "{out:?}");
}

#[tokio::test]
async fn modules_are_a_table_with_the_probes_in_them() {
    const MODULES: &str = r#"[{"name":"ext4","state":"Live","addr":"0xffffffffc0000000","size":4096,
        "symbols":12,"probes":["kprobes/a","g/b"]},
        {"name":"\u001b[2J","state":"Loading","addr":"0x0","size":0,"symbols":0,"probes":[]}]"#;
    let fake = Fake::serve(Router::new().route("/v1/modules", get(async || MODULES)));
    let (out, result) = exoprobe(&fake, &["modules"]).await;
    result.unwrap();
    let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "STATE", "TEXT", "SIZE", "SYMBOLS", "PROBES"]);
    assert_eq!(lines[1], ["ext4", "Live", "0xffffffffc0000000", "4096", "12", "kprobes/a,g/b"]);
    assert!(!out.contains('\u{1b}') && lines[2].ends_with(&["-"]), "{out:?}");
    let (out, result) = exoprobe(&fake, &["--json", "modules"]).await;
    result.unwrap();
    assert!(out.contains("\"symbols\":12"), "{out}");
}

#[tokio::test]
async fn a_stack_is_shown_as_the_kernel_does() {
    const STACK: &str = r#"[
        {"addr":"0xffffffff81000010","symbol_name":"vfs_read","offset":16,"size":64,"user":false},
        {"addr":"0xffffffffc0000000","symbol_name":null,"offset":0,"size":0,"user":false},
        {"addr":"0x401000","symbol_name":null,"offset":0,"size":0,"user":true}]"#;
    let fake = Fake::serve(Router::new().route("/v1/vcpus/1/stack", get(async || STACK)));
    let (out, result) = exoprobe(&fake, &["stack", "1"]).await;
    result.unwrap();
    assert_eq!(out, " => vfs_read+0x10/0x40\n => 0xffffffffc0000000\n => 0x401000 (user)\n");
    let (out, _) = exoprobe(&fake, &["--json", "stack", "1"]).await;
    assert_eq!(out, format!("{STACK}\n"));
    for wrong in [&["exoprobe", "stack"][..], &["exoprobe", "stack", "x"]] {
        assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn memory_is_shown_in_lines_and_code_with_its_probes() {
    const MEMORY: &str =
        r#"{"addr":"0xfffffffffffffff8","bytes":"4142001b434445464748494a4b4c4d4e4f"}"#;
    const CODE: &str = r#"[{"addr":"0xe","bytes":"6690","text":"nop","target":null,"probes":[]},
        {"addr":"0x10","bytes":"e8fb000000","text":"call 110h","target":"f+0x10",
        "probes":["kprobes/a"],"source":"fs/a\u001b.c:7"}]"#;
    let routes = Router::new()
        .route("/v1/memory", get(async || MEMORY))
        .route("/v1/disassembly", get(async || CODE));
    let fake = Fake::serve(routes);
    let (out, result) = exoprobe(&fake, &["x", "jiffies", "17"]).await;
    result.unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("0xfffffffffffffff8  41 42 00 1b 43 "), "{out}");
    assert!(lines[0].ends_with("  AB..CDEFGHIJKLMN") && lines[1].ends_with("  O"), "{out}");
    let (out, result) = exoprobe(&fake, &["disas", "f"]).await;
    result.unwrap();
    assert!(out.contains("call 110h") && out.contains("f+0x10") && out.contains("kprobes/a"));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[1].starts_with("0xe ") && lines[3].starts_with("0x10 "), "{out}");
    assert_eq!((lines.len(), lines[2]), (4, "; fs/a\\u{1b}.c:7"));
}

#[tokio::test]
async fn symbols_are_a_table_with_offsets_where_an_address_was_asked_for() {
    const SYMBOL: &str = r#"[{"name":"vfs_read","addr":"0xffffffff81000000","size":64,
        "kind":"function","global":true,"module":"ext4","offset":16}]"#;
    let routes = Router::new().route("/v1/symbols", get(async || SYMBOL));
    let fake = Fake::serve(routes);
    let (out, result) = exoprobe(&fake, &["symbols", "--at", "0xffffffff81000010"]).await;
    result.unwrap();
    assert!(out.contains("0xffffffff81000000  ") && out.contains("vfs_read+0x10 [ext4]"), "{out}");
    let (out, result) = exoprobe(&fake, &["--json", "symbols", "vfs_*"]).await;
    result.unwrap();
    assert!(out.contains("\"size\":64"), "{out}");
    for wrong in [&["exoprobe", "symbols"][..], &["exoprobe", "symbols", "a", "--at", "1"]] {
        assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_address_is_shown_with_its_source_line() {
    const SYMBOL: &str = r#"[{"name":"f","addr":"0x10","size":64,"kind":"function","global":true,
        "offset":16,"source":{"file":"a.h","line":7,"column":5,"inlined":[
        {"function":"inner","file":"b.c","line":30},{"function":null,"file":null,"line":null}]}}]"#;
    let symbols = async |query: RawQuery| {
        assert!(query.0.unwrap().contains("at=0x20"));
        SYMBOL
    };
    let fake = Fake::serve(Router::new().route("/v1/symbols", get(symbols)));
    for args in [&["symbols", "0x20"][..], &["symbols", "--at", "0x20"]] {
        let (out, result) = exoprobe(&fake, args).await;
        result.unwrap();
        assert!(out.ends_with("\na.h:7:5\n  in inner, inlined at b.c:30\n  in ?\n"), "{out}");
    }
}

#[tokio::test]
async fn the_console_is_printed_as_it_is() {
    let read = async |query: RawQuery| match query.0 {
        None => ([("exoprobe-next-offset", "7")], Body::from("\x1b[1mLin")),
        Some(_) => ([("x", "y")], Body::from("ux\r\n")),
    };
    let fake = Fake::serve(Router::new().route("/v1/vm/serial/0", get(read)));
    assert_eq!(exoprobe(&fake, &["vm", "console"]).await.0, "\x1b[1mLin");
    assert_eq!(exoprobe(&fake, &["vm", "console", "-f"]).await.0, "\x1b[1mLinux\r\n");
}
