//! Histograms of events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::Engine;

use super::answers::{NotFound, Problems};
use super::extract::Path;
use super::extract::blocking;
use super::probes::Name;
use super::problem::Problem;
use super::wire::Histogram;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new().route("/v1/probes/{group}/{event}/histograms", get(list)).with_state(engine)
}

/// The histograms of an event, in the order in which they were set.
///
/// The tracer's triggers `hist` (`/v1/tracefs/events/GROUP/EVENT/trigger`) set them. They have all
/// hits until now.
#[utoipa::path(get, path = "/v1/probes/{group}/{event}/histograms", tag = "probes",
    operation_id = "list_histograms",
    params(Name),
    responses((status = 200, body = Vec<Histogram<'_>>), Problems, NotFound))]
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<Name>,
) -> Result<Response, Problem> {
    let histograms = blocking(move || engine.histograms(&name.group, &name.event)).await??;
    let histograms: Vec<Histogram<'_>> = histograms.iter().map(Histogram::from).collect();
    Ok(Json(histograms).into_response())
}
