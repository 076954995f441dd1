//! Routes of the serial ports.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use exoprobe_vmm::SerialPort;

use super::answers::{NeedsGuest, NotFound, Problems};
use super::extract::{self, Path, Query};
use super::problem::Problem;
use super::stream::{self, OCTETS, OutputQuery};
use super::vm::VmApi;

pub(super) fn routes(api: VmApi) -> Router {
    Router::new()
        .route("/v1/vm/serial/{port}", get(serial_output).post(serial_input))
        .with_state(api)
}

/// Returns the output of a serial port: 0 is the console, 1 the workload's port.
#[utoipa::path(get, path = "/v1/vm/serial/{port}", tag = "vm", operation_id = "serial_output",
    params(("port" = u64, Path, description = "0 or 1"), OutputQuery),
    responses((status = 200, body = Vec<u8>, content_type = OCTETS,
        headers(("exoprobe-next-offset" = u64,
            description = "Offset to go on from; not when following"))),
        Problems, NotFound))]
pub(crate) async fn serial_output(
    State(api): State<VmApi>,
    Path(port): Path<u64>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Problem> {
    let (index, port) = find_port(&api, port)?;
    Ok(stream::output(&api, port.log(), &api.growth[index], &query))
}

/// Send bytes to the guest through a serial port.
#[utoipa::path(post, path = "/v1/vm/serial/{port}", tag = "vm", operation_id = "serial_input",
    params(("port" = u64, Path, description = "0 or 1")),
    request_body(content = Option<Vec<u8>>, content_type = OCTETS,
        description = "The bytes; any content type is taken"),
    responses((status = 204, description = "Queued for the guest"), Problems, NotFound, NeedsGuest))]
pub(crate) async fn serial_input(
    State(api): State<VmApi>,
    Path(port): Path<u64>,
    extract::Body(bytes): extract::Body,
) -> Result<StatusCode, Problem> {
    let port = Arc::clone(find_port(&api, port)?.1);
    stream::input(&api, move || port.send(&bytes)).await
}

fn find_port(api: &VmApi, port: u64) -> Result<(usize, &Arc<SerialPort>), Problem> {
    let found = usize::try_from(port).ok().and_then(|i| Some((i, api.vm.serial(i)?)));
    found.ok_or_else(|| Problem::new("ENOENT", format!("there is no serial port {port}: 0 or 1")))
}
