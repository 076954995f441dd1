//! Files of the kernel's kprobes folder of debugfs: list, enabled, blacklist (kprobes.rst, "The
//! kprobes debugfs interface").

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::Engine;

use super::answers::{NeedsGuest, NoRoom, Problems};
use super::extract::blocking;
use super::extract::{Body, accepts, media_type};
use super::problem::Problem;
use super::wire::{BlacklistEntry, Switch};

const JSON: &str = "application/json";

type Probes = State<Arc<Engine>>;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/kprobes/list", get(list))
        .route("/v1/kprobes/enabled", get(enabled).put(switch))
        .route("/v1/kprobes/optimization", get(optimization).put(optimize))
        .route("/v1/kprobes/blacklist", get(blacklist))
        .with_state(engine)
}

/// The text of the kernel's kprobes/list.
#[utoipa::path(get, path = "/v1/kprobes/list", tag = "kprobes", operation_id = "kprobes_list",
    responses((status = 200, body = String, content_type = "text/plain"), Problems))]
pub(crate) async fn list(State(engine): Probes) -> Result<String, Problem> {
    blocking(move || exoprobe_tracer::list_text(&engine.list())).await
}

/// Is the switch over all probes on?
///
/// `1` or `0` and a line end, as the kernel's kprobes/enabled; `true` or `false` where `Accept`
/// names application/json.
#[utoipa::path(get, path = "/v1/kprobes/enabled", tag = "kprobes", operation_id = "kprobes_enabled",
    responses((status = 200, content((String = "text/plain", example = "1\n"),
        (bool = "application/json"))), Problems))]
pub(crate) async fn enabled(
    State(engine): Probes,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(answer(&headers, blocking(move || engine.is_switched_on()).await?))
}

/// Turn the switch over all probes.
///
/// Off disarms every probe, on arms those that are enabled; whether each is enabled stays as it is.
/// Text: `1`, `y`, `on` or `0`, `n`, `off`. Answered as it is read.
#[utoipa::path(put, path = "/v1/kprobes/enabled", tag = "kprobes", operation_id = "switch_kprobes",
    request_body(content((Switch = "text/plain"), (bool = "application/json"))),
    responses((status = 200, content((String = "text/plain", example = "0\n"),
        (bool = "application/json"))), Problems, NeedsGuest, NoRoom))]
pub(crate) async fn switch(
    State(engine): Probes,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Problem> {
    let on = read_switch(&media_type(&headers), &body)?;
    blocking(move || engine.switch(on)).await??;
    Ok(answer(&headers, on))
}

/// Is jump optimization on?
///
/// `1` or `0` and a line end, as the kernel's debug.kprobes-optimization; `true` or `false` where
/// `Accept` names application/json.
#[utoipa::path(get, path = "/v1/kprobes/optimization", tag = "kprobes",
    operation_id = "kprobes_optimization",
    responses((status = 200, content((String = "text/plain", example = "1\n"),
        (bool = "application/json"))), Problems))]
pub(crate) async fn optimization(
    State(engine): Probes,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(answer(&headers, blocking(move || engine.is_optimization_allowed()).await?))
}

/// Turn jump optimization on or off.
///
/// Off has all hits go through the VMM when this is answered; on has the optimizer put jmps in
/// again, in the background. Text: `1`, `y`, `on` or `0`, `n`, `off`. Answered as it is read.
#[utoipa::path(put, path = "/v1/kprobes/optimization", tag = "kprobes",
    operation_id = "optimize_kprobes",
    request_body(content((Switch = "text/plain"), (bool = "application/json"))),
    responses((status = 200, content((String = "text/plain", example = "0\n"),
        (bool = "application/json"))), Problems))]
pub(crate) async fn optimize(
    State(engine): Probes,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Problem> {
    let on = read_switch(&media_type(&headers), &body)?;
    blocking(move || engine.allow_optimization(on)).await?;
    Ok(answer(&headers, on))
}

/// Where no probe may be in the guest's kernel, in ascending order.
///
/// Lines as in the kernel's kprobes/blacklist; where `Accept` names application/json with the
/// reasons, and with the places where only return probes may not be.
#[utoipa::path(get, path = "/v1/kprobes/blacklist", tag = "kprobes",
    operation_id = "kprobes_blacklist",
    responses((status = 200, content((String = "text/plain",
        example = "0xffffffff81000000-0xffffffff810000c0\tstartup_64\n"),
        (Vec<BlacklistEntry> = "application/json"))), Problems, NeedsGuest))]
pub(crate) async fn blacklist(
    State(engine): Probes,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let entries = blocking(move || engine.blacklist()).await??;
    Ok(match accepts(&headers, JSON) {
        true => {
            let entries = entries.into_iter().map(BlacklistEntry::from);
            Json(entries.collect::<Vec<_>>()).into_response()
        }
        false => exoprobe_tracer::blacklist_text(&entries).into_response(),
    })
}

fn answer(headers: &HeaderMap, on: bool) -> Response {
    match accepts(headers, JSON) {
        true => Json(on).into_response(),
        false => if on { "1\n" } else { "0\n" }.into_response(),
    }
}

/// Reads a switch's state. `curl -T` gives no content type, `curl -d` that of a form.
fn read_switch(media_type: &str, body: &[u8]) -> Result<bool, Problem> {
    match media_type {
        JSON => serde_json::from_slice(body).map_err(|e| Problem::malformed(e.to_string())),
        "" | "text/plain" | "application/x-www-form-urlencoded" => {
            let read = exoprobe_tracer::parse_switch(&String::from_utf8_lossy(body));
            read.map_err(|error| Problem::from(error).malformed_request())
        }
        other => {
            let detail = format!("content-type {other}: send text/plain or application/json");
            Err(Problem::media_type(detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_read_as_the_kernel_reads_it() {
        for on in ["1", "1\n", "y", "Y\n", "on", "ON", "true"] {
            assert_eq!(read_switch("text/plain", on.as_bytes()), Ok(true), "{on}");
        }
        for off in ["0", "0\r\n", "n", "N", "off\n", "Off"] {
            assert_eq!(read_switch("", off.as_bytes()), Ok(false), "{off}");
        }
        for wrong in ["", "2", "o", "10", "enabled", "\u{fffd}"] {
            assert_eq!(read_switch("text/plain", wrong.as_bytes()).unwrap_err().status, 400);
        }
        assert_eq!(read_switch(JSON, b" true"), Ok(true));
        assert_eq!(read_switch(JSON, b"1").unwrap_err().status, 400);
        assert_eq!(read_switch("image/png", b"1").unwrap_err().status, 415);
    }
}
