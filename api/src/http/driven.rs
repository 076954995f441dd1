//! The routes without a machine: over an engine whose guest never gets past booting, for tests and
//! fuzz targets.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode, header};
use axum::routing::{post, put};
use exoprobe_guest::GuestClock;
use exoprobe_guest::testing::FakeGuest;
use exoprobe_introspect::{SourceLines, SymbolTable};
use exoprobe_probes::{Engine, EventLimits, KernelHints, Limits};
use exoprobe_tracer::Tracer;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tower::ServiceExt;

use super::code::CodeApi;
use super::extract::{self, Json, Path, Query};
use super::problem::PROBLEM_JSON;
use super::stream::OutputQuery;
use super::wire::{DumpRequest, SnapshotRequest, TerminalSize};
use super::{engine_routes, finish};
use crate::scripts::Scripts;
use crate::service::Closing;

pub(super) const SYSTEM_MAP: &str = "ffffffff81000000 T _stext\n\
    ffffffff81000100 T entry_SYSCALL_64\n\
    ffffffff81000200 T __x64_sys_getpid\n\
    ffffffff81001000 T _etext\n";
/// RAM of the guest, in MiB.
const RAM_MIB: u64 = 24;
/// Events that are kept.
const EVENTS: usize = 16;
/// Most requests of one input.
const REQUESTS_MAX: usize = 32;

/// Symbols of a small kernel.
pub(crate) fn symbols() -> SymbolTable {
    SymbolTable::from_system_map(SYSTEM_MAP).expect("they are right")
}

/// The routes, until the sender says that the service closes. The guest has not set up its system
/// calls yet.
pub(crate) fn app(
    symbols: SymbolTable,
    lines: Option<Arc<SourceLines>>,
) -> (Router, watch::Sender<bool>) {
    let guest = Arc::new(FakeGuest::new(RAM_MIB));
    let given = KernelHints { symbols: Some(symbols), ..KernelHints::default() };
    let events = EventLimits { count: EVENTS, ..EventLimits::default() };
    let limits = Limits { events, ..Limits::default() };
    let engine = Arc::new(Engine::new(guest, GuestClock::default(), given, limits));
    let end = watch::Sender::new(false);
    let tracer = Arc::new(Tracer::new(Arc::clone(&engine), 1));
    let code = CodeApi { engine, lines };
    let scripts = Arc::new(Scripts::new(Arc::clone(&code.engine), 1));
    (finish(engine_routes(code, tracer, scripts, &Closing::new(end.subscribe()))), end)
}

/// Routes that read their requests as those of the machine do, and do nothing.
fn machine_routes() -> Router {
    let output = async |_: Path<u64>, _: Query<OutputQuery>| ();
    let input = async |_: Path<u64>, _: extract::Body| ();
    Router::new()
        .route("/v1/vm/snapshot", post(async |_: Json<SnapshotRequest>| ()))
        .route("/v1/vm/dump", post(async |_: Json<DumpRequest>| ()))
        .route("/v1/vm/console/size", put(async |_: Json<TerminalSize>| ()))
        .route("/v1/vm/serial/{port}", post(input).get(output))
}

/// Clients of the routes.
pub struct DrivenHttp {
    runtime: Runtime,
    symbols: SymbolTable,
}

impl Default for DrivenHttp {
    fn default() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { runtime: runtime.expect("a runtime"), symbols: symbols() }
    }
}

