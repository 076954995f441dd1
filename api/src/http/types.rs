//! The guest kernel's types.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use exoprobe_introspect::Btf;
use exoprobe_probes::{Engine, ProbeError};
use serde::Deserialize;
use utoipa::IntoParams;

use super::answers::{NeedsGuest, NotFound, Problems};
use super::extract::blocking;
use super::extract::{Path, Query};
use super::problem::Problem;
use super::symbols::{DEFAULT_LIMIT, MAX_LIMIT, with_total};
use super::wire::{Type, TypeName};

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/types", get(list))
        .route("/v1/types/{name}", get(show))
        .with_state(engine)
}

/// Which types.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TypesQuery {
    /// Their names: `*` stands for any run of characters, `?` for any one. All when absent.
    #[param(example = "task_*")]
    name: Option<String>,
    /// Most types to give: 100 when absent, 10,000 at most.
    limit: Option<usize>,
}

/// Which type.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TypePath {
    /// A type's name, also as `struct NAME`, `union NAME` or `enum NAME`; or a function's.
    #[param(example = "task_struct")]
    name: String,
}

/// Types of the guest's kernel, in order of their names.
///
/// From the BTF in its memory (`CONFIG_DEBUG_INFO_BTF`), or from the file that `--btf` gave; 409 with the code `ENODATA`
/// where there is neither.
#[utoipa::path(get, path = "/v1/types", tag = "types", operation_id = "types",
    params(TypesQuery),
    responses((status = 200, body = Vec<TypeName>,
        headers(("exoprobe-total" = u64, description = "How many there are, also beyond `limit`"))),
        Problems, NeedsGuest))]
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    Query(query): Query<TypesQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let found = blocking(move || -> Result<_, ProbeError> {
        Ok(matching(&*engine.types()?, query.name.as_deref().unwrap_or("*"), limit))
    });
    let (types, total) = found.await??;
    Ok(with_total(Json(types).into_response(), total))
}

fn matching(types: &Btf, pattern: &str, limit: usize) -> (Vec<TypeName>, usize) {
    let (mut found, mut total) = (Vec::new(), 0);
    for (name, id) in types.search(pattern) {
        total += 1;
        if found.len() < limit {
            let kind = types.tag(id);
            found.push(TypeName { name: name.to_owned(), kind, size: types.size_of(id) });
        }
    }
    (found, total)
}

/// One type of the guest's kernel, with its members, or one function's prototype.
#[utoipa::path(get, path = "/v1/types/{name}", tag = "types", operation_id = "show_type",
    params(TypePath), responses((status = 200, body = Type), Problems, NeedsGuest, NotFound))]
pub(crate) async fn show(
    State(engine): State<Arc<Engine>>,
    Path(TypePath { name }): Path<TypePath>,
) -> Result<Json<Type>, Problem> {
    let found = blocking(move || -> Result<Type, Problem> {
        let found = engine.types()?.about(&name);
        let unknown = || {
            let detail = format!(
                "the kernel has no type or function {name:?}: look for it with a pattern (`*{name}*`)"
            );
            Problem::new("ENOENT", detail)
        };
        Ok(found.ok_or_else(unknown)?.into())
    });
    Ok(Json(found.await??))
}
