//! The routes that need no machine, against an engine whose guest never gets past booting.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode, header};
use exoprobe_introspect::{SourceLines, SymbolTable};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt;

use super::driven::app as app_with;
use super::*;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
fn app() -> (Router, watch::Sender<bool>) {
    app_with(driven::symbols(), None)
}

async fn send(request: Request<Body>) -> Response<Body> {
    app().0.oneshot(request).await.unwrap()
}

async fn body(response: Response<Body>) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn request(method: Method, uri: &str, kind: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, kind);
    request.body(body.into()).unwrap()
}

/// Sends, and checks that a problem document comes back.
async fn problem(request: Request<Body>, status: u16, code: &str) -> Value {
    let response = send(request).await;
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
    let retry = response.headers().contains_key(header::RETRY_AFTER);
    assert_eq!(retry, status == 503);
    let problem: Value = serde_json::from_str(&body(response).await).unwrap();
    assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)));
    assert_eq!(problem["type"], "about:blank");
    problem
}

async fn post(kind: &str, body: impl Into<Body>, status: u16, code: &str) -> Value {
    problem(request(Method::POST, "/v1/probes", kind, body), status, code).await
}

#[tokio::test]
async fn what_is_not_there() {
    problem(request(Method::GET, "/v1/nothing", JSON, ""), 404, "ENOENT").await;
    problem(request(Method::GET, "/v1/probes/getpid", JSON, ""), 404, "ENOENT").await;
    problem(request(Method::DELETE, "/v1/probes/my/getpid", JSON, ""), 404, "ENOENT").await;
    problem(request(Method::PUT, "/v1/probes", JSON, ""), 405, "EOPNOTSUPP").await;
    let response = send(request(Method::PUT, "/v1/kprobes/list", JSON, "")).await;
    assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
}