impl DrivenHttp {
    /// Sends the requests that `bytes` are, one after the other, to a new engine: separated by
    /// lines `###`, each a line `METHOD URI [CONTENT-TYPE]` and a body.
    ///
    /// # Panics
    /// When an answer is none that the service may give.
    pub fn drive(&self, bytes: &[u8]) {
        let (app, end) = app(self.symbols.clone(), None);
        let app = finish(app.merge(machine_routes()));
        // So that no answer is without an end.
        end.send_replace(true);
        self.runtime.block_on(async {
            for part in split(bytes).into_iter().take(REQUESTS_MAX) {
                if let Some(request) = request(part) {
                    ask(&app, request).await;
                }
            }
            let plain = |method: &str, uri: &str| {
                let request = Request::builder().method(method).uri(uri).body(Body::empty());
                ask(&app, request.expect("a request"))
            };
            assert_eq!(plain("GET", "/v1/probes").await.0, StatusCode::OK);
            assert_eq!(plain("GET", "/v1/kprobes/list").await.0, StatusCode::OK);
            assert_eq!(plain("DELETE", "/v1/probes").await.0, StatusCode::NO_CONTENT);
            assert_eq!(plain("GET", "/v1/probes").await.1, "[]");
        });
    }
}

/// The parts between lines `###`.
fn split(bytes: &[u8]) -> Vec<&[u8]> {
    const LINE: &[u8] = b"\n###\n";
    let (mut parts, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(LINE.len()).position(|window| window == LINE) {
        parts.push(&rest[..at]);
        rest = &rest[at + LINE.len()..];
    }
    parts.push(rest);
    parts
}

/// `None` for what hyper would not take as a request.
fn request(part: &[u8]) -> Option<Request<Body>> {
    let end = part.iter().position(|byte| *byte == b'\n').unwrap_or(part.len());
    let (line, body) = (std::str::from_utf8(&part[..end]).ok()?, part.get(end + 1..));
    let mut words = line.splitn(3, ' ');
    let mut request = Request::builder().method(words.next()?).uri(words.next()?);
    if let Some(kind) = words.next() {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    request.body(Body::from(body.unwrap_or_default().to_vec())).ok()
}

/// Sends a request and checks the answer.
async fn ask(app: &Router, request: Request<Body>) -> (StatusCode, Bytes) {
    let asked = format!("{} {}", request.method(), request.uri());
    let has_body = request.method() != Method::HEAD;
    let Ok(response) = app.clone().oneshot(request).await;
    let status = response.status();
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{asked}");
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    let kind = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    let body = body.unwrap_or_else(|error| panic!("{asked}: {error}"));
    if has_body && (kind == "application/json" || kind == PROBLEM_JSON) {
        let json: Value = serde_json::from_slice(&body)
            .unwrap_or_else(|error| panic!("{asked}: {error} in {body:?}"));
        if kind == PROBLEM_JSON {
            assert_eq!(json["status"], status.as_u16(), "{asked}: {json}");
            assert!(json["code"].as_str().is_some_and(|code| code.starts_with('E')), "{json}");
        }
    }
    let is_problem = status.is_client_error() || status.is_server_error();
    assert_eq!(kind == PROBLEM_JSON, is_problem, "{asked}: {status}");
    (status, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_requests_are_answered() {
        let driven = DrivenHttp::default();
        for input in [
            "",
            "POST /v1/probes text/plain\np:a __x64_sys_getpid\n###\nGET /v1/events?follow=true",
            "POST /v1/vm/snapshot application/json\n{\"path\":7}",
            "PUT /v1/vm/console/size application/json\n{\"columns\":80.0,\"rows\":24}",
            "PUT /v1/tracefs/kprobe_events text/plain\np:a/b vfs_read\n###\nDELETE /v1/probes/a",
            "POST /v1/vm/serial/99999999999999999999 x\n\u{0}",
        ] {
            driven.drive(input.as_bytes());
        }
    }

    #[test]
    fn an_input_is_requests_with_bodies_of_any_bytes() {
        assert_eq!(split(b"a\n###\n\n###\nb"), [&b"a"[..], b"", b"b"]);
        let request = request(b"POST /x?y text/plain; a=b\n\xff\n\n").unwrap();
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/x"));
        assert_eq!(request.headers()[header::CONTENT_TYPE], "text/plain; a=b");
        assert!(super::request(b"GET \x01").is_none() && super::request(b"GET").is_none());
    }
}
