//! The routes that need no machine, against an engine whose guest never gets past booting.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode, header};
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, Guest};
use exoprobe_vmm::memory::ram_ranges;
use exoprobe_vmm::{GuestClock, GuestRam, HiddenMemory, VcpuError, kvm_sregs};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt;

use super::*;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const SYSTEM_MAP: &str = "ffffffff81000000 T _stext\n\
    ffffffff81000100 T entry_SYSCALL_64\n\
    ffffffff81000200 T __x64_sys_getpid\n\
    ffffffff81001000 T _etext\n";

/// A guest that has not set up its system calls yet.
struct BootingGuest {
    ram: GuestRam,
    hidden: HiddenMemory,
}

impl Guest for BootingGuest {
    fn ram(&self) -> &GuestRam {
        &self.ram
    }
    fn hidden(&self) -> &HiddenMemory {
        &self.hidden
    }
    fn vcpus(&self) -> u8 {
        1
    }
    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        Ok(kvm_sregs::default())
    }
    fn msr(&self, _index: u32) -> Result<u64, VcpuError> {
        Ok(0)
    }
    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        Ok(())
    }
    fn stopped(&self) -> bool {
        false
    }
}

fn app() -> (Router, watch::Sender<bool>) {
    let ram = GuestRam::anonymous(&ram_ranges(24)).unwrap();
    let hidden = HiddenMemory::new(&ram).unwrap();
    let symbols = SymbolTable::from_system_map(SYSTEM_MAP).unwrap();
    let guest = Arc::new(BootingGuest { ram, hidden });
    let engine = Arc::new(Engine::new(guest, GuestClock::default(), symbols, 16));
    let end = watch::Sender::new(false);
    (finish(engine_routes(&engine, &Closing::new(end.subscribe()))), end)
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
async fn wrong_definitions_say_where() {
    let found = post("text/plain", "p:a __x64_sys_getpid\np:b f %zz\n", 422, "EINVAL").await;
    assert_eq!(found["line"], 2);
    assert_eq!((&found["position"], &found["id"]), (&json!(6), &json!("BAD_REG_NAME")));
    let found = post(JSON, r#"{"symbol_name":"f","args":["%zz"]}"#, 422, "EINVAL").await;
    assert_eq!((&found["position"], &found["index"]), (&json!(0), &Value::Null));
}

#[tokio::test]
async fn a_guest_that_boots_is_to_be_tried_again() {
    let line = "p:getpid __x64_sys_getpid";
    post(FORM, line, 503, "EAGAIN").await;
    post("Text/Plain; charset=utf-8", line, 503, "EAGAIN").await;
    post(JSON, r#" {"symbol_name":"__x64_sys_getpid"}"#, 503, "EAGAIN").await;
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
    let app = with_token(app().0, Token::new("s3cret").unwrap());
    for uri in ["/v1/probes", "/v1/openapi.json", "/nothing"] {
        let response = app.clone().oneshot(request(Method::GET, uri, JSON, "")).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{uri}");
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        let mut admitted = request(Method::GET, uri, JSON, "");
        admitted.headers_mut().insert("authorization", "Bearer s3cret".parse().unwrap());
        let response = app.clone().oneshot(admitted).await.unwrap();
        assert_ne!(response.status(), StatusCode::UNAUTHORIZED, "{uri}");
    }
}
