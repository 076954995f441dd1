//! HTTP: routes under `/v1`, JSON in and out, every error a problem document.

mod answers;
mod auth;
mod code;
mod console;
mod deadline;
mod definitions;
#[cfg(any(test, feature = "testing"))]
mod driven;
mod events;
mod exact;
mod extract;
mod histograms;
mod integers;
mod kprobes;
mod memory;
mod modules;
mod openapi;
mod probes;
mod problem;
mod registration;
mod script_maps;
mod script_output;
mod scripts;
mod serial;
mod sse;
mod stack;
mod stream;
mod symbols;
mod tasks;
#[cfg(test)]
mod tests;
mod tracefs;
mod types;
mod vm;
pub mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use exoprobe_tracer::Tracer;

pub(crate) use auth::{FAILURE_DELAY, Peer, with_token};
pub use auth::{Token, TokenError};
pub use deadline::BODY_MAX;
pub(crate) use deadline::{BODY_DEADLINE, with_body_deadline};
#[cfg(any(test, feature = "testing"))]
pub use driven::DrivenHttp;
#[cfg(any(test, feature = "testing"))]
pub(crate) use driven::{app, symbols as small_symbols};
use openapi::openapi_document;
pub use openapi::openapi_json;
pub use problem::{PROBLEM_JSON, Problem, ProblemDocument};

pub(crate) use vm::VmApi;

use crate::scripts::Scripts;
use crate::service::Closing;
use code::CodeApi;
use events::EventsApi;
use histograms::{HistogramAnswers, HistogramsApi};
use scripts::ScriptsApi;
use tracefs::TracefsApi;

/// All routes.
pub(crate) fn router(api: VmApi) -> Router {
    let code = CodeApi { engine: Arc::clone(&api.engine), lines: api.lines.clone() };
    let (tracer, scripts) = (Arc::clone(&api.tracer), Arc::clone(&api.scripts));
    let engine_routes = engine_routes(code, tracer, scripts, &api.closing);
    let routes = vm::routes(api.clone()).merge(serial::routes(api.clone()));
    finish(routes.merge(console::routes(api)).merge(engine_routes))
}

/// The routes that need no machine.
fn engine_routes(
    code: CodeApi,
    tracer: Arc<Tracer>,
    scripts: Arc<Scripts>,
    closing: &Closing,
) -> Router {
    let engine = &code.engine;
    let histograms = HistogramAnswers::default();
    let events = EventsApi { tracer: Arc::clone(&tracer), closing: closing.clone() };
    let tracefs = TracefsApi { tracer, histograms: histograms.clone(), closing: closing.clone() };
    let scripts = ScriptsApi { scripts, closing: closing.clone() };
    probes::routes(Arc::clone(engine))
        .merge(histograms::routes(HistogramsApi {
            engine: Arc::clone(engine),
            answers: histograms,
        }))
        .merge(kprobes::routes(Arc::clone(engine)))
        .merge(tasks::routes(Arc::clone(engine)))
        .merge(modules::routes(Arc::clone(engine)))
        .merge(types::routes(Arc::clone(engine)))
        .merge(stack::routes(Arc::clone(engine)))
        .merge(events::routes(events))
        .merge(scripts::routes(scripts))
        .merge(tracefs::routes(tracefs))
        .merge(symbols::routes(code.clone()))
        .merge(memory::routes(code))
        .route("/v1/openapi.json", get(openapi_document))
}

/// Adds what all routes share: fallbacks and the limit of bodies.
fn finish(routes: Router) -> Router {
    routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

async fn no_route(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}: see /v1/openapi.json", uri.path());
    Problem::new("ENOENT", detail)
}

async fn no_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}: see the header Allow", uri.path());
    Problem::with_status(StatusCode::METHOD_NOT_ALLOWED, "EOPNOTSUPP", detail)
}
