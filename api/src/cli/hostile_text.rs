//! No command lets the guest's text steer the terminal.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::{get, patch, post};
use clap::CommandFactory;
use serde_json::{Deserializer, Value};

use super::format::printable_lines;
use super::{Cli, tests::exoprobe};
use crate::client::testing::{Fake, endless};

/// A control sequence by ESC and by U+009B, and what reorders, breaks or hides text.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\u{2066}\u{2028}\u{200b}\u{feff}\u{e0041}";

/// Commands that print text of the guest's, and whether they do as JSON. Without colours, which are
/// escape sequences themselves.
const PRINTING: &[(&[&str], bool)] = &[
    (&["ps"], true),
    (&["stack", "0"], true),
    (&["stack", "--pid", "1"], true),
    (&["modules"], true),
    (&["symbols", "f"], true),
    (&["symbols", "0x10"], true),
    (&["types", "s"], true),
    (&["types", "s*"], true),
    (&["x", "f", "4"], false),
    (&["x", "--type", "s", "f"], true),
    (&["disas", "f"], true),
    (&["events", "--color", "never"], true),
    (&["export", "--format", "chrome"], true),
    (&["top", "--once", "--interval", "0.1", "--color", "never"], true),
    (&["instance", "list"], true),
    (&["probe", "add", "p f"], true),
    (&["probe", "add", "--dry-run", "p *"], true),
    (&["probe", "list"], true),
    (&["probe", "list", "--kprobes-list"], false),
    (&["probe", "show", "e"], true),
    (&["probe", "enable", "e"], true),
    (&["probe", "disable", "e"], true),
    (&["probe", "blacklist"], true),
    (&["vm", "status"], true),
    (&["vm", "config"], true),
    (&["vm", "pause"], true),
    (&["vm", "resume"], true),
    (&["vm", "reboot"], true),
    (&["vm", "power-button"], true),
    (&["vm", "shutdown"], true),
    (&["vm", "snapshot", "f"], true),
    (&["vm", "dump", "f"], true),
    (&["hist", "--for", "0.1", "f", "dx=%dx"], true),
    (&["stacks", "--for", "0.1", "f"], true),
    (&["trace", "-e", "BEGIN { }"], true),
    (&["trace", "-lv", "kprobe:f"], false),
    (&["vm", "registers"], true),
    (&["vm", "send", "go"], true),
];

/// Commands that print nothing of the guest's; `vm console` passes its bytes on, as documented.
const OTHERS: &[&[&str]] = &[
    &["run"],
    &["mount"],
    &["doctor"],
    &["openapi"],
    // Of the guest's, its JSON has the banner, by the same function.
    &["ls"],
    &["events", "clear"],
    &["instance", "add"],
    &["instance", "rm"],
    &["instance", "enable"],
    &["instance", "disable"],
    &["probe", "rm"],
    &["probe", "switch"],
    &["probe", "optimization"],
    &["vm", "console"],
];

/// A JSON document in which `@` stands for hostile text, raw wherever JSON allows.
fn hostile(document: &str) -> String {
    let text = serde_json::to_string(HOSTILE).unwrap();
    document.replace('@', text.trim_matches('"'))
}

fn probe() -> String {
    hostile(
        r#"{"id":1,"kind":"k","group":"kprobes","event":"e","symbol_name":"@","offset":0,"addr":"0x10",
            "state":"pending","flags":["@"],"reason":"@","hits":2,"nmissed":0,"recorded":2,"filtered":0,"lost":0,
            "instruction":"@","displaced":"@","definition":"@"}"#,
    )
}

