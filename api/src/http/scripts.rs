//! Routes of the scripts.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answers::{NeedsGuest, NoRoom, NotFound, Problems, Refused};
use super::extract::{Path, Query, blocking, media_type};
use super::problem::Problem;
use super::script_maps::{ScriptMaps, maps};
use super::script_output::{ScriptOutputs, output};
use super::wire::{NewScript, Script, ScriptCommands};
use crate::scripts::{ScriptError, Scripts, run_timers};
use crate::service::Closing;

#[derive(Clone)]
pub(crate) struct ScriptsApi {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) closing: Closing,
}

pub(crate) fn routes(api: ScriptsApi) -> Router {
    let outputs = ScriptOutputs { scripts: Arc::clone(&api.scripts), closing: api.closing.clone() };
    Router::new()
        .route("/v1/scripts/{id}/output", get(output))
        .with_state(outputs)
        .route("/v1/scripts/{id}/maps", get(maps))
        .with_state(ScriptMaps::new(&api.scripts))
        .route("/v1/scripts", get(list).post(create))
        .route("/v1/scripts/{id}", get(show).delete(remove))
        .route("/v1/scripts/{id}/commands", get(commands))
        .with_state(api)
}

/// The scripts that run, and the last that have ended.
#[utoipa::path(get, path = "/v1/scripts", tag = "scripts", operation_id = "list_scripts",
    responses((status = 200, body = Vec<Script>), Problems))]
pub(crate) async fn list(
    State(api): State<ScriptsApi>,
) -> Result<axum::Json<Vec<Script>>, Problem> {
    let scripts = api.scripts;
    let all = blocking(move || {
        let statuses = scripts.list().into_iter().map(|script| script.status(scripts.engine()));
        statuses.map(Script::from).collect()
    });
    Ok(axum::Json(all.await?))
}

/// Run a script in the bpftrace language.
///
/// It is checked first: a script that is wrong changes nothing in the guest. Its probes are in a
/// group of their own, `script_ID`. What its actions read is recorded at each hit; the actions run
/// in the service, in order of guest time.
#[utoipa::path(post, path = "/v1/scripts", tag = "scripts", operation_id = "run_script",
    request_body(content((NewScript = "application/json"), (String = "text/plain"))),
    responses((status = 201, body = Script, description = "It runs"),
        (status = 200, body = Script, description = "It is right; nothing runs (`dry_run`)"),
        Problems, NotFound, NeedsGuest, Refused, NoRoom))]
pub(crate) async fn create(
    State(api): State<ScriptsApi>,
    headers: HeaderMap,
    body: super::extract::Body,
) -> Result<Response, Problem> {
    let new = read(&headers, &body.0)?;
    let (dry_run, new) = (new.dry_run, crate::scripts::NewScript::from(new));
    let scripts = Arc::clone(&api.scripts);
    if dry_run {
        let checked = blocking(move || {
            scripts.examine(&new).map(|checked| Script::checked(new.text, &checked))
        });
        return Ok(axum::Json(checked.await??).into_response());
    }
    let script = blocking(move || scripts.start(&new)).await??;
    let engine = Arc::clone(api.scripts.engine());
    drop(tokio::spawn(run_timers(Arc::clone(&script), Arc::clone(&engine), api.closing)));
    let status = blocking(move || script.status(&engine)).await?;
    Ok((StatusCode::CREATED, axum::Json(Script::from(status))).into_response())
}

fn read(headers: &HeaderMap, body: &[u8]) -> Result<NewScript, Problem> {
    match media_type(headers).as_str() {
        "application/json" => {
            serde_json::from_slice(body).map_err(|error| Problem::malformed(error.to_string()))
        }
        // `curl -d` calls every body a form.
        "text/plain" | "application/x-www-form-urlencoded" => {
            let text = str::from_utf8(body)
                .map_err(|error| Problem::malformed(format!("the script is not UTF-8: {error}")))?;
            Ok(NewScript { text: text.to_owned(), ..NewScript::default() })
        }
        other => Err(Problem::media_type(format!(
            "content-type `{other}`: send application/json or text/plain"
        ))),
    }
}

/// A script's counts.
#[utoipa::path(get, path = "/v1/scripts/{id}", tag = "scripts", operation_id = "script",
    params(("id" = u32, Path, description = "Its number")),
    responses((status = 200, body = Script), Problems, NotFound))]
pub(crate) async fn show(
    State(api): State<ScriptsApi>,
    Path(id): Path<u32>,
) -> Result<axum::Json<Script>, Problem> {
    let script = api.scripts.find(id)?;
    let status = blocking(move || script.status(api.scripts.engine())).await?;
    Ok(axum::Json(status.into()))
}

/// End a script, or forget one that has ended.
///
/// Its probes are removed, its END runs after the last hit, and its maps are written to its output,
/// which can be read until it is forgotten.
#[utoipa::path(delete, path = "/v1/scripts/{id}", tag = "scripts", operation_id = "end_script",
    params(("id" = u32, Path, description = "Its number")),
    responses((status = 200, body = Script), Problems, NotFound))]
pub(crate) async fn remove(
    State(api): State<ScriptsApi>,
    Path(id): Path<u32>,
) -> Result<axum::Json<Script>, Problem> {
    let status = blocking(move || api.scripts.remove(id)).await??;
    Ok(axum::Json(status.into()))
}

/// Which commands to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScriptCommandsQuery {
    /// The number of the first, from 0.
    #[serde(default)]
    from: u64,
}

/// The commands of a script's `system()`, for a client that runs them. The service runs none.
#[utoipa::path(get, path = "/v1/scripts/{id}/commands", tag = "scripts",
    operation_id = "script_commands",
    params(("id" = u32, Path, description = "Its number"), ScriptCommandsQuery),
    responses((status = 200, body = ScriptCommands), Problems, NotFound))]
pub(crate) async fn commands(
    State(api): State<ScriptsApi>,
    Path(id): Path<u32>,
    Query(query): Query<ScriptCommandsQuery>,
) -> Result<axum::Json<ScriptCommands>, Problem> {
    let script = api.scripts.find(id)?;
    Ok(axum::Json(script.output().commands(query.from).into()))
}

impl From<ScriptError> for Problem {
    fn from(error: ScriptError) -> Self {
        let detail = error.to_string();
        match error {
            ScriptError::Script(wrong) => {
                let mut problem = Self::new("EINVAL", detail);
                if let Some(first) = wrong.errors.first() {
                    let (line, column) = wrong.position(first.span.start);
                    problem.line = Some(line);
                    problem.position = Some(column - 1);
                }
                problem
            }
            ScriptError::Unserved { .. } => Self::new("EOPNOTSUPP", detail),
            ScriptError::TooManyValues { .. } => Self::new("E2BIG", detail),
            ScriptError::Unknown { .. } => Self::new("ENODATA", detail),
            ScriptError::Refused(refused) => refused.into(),
            ScriptError::Sampler(refused) => refused.into(),
            ScriptError::AllRefused { .. } | ScriptError::TooManySamples { .. } => {
                Self::new("EINVAL", detail)
            }
            ScriptError::TooMany(_) => Self::new("ENOSPC", detail),
            ScriptError::NoSuch(_) => Self::new("ENOENT", detail),
        }
    }
}
