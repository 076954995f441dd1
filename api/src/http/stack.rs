//! Back-traces of vCPUs and tasks.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::{Engine, Frame};

use super::answers::{NeedsGuest, NotFound, Problems, Refused};
use super::extract::Path;
use super::extract::blocking;
use super::problem::Problem;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/vcpus/{vcpu}/stack", get(stack))
        .route("/v1/tasks/{pid}/stack", get(task_stack))
        .with_state(engine)
}

/// The back-trace of a vCPU, taken while all of them stand still.
///
/// The kernel's part by its ORC tables or, where it has none, by frame pointers, with the true
/// addresses where return probes have changed some; then the user's part, by frame pointers. 503
/// until the guest's kernel runs.
#[utoipa::path(get, path = "/v1/vcpus/{vcpu}/stack", tag = "vm", operation_id = "vcpu_stack",
    params(("vcpu" = u64, Path, description = "vCPU, from 0")),
    responses((status = 200, body = Vec<Frame>), Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn stack(
    State(engine): State<Arc<Engine>>,
    Path(vcpu): Path<u64>,
) -> Result<Json<Vec<Frame>>, Problem> {
    let index = u8::try_from(vcpu)
        .map_err(|_| Problem::new("ENOENT", format!("there is no vCPU {vcpu}")))?;
    Ok(Json(blocking(move || engine.stack(index)).await??))
}

/// The back-trace of a task, running or not, taken while all vCPUs stand still.
///
/// As of a vCPU. Needs the kernel's types; 404 where no task has this number.
#[utoipa::path(get, path = "/v1/tasks/{pid}/stack", tag = "tasks", operation_id = "task_stack",
    params(("pid" = u32, Path, description = "Number of a process or thread")),
    responses((status = 200, body = Vec<Frame>), Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn task_stack(
    State(engine): State<Arc<Engine>>,
    Path(pid): Path<u32>,
) -> Result<Json<Vec<Frame>>, Problem> {
    Ok(Json(blocking(move || engine.task_stack(pid)).await??))
}