#[tokio::test]
async fn bodies_that_cannot_be_read() {
    post(JSON, "{", 400, "EINVAL").await;
    post(JSON, r#"{"symbol":"x"}"#, 400, "EINVAL").await;
    post(JSON, r#"{"symbol_name":7}"#, 400, "EINVAL").await;
    post(JSON, "7", 400, "EINVAL").await;
    post(JSON, r#"[{"symbol_name":"f"},7]"#, 400, "EINVAL").await;
    post("text/plain", vec![0xff, 0xfe], 400, "EINVAL").await;
    post("text/html", "p:a f", 415, "EMEDIUMTYPE").await;
    let large = " ".repeat(BODY_MAX + 1);
    post("text/plain", large, 413, "EMSGSIZE").await;
    let change = |kind, body: &'static str| request(Method::PATCH, "/v1/probes/x", kind, body);
    problem(change(JSON, r#"{"enabled":1}"#), 400, "EINVAL").await;
    problem(change(JSON, r#"{"enabled":true,"x":1}"#), 400, "EINVAL").await;
    problem(change("text/plain", r#"{"enabled":true}"#), 415, "EMEDIUMTYPE").await;
    problem(change("application/json; charset=utf-8", r#"{"enabled":true}"#), 404, "ENOENT").await;
}

#[tokio::test]
async fn symbols_are_found_by_name_and_by_address() {
    let get = async |query: &str| {
        let response = send(request(Method::GET, &format!("/v1/symbols{query}"), JSON, "")).await;
        assert_eq!(response.status(), StatusCode::OK, "{query}");
        let total = response.headers()["exoprobe-total"].to_str().unwrap().to_owned();
        (serde_json::from_str::<Value>(&body(response).await).unwrap(), total)
    };
    let (found, _) = get("?name=__x64_sys_getpid").await;
    let [symbol] = &found.as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!(
        (&symbol["addr"], &symbol["kind"]),
        (&json!("0xffffffff81000200"), &json!("function"))
    );
    let (at, _) = get("?at=0xffffffff81000201").await;
    assert_eq!((&at[0]["name"], &at[0]["offset"]), (&symbol["name"], &json!(1)));
    assert_eq!(get("?at=0xffffffff81000201&name=__x64_*").await.0, json!([at[0]]));
    let (all, total) = get("?limit=2").await;
    assert!(all.as_array().unwrap().len() == 2 && total.parse::<usize>().unwrap() > 2, "{total}");
    assert_eq!(get("?name=no_such_*").await, (json!([]), "0".to_owned()));

    let get = |query: &str| request(Method::GET, &format!("/v1/symbols{query}"), JSON, "");
    let near = problem(get("?name=__x64_sys_getpit"), 404, "ENOENT").await;
    assert!(near["near"].as_array().unwrap().contains(&symbol["name"]), "{near}");
    problem(get("?at=0x10"), 404, "ENOENT").await;
    problem(get("?at=ten"), 400, "EINVAL").await;
    problem(get("?at=0xffffffff81000201&name=vfs_*"), 404, "ENOENT").await;
    problem(get("?nam=a"), 400, "EINVAL").await;
}

#[tokio::test]
async fn an_address_has_its_source_line_and_inlined_calls() {
    const VMLINUX: &[u8] = include_bytes!("../../../tests/fuzz/seeds/source_lines/dwarf5.elf");
    let lines = Arc::new(SourceLines::from_elf(VMLINUX.to_vec()).unwrap());
    let answer = async |symbols: &SymbolTable, at: &str| {
        let (app, _end) = app_with(symbols.clone(), Some(Arc::clone(&lines)));
        let request = request(Method::GET, &format!("/v1/symbols?{at}"), JSON, "");
        let response = app.oneshot(request).await.unwrap();
        let status = response.status();
        (status, serde_json::from_str::<Value>(&body(response).await).unwrap())
    };
    let symbols = SymbolTable::from_elf(VMLINUX).unwrap();
    for (symbols, at) in [
        (symbols.clone(), "at=0xffffffff81000018"),
        (symbols.with_slide(0x20_0000), "at=0xffffffff81200018"),
    ] {
        let (status, found) = answer(&symbols, at).await;
        assert_eq!((status, &found[0]["name"]), (StatusCode::OK, &json!("outer")));
        let expected = json!({"file": "include/util.h", "line": 7, "column": 5, "inlined": [
            {"function": "inner", "file": "kernel/sys.c", "line": 30},
            {"function": "middle", "file": "kernel/sys.c", "line": 12},
        ]});
        assert_eq!(found[0]["source"], expected);
    }
    let (_, found) = answer(&symbols, "at=0xffffffff81000041").await;
    let expected = json!({"file": "kernel/sys.c", "line": 50, "column": 5, "inlined": []});
    assert_eq!(found[0]["source"], expected);
    let (_, found) = answer(&symbols, "name=outer").await;
    assert_eq!(found[0].get("source"), None, "no address was asked for");
    let other = SymbolTable::from_system_map(driven::SYSTEM_MAP).unwrap();
    let (status, refused) = answer(&other, "at=0xffffffff81000201").await;
    assert_eq!((status, &refused["code"]), (StatusCode::CONFLICT, &json!("ENXIO")));
    assert!(refused["detail"].as_str().unwrap().contains("another kernel"), "{refused}");
}

#[tokio::test]
async fn memory_that_cannot_be_read_is_told() {
    let get = |uri: &str| request(Method::GET, uri, JSON, "");
    problem(get("/v1/memory"), 400, "EINVAL").await;
    problem(get("/v1/memory?at=0x10&len=65537"), 400, "EINVAL").await;
    problem(get("/v1/memory?at=0x10&length=1"), 400, "EINVAL").await;
    problem(get("/v1/memory?at=f%2Bzz"), 400, "EINVAL").await;
    problem(get("/v1/memory?at=no_such_symbol"), 404, "ENOENT").await;
    problem(get("/v1/memory?at=__x64_sys_getpid"), 503, "EAGAIN").await;
    problem(get("/v1/disassembly?at=__x64_sys_getpid"), 503, "EAGAIN").await;
}

#[tokio::test]
async fn wrong_definitions_say_where() {
    let found = post("text/plain", "p:a __x64_sys_getpid\np:b f %zz\n", 422, "EINVAL").await;
    assert_eq!(found["line"], 2);
    assert_eq!((&found["position"], &found["id"]), (&json!(6), &json!("BAD_REG_NAME")));
    let found = post(JSON, r#"{"symbol_name":"f","args":["%zz"]}"#, 422, "EINVAL").await;
    assert_eq!((&found["position"], &found["index"]), (&json!(0), &Value::Null));
}

#[tokio::test]
async fn before_the_kernel_begins_probes_wait_for_it() {
    let app = app().0;
    let ask = async |method, uri, kind, body: &'static str| {
        app.clone().oneshot(request(method, uri, kind, body)).await.unwrap()
    };
    for (kind, body) in [
        (FORM, "p:a __x64_sys_getpid"),
        ("Text/Plain; charset=utf-8", "r3:b __x64_sys_getpid $retval"),
        (
            JSON,
            r#" {"event": "c", "addr": "0xffffffff81000200", "actions": ["count"], "filter": "common_pid==9"}"#,
        ),
        (JSON, r#"{"event": "unregister", "symbol_name": "__x64_sys_getpid"}"#),
    ] {
        let response = ask(Method::POST, "/v1/probes", kind, body).await;
        assert_eq!(response.status(), StatusCode::CREATED, "{body}");
    }
    let all = body(ask(Method::GET, "/v1/probes", JSON, "").await).await;
    let all: Value = serde_json::from_str(&all).unwrap();
    for probe in all.as_array().unwrap() {
        assert_eq!((&probe["flags"], &probe["addr"]), (&json!(["PENDING"]), &Value::Null));
        assert!(probe["reason"].as_str().unwrap().contains("not begun"), "{probe}");
    }
    assert_eq!((&all[1]["kind"], &all[1]["maxactive"]), (&json!("r"), &json!(3)));
    assert_eq!(all[2]["actions"], json!(["count"]));
    assert_eq!((&all[1]["filter"], &all[2]["filter"]), (&json!(null), &json!("common_pid==9")));
    let shown = ask(Method::GET, "/v1/probes/kprobes/unregister", JSON, "").await;
    assert_eq!(shown.status(), StatusCode::OK, "a name like a route's");

    let names = r#"["a", "nothing", "kprobes/c", "a", "x/y/z", "unregister"]"#;
    let removed = ask(Method::POST, "/v1/probes/unregister", JSON, names).await;
    assert_eq!(removed.status(), StatusCode::OK);
    let linked = "0xffffffff81000200";
    let expected = json!([
        {"name": "a", "addr": linked, "count": 1}, {"name": "nothing", "addr": null, "count": 0},
        {"name": "kprobes/c", "addr": linked, "count": 1},
        {"name": "a", "addr": null, "count": 0}, {"name": "x/y/z", "addr": null, "count": 0},
        {"name": "unregister", "addr": linked, "count": 1},
    ]);
    assert_eq!(serde_json::from_str::<Value>(&body(removed).await).unwrap(), expected);
    let left = body(ask(Method::GET, "/v1/kprobes/list", JSON, "").await).await;
    assert_eq!(left.lines().count(), 1, "{left}");
    assert!(left.starts_with("0000000000000000  r  ") && left.contains("[PENDING]"), "{left}");
}

#[tokio::test]
async fn a_name_is_of_all_probes_that_its_event_has() {
    let app = app().0;
    let ask = async |method, uri, kind, sent: &'static str| {
        let response = app.clone().oneshot(request(method, uri, kind, sent)).await.unwrap();
        let status = response.status();
        (status, serde_json::from_str::<Value>(&body(response).await).unwrap_or_default())
    };
    let define = async || {
        let lines = "p:a __x64_sys_getpid\np:a __x64_sys_getpid+4\n";
        let (status, _) = ask(Method::POST, "/v1/tracefs/kprobe_events", FORM, lines).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
    };
    define().await;
    let (status, refused) = ask(Method::POST, "/v1/probes", FORM, "p:a __x64_sys_getpid+8").await;
    assert_eq!((status, &refused["code"]), (StatusCode::CONFLICT, &json!("EEXIST")));
    let (_, first) = ask(Method::PATCH, "/v1/probes/a", JSON, r#"{"enabled": true}"#).await;
    let (_, all) = ask(Method::GET, "/v1/probes", JSON, "").await;
    assert_eq!((&first, all.as_array().unwrap().len()), (&all[0], 2));
    for (probe, offset) in all.as_array().unwrap().iter().zip([0, 4]) {
        let told = (&probe["offset"], &probe["sites"], &probe["flags"]);
        assert_eq!(told, (&json!(offset), &json!(2), &json!(["PENDING"])));
    }
    let names = r#"["a", "a"]"#;
    let (_, removed) = ask(Method::POST, "/v1/probes/unregister", JSON, names).await;
    let linked = "0xffffffff81000200";
    let expected = json!([
        {"name": "a", "addr": linked, "count": 2}, {"name": "a", "addr": null, "count": 0},
    ]);
    assert_eq!(removed, expected);
    define().await;
    let (status, _) = ask(Method::DELETE, "/v1/probes/kprobes/a", JSON, "").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(ask(Method::GET, "/v1/probes", JSON, "").await.1, json!([]));
}

#[tokio::test]
async fn bodies_that_are_no_names_are_refused() {
    for wrong in ["{}", "[1]", "\"a\"", "["] {
        problem(request(Method::POST, "/v1/probes/unregister", JSON, wrong), 400, "EINVAL").await;
    }
    problem(request(Method::POST, "/v1/probes/unregister", FORM, "a"), 415, "EMEDIUMTYPE").await;
}

#[tokio::test]
async fn wrong_actions_and_kinds_say_what_would_be_right() {
    let wrong = [
        (r#"{"symbol_name":"f","actions":["recrod"]}"#, 400, r#"{"return": "-12"}"#),
        (r#"{"symbol_name":"f","actions":["stop"],"return_mod":"site"}"#, 400, "return_mode"),
        (r#"{"symbol_name":"f","return_mode":"stack"}"#, 400, "trampoline"),
        (r#"{"symbol_name":"f","flags":["OFF"]}"#, 400, "DISABLED"),
        (r#"{"symbol_name":"f","actions":["record","count"]}"#, 422, "leave it, or"),
        (r#"{"symbol_name":"f","actions":[{"return":1},"record"]}"#, 422, "comes last"),
        (r#"{"kind":"r","symbol_name":"f","actions":[{"return":1}]}"#, 422, "`set_reg` of `ax`"),
        (r#"{"symbol_name":"f","maxactive":4}"#, 422, "kind `r`"),
        (r#"{"kind":"r","symbol_name":"f","maxactive":0}"#, 422, "1 to 4096"),
        (r#"{"symbol_name":"f","args":["$retval"]}"#, 422, "kind `r`"),
        (r#"{"symbol_name":"f","filter":"arg1 == 1"}"#, 422, "it has `common_pid`"),
        (r#"{"symbol_name":"f","filter":"common_pid ="}"#, 422, "`==`, `!=`"),
    ];
    for (definition, status, part) in wrong {
        let found = post(JSON, definition, status, "EINVAL").await;
        assert!(found["detail"].as_str().unwrap().contains(part), "{definition}: {found}");
    }
    let batch =
        r#"[{"kind":"r","symbol_name":"__x64_sys_getpid"},{"symbol_name":"f","maxactive":4}]"#;
    let found = post(JSON, batch, 422, "EINVAL").await;
    assert_eq!((&found["index"], &found["event"]), (&json!(1), &json!("p_f_0")));
}

#[tokio::test]
async fn the_switch_is_the_kernels_file_and_json() {
    let app = app().0;
    let ask = async |method, kind, accept: &'static str, content: &'static str| {
        let mut request = request(method, "/v1/kprobes/enabled", kind, content);
        request.headers_mut().insert(header::ACCEPT, accept.parse().unwrap());
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{content}");
        body(response).await
    };
    assert_eq!(ask(Method::GET, JSON, "*/*", "").await, "1\n");
    assert_eq!(ask(Method::PUT, FORM, "*/*", "off\n").await, "0\n");
    assert_eq!(ask(Method::GET, JSON, "text/html, application/json;q=0.5", "").await, "false");
    assert_eq!(ask(Method::PUT, JSON, "application/json", "true").await, "true");
    assert_eq!(ask(Method::GET, JSON, "*/*", "").await, "1\n");
    let put = |kind, body| request(Method::PUT, "/v1/kprobes/enabled", kind, body);
    problem(put("text/plain", "maybe"), 400, "EINVAL").await;
    problem(put(JSON, "0"), 400, "EINVAL").await;
    problem(put("text/html", "1"), 415, "EMEDIUMTYPE").await;
}

#[tokio::test]
async fn the_blacklist_needs_the_kernel() {
    problem(request(Method::GET, "/v1/kprobes/blacklist", JSON, ""), 503, "EAGAIN").await;
}

#[tokio::test]
async fn stacks_are_of_vcpus_and_need_the_kernel() {
    problem(request(Method::GET, "/v1/vcpus/0/stack", JSON, ""), 503, "EAGAIN").await;
    for vcpu in ["1", "256", "18446744073709551615"] {
        let uri = format!("/v1/vcpus/{vcpu}/stack");
        let absent = problem(request(Method::GET, &uri, JSON, ""), 404, "ENOENT").await;
        assert_eq!(absent["detail"], format!("there is no vCPU {vcpu}"));
    }
    problem(request(Method::GET, "/v1/vcpus/x/stack", JSON, ""), 400, "EINVAL").await;
}

#[tokio::test]
async fn nothing_is_listed_before_there_is_something() {
    for (uri, kind, expected) in [
        ("/v1/probes", JSON, "[]"),
        ("/v1/kprobes/list", "text/plain; charset=utf-8", ""),
        ("/v1/events", "application/x-ndjson", ""),
    ] {
        let response = send(request(Method::GET, uri, JSON, "")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], kind);
        assert_eq!(body(response).await, expected);
    }
    let all = send(request(Method::DELETE, "/v1/probes", JSON, "")).await;
    assert_eq!(all.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn queries_of_events() {
    problem(request(Method::GET, "/v1/events?from=x", JSON, ""), 400, "EINVAL").await;
    problem(request(Method::GET, "/v1/events?form=1", JSON, ""), 400, "EINVAL").await;
    let mut wrong = request(Method::GET, "/v1/events", JSON, "");
    wrong.headers_mut().insert("last-event-id", "x".parse().unwrap());
    problem(wrong, 400, "EINVAL").await;
    let page = send(request(Method::GET, "/v1/events?from=5&limit=3", JSON, "")).await;
    assert_eq!(page.headers()["exoprobe-next"], "1", "nothing has happened yet");
    for method in [Method::GET, Method::DELETE] {
        let of_none = request(method, "/v1/events?instance=x", JSON, "");
        let problem = problem(of_none, 404, "ENOENT").await;
        assert_eq!(problem["detail"], "there is no instance `x`");
    }
    problem(request(Method::DELETE, "/v1/events?probe=x", JSON, ""), 400, "EINVAL").await;
}

#[tokio::test]
async fn an_instance_is_not_removed_while_its_events_are_read() {
    let app = app().0;
    let ask = async |method: Method, path: &str| {
        app.clone().oneshot(request(method, path, "text/plain", "")).await.unwrap()
    };
    let foo = "/v1/tracefs/instances/foo";
    assert_eq!(ask(Method::PUT, foo).await.status(), StatusCode::NO_CONTENT);
    let page = ask(Method::GET, "/v1/events?instance=foo").await;
    assert_eq!((page.status(), &page.headers()["exoprobe-next"] == "1"), (StatusCode::OK, true));
    assert_eq!(body(page).await, "");
    let follower = ask(Method::GET, "/v1/events?instance=foo&follow=true").await;
    assert_eq!(follower.status(), StatusCode::OK);
    assert_eq!(ask(Method::DELETE, foo).await.status(), StatusCode::CONFLICT);
    drop(follower);
    assert_eq!(ask(Method::DELETE, foo).await.status(), StatusCode::NO_CONTENT);
    let gone = ask(Method::GET, "/v1/events?instance=foo&follow=true").await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn followers_end_with_the_service() {
    let (app, end) = app();
    let mut follow = request(Method::GET, "/v1/events", JSON, "");
    follow.headers_mut().insert(header::ACCEPT, "text/event-stream".parse().unwrap());
    let response = app.oneshot(follow).await.unwrap();
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    end.send_replace(true);
    assert_eq!(body(response).await, "");
}

#[tokio::test]
async fn tcp_clients_need_the_token_everywhere() {
    let app = with_token(app().0, Token::new("s3cret-s3cret-s3cret").unwrap(), Duration::ZERO);
    for uri in ["/v1/probes", "/v1/openapi.json", "/nothing"] {
        let response = app.clone().oneshot(request(Method::GET, uri, JSON, "")).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{uri}");
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        let mut admitted = request(Method::GET, uri, JSON, "");
        admitted
            .headers_mut()
            .insert("authorization", "Bearer s3cret-s3cret-s3cret".parse().unwrap());
        let response = app.clone().oneshot(admitted).await.unwrap();
        assert_ne!(response.status(), StatusCode::UNAUTHORIZED, "{uri}");
    }
}
