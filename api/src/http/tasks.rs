//! The guest's processes.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::Engine;

use super::answers::{NeedsGuest, Problems};
use super::extract::blocking;
use super::problem::Problem;
use super::wire::Process;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new().route("/v1/tasks", get(tasks)).with_state(engine)
}

/// The guest's processes, in the order in which they began.
///
/// Read from its memory while it runs: those that begin or end meanwhile may be there or not. 503
/// until its kernel runs.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", operation_id = "tasks",
    responses((status = 200, body = Vec<Process>), Problems, NeedsGuest))]
pub(crate) async fn tasks(
    State(engine): State<Arc<Engine>>,
) -> Result<Json<Vec<Process>>, Problem> {
    let processes = blocking(move || engine.processes()).await??;
    Ok(Json(processes.into_iter().map(Process::from).collect()))
}
