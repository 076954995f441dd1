//! The guest's modules.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_probes::Engine;

use super::answers::{NeedsGuest, Problems, Refused};
use super::extract::blocking;
use super::problem::Problem;
use super::wire::Module;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new().route("/v1/modules", get(modules)).with_state(engine)
}

/// The guest's loadable modules, the last loaded first, with the probes in them.
///
/// Read from its memory, by its types (`CONFIG_DEBUG_INFO_BTF`, or `--btf`); 409 with the code `ENODATA` where these are not
/// known or the kernel takes no modules, 503 until it runs.
#[utoipa::path(get, path = "/v1/modules", tag = "modules", operation_id = "modules",
    responses((status = 200, body = Vec<Module>), Problems, NeedsGuest, Refused))]
pub(crate) async fn modules(
    State(engine): State<Arc<Engine>>,
) -> Result<Json<Vec<Module>>, Problem> {
    let modules = blocking(move || engine.modules()).await??;
    Ok(Json(modules.into_iter().map(Module::from).collect()))
}
