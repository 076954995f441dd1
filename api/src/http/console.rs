//! Routes of the virtio console.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, put};
use exoprobe_vmm::VirtioConsole;

use super::answers::{NeedsGuest, NotFound, Problems};
use super::extract::{self, Json, Query, blocking};
use super::problem::Problem;
use super::stream::{self, OCTETS, OutputQuery};
use super::vm::VmApi;
use super::wire::TerminalSize;
use crate::service::Growth;

pub(super) fn routes(api: VmApi) -> Router {
    Router::new()
        .route("/v1/vm/console", get(output).post(input))
        .route("/v1/vm/console/size", put(resize))
        .with_state(api)
}

/// Returns the output of the virtio console, `/dev/hvc0` in the guest.
#[utoipa::path(get, path = "/v1/vm/console", tag = "vm", operation_id = "console_output",
    params(OutputQuery),
    responses((status = 200, body = Vec<u8>, content_type = OCTETS,
        headers(("exoprobe-next-offset" = u64,
            description = "Offset to go on from; not when following"))),
        Problems, NotFound))]
pub(crate) async fn output(
    State(api): State<VmApi>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Problem> {
    let (console, growth) = find(&api)?;
    Ok(stream::output(&api, console.log(), growth, &query))
}

/// Send bytes to the guest through the virtio console.
#[utoipa::path(post, path = "/v1/vm/console", tag = "vm", operation_id = "console_input",
    request_body(content = Option<Vec<u8>>, content_type = OCTETS,
        description = "The bytes; any content type is taken"),
    responses((status = 204, description = "Queued for the guest"), Problems, NotFound, NeedsGuest))]
pub(crate) async fn input(
    State(api): State<VmApi>,
    extract::Body(bytes): extract::Body,
) -> Result<StatusCode, Problem> {
    let console = Arc::clone(&find(&api)?.0);
    stream::input(&api, move || console.send(&bytes)).await
}

/// Set the size of the virtio console's terminal; the guest is notified if it has another.
#[utoipa::path(put, path = "/v1/vm/console/size", tag = "vm", operation_id = "console_size",
    request_body = TerminalSize,
    responses((status = 204, description = "It has this size"), Problems, NotFound))]
pub(crate) async fn resize(
    State(api): State<VmApi>,
    Json(size): Json<TerminalSize>,
) -> Result<StatusCode, Problem> {
    let console = Arc::clone(&find(&api)?.0);
    blocking(move || console.set_size(size.into())).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn find(api: &VmApi) -> Result<&(Arc<VirtioConsole>, Growth), Problem> {
    api.virtio_console.as_ref().ok_or_else(|| {
        let why = "the guest has no virtio console: `exoprobe run --virtio-console` gives it one";
        Problem::new("ENOENT", why)
    })
}