/// Answers of a service whose guest chose hostile names wherever there are names.
fn answers() -> Vec<(&'static str, String)> {
    let frames = r#"[{"addr":"0x10","symbol_name":"@","offset":1,"size":2,"user":false}]"#;
    let vm = r#"{"state":"@","stopped":{"reason":"panic","message":"@"},"banner":"@"}"#;
    let answers = [
        ("/v1/tracefs/instances", r#"{"entries":[{"name":"@"}]}"#),
        ("/v1/tracefs/instances/{name}/set_event", "@:@"),
        ("/v1/tasks", r#"[{"pid":7,"comm":"@","vcpus":[],"state":"S","parent":1,"task":"0x2"}]"#),
        ("/v1/vcpus/0/stack", frames),
        ("/v1/tasks/1/stack", frames),
        (
            "/v1/modules",
            r#"[{"name":"@","state":"@","addr":"0x0","size":0,"symbols":0,"probes":["@"]}]"#,
        ),
        (
            "/v1/symbols",
            r#"[{"name":"@","addr":"0x10","size":4,"kind":"function","module":"@","offset":16,"source":
              {"file":"@","line":7,"column":5,"inlined":[{"function":"@","file":"@","line":30}]}}]"#,
        ),
        ("/v1/types", r#"[{"name":"@","kind":"struct","size":4}]"#),
        (
            "/v1/types/s",
            r#"{"kind":"struct","declaration":"struct @","size":4,"values":[],"members":
              [{"name":"c","declaration":"char @[4]","offset":0,"size":4}]}"#,
        ),
        ("/v1/memory", r#"{"addr":"0x10","bytes":"1bc29b7f"}"#),
        (
            "/v1/disassembly",
            r#"[{"addr":"0xe","bytes":"6690","text":"@","target":"@","probes":["@"],"source":"@"}]"#,
        ),
        ("/v1/kprobes/list", "0010  k  @+0x0\n"),
        ("/v1/kprobes/blacklist", r#"[{"start":"0x10","end":"0x20","symbol":"@","reason":"@"}]"#),
        (
            "/v1/events",
            r#"{"seq":1,"time":0.0,"vcpu":0,"pid":7,"comm":"@","group":"kprobes","event":"e","symbol_name":"@","offset":0,"addr":"0x1","args":{"@":"@"},"stack":[{"addr":"0x4","symbol_name":"@","offset":0}]}"#,
        ),
        (
            "/v1/probes/exoprobe/{event}/histograms",
            r#"[{"trigger":"@","keys":["@"],"values":[],"hits":9,"dropped":0,
              "entries":[{"keys":["@"],"hits":9,"sums":[]}]}]"#,
        ),
        ("/v1/vm", vm),
        ("/v1/vm/config", r#"{"kernel":"@","disk":[{"path":"@","mode":"@"}],"memory":64}"#),
        ("/v1/scripts/1/output", r#"{"type":"printf","data":"@"}"#),
        ("/v1/vm/registers/0", r#"{"vcpu":0,"@":"@"}"#),
    ];
    answers.map(|(path, answer)| (path, hostile(answer))).into()
}

fn service() -> Fake {
    let number = Arc::new(Mutex::new(String::new()));
    let of_write = Arc::clone(&number);
    let read = async move |query: RawQuery| match query.0 {
        None => ([("exoprobe-next-offset", "0")], Body::empty()),
        Some(_) => ([("x", "y")], endless(format!("{} done {HOSTILE}\n", number.lock().unwrap()))),
    };
    let write = async move |line: String| {
        *of_write.lock().unwrap() = line.split(' ').next().unwrap().to_owned();
        StatusCode::NO_CONTENT
    };
    let control = hostile(r#"{"state":"@","path":"@","bytes":5,"stood_ms":1}"#);
    let script = || {
        hostile(
            r#"{"id":1,"exit_status":0,"refused":["@"],"run":0,"filtered":0,"limited":0,"late":0,"lost":0,"nmissed":0,"warnings":["@"],"more_warnings":0,"explained":[{"probe":"@","arguments":["@"],"reads":["@"],"exit":"@"}]}"#,
        )
    };
    let changed = async || hostile(r#"[{"name":"@","probes":["#) + &probe() + "]}]";
    let probes = async || format!("[{}]", probe());
    let mut routes = Router::new()
        .route("/v1/vm/serial/1", get(read).post(write))
        .route("/v1/vm/{action}", post(async || control))
        .route("/v1/probes", get(probes).post(probes).patch(changed))
        .route("/v1/scripts", post(async move || script()))
        .route(
            "/v1/scripts/{id}",
            get(async move || script()).delete(async || StatusCode::NO_CONTENT),
        )
        .route("/v1/tracefs/events/exoprobe/{event}/trigger", post(async || StatusCode::NO_CONTENT))
        .route(
            "/v1/probes/{group}/{event}",
            patch(async || probe()).get(async || probe()).delete(async || StatusCode::NO_CONTENT),
        );
    for (path, answer) in answers() {
        routes = routes.route(path, get(async || answer));
    }
    Fake::serve(routes)
}

#[tokio::test]
async fn no_command_prints_what_steers_a_terminal() {
    let fake = service();
    for (args, has_json) in PRINTING {
        let (out, result) = exoprobe(&fake, args).await;
        result.unwrap_or_else(|error| panic!("{args:?}: {error}"));
        assert_eq!(printable_lines(&out), out, "{args:?}");
        if !has_json {
            continue;
        }
        let (json, result) = exoprobe(&fake, &[&["--json"], *args].concat()).await;
        result.unwrap_or_else(|error| panic!("{args:?}: {error}"));
        assert_eq!(printable_lines(&json), json, "--json {args:?}");
        // And the value is exact.
        let values = Deserializer::from_str(&json).into_iter::<Value>();
        let values: Vec<Value> = values.collect::<Result<_, _>>().unwrap();
        assert!(values.iter().any(|value| contains(value, HOSTILE)), "--json {args:?}: {json}");
    }
}

/// Returns whether some text in a JSON value contains `text`.
fn contains(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found.contains(text),
        Value::Array(all) => all.iter().any(|one| contains(one, text)),
        Value::Object(all) => all.iter().any(|(n, v)| n.contains(text) || contains(v, text)),
        _ => false,
    }
}

#[tokio::test]
async fn nor_does_a_message() {
    let refuse = async || {
        let problem = hostile(r#"{"title":"@","detail":"@","code":"@","near":["@"],"position":1}"#);
        (StatusCode::NOT_FOUND, problem)
    };
    let refusing = Fake::serve(Router::new().fallback(refuse));
    let broken = Fake::serve(Router::new().fallback(async || (StatusCode::BAD_GATEWAY, HOSTILE)));
    for fake in [&refusing, &broken] {
        for (args, _) in PRINTING {
            let Err(error) = exoprobe(fake, args).await.1 else { continue };
            let message = error.message().unwrap_or_default();
            assert_eq!(printable_lines(&message), message, "{args:?}");
        }
    }
}

/// Adds the words of all commands that have no subcommands.
fn add_leaves(command: &clap::Command, words: &[String], leaves: &mut Vec<Vec<String>>) {
    // `events` is a command with and without its subcommand.
    let is_leaf = !command.has_subcommands() || command.is_args_conflicts_with_subcommands_set();
    if is_leaf {
        leaves.push(words.to_vec());
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        add_leaves(inner, &[words, &[inner.get_name().to_owned()]].concat(), leaves);
    }
}

#[test]
fn all_commands_are_tried() {
    let mut leaves = Vec::new();
    add_leaves(&Cli::command(), &[], &mut leaves);
    let tried: Vec<&[&str]> =
        PRINTING.iter().map(|(args, _)| *args).chain(OTHERS.iter().copied()).collect();
    for leaf in leaves {
        assert!(tried.iter().any(|args| args.starts_with(&as_words(&leaf))), "{leaf:?}");
    }
}

fn as_words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
