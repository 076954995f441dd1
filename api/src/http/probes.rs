//! Routes of the probes.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use exoprobe_probes::definition::DEFAULT_GROUP;
use exoprobe_probes::{Engine, ProbeError, ProbeStatus, Registration, Selection, UnregisterError};
use serde::Deserialize;
use utoipa::IntoParams;

use super::answers::{NeedsGuest, NoRoom, NotFound, Problems, Refused};
use super::definitions::Definitions;
use super::extract::blocking;
use super::extract::{Body, Json, Path, Query, media_type};
use super::problem::Problem;
use super::registration::{RegistrationQuery, register};
use super::wire::{
    Changed, ProbeChange, ProbeReport, ProbeRequests, ProbesChange, Registered, Unregistered,
};

type Probes = State<Arc<Engine>>;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    let one = get(show).patch(change).delete(remove);
    Router::new()
        .route("/v1/probes", get(list).post(create).patch(change_all).delete(remove_all))
        .route("/v1/probes/unregister", post(unregister))
        .route("/v1/probes/{event}", one.clone())
        .route("/v1/probes/{group}/{event}", one)
        .with_state(engine)
}

/// Which probe.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct Name {
    /// Group of its event.
    #[serde(default = "default_group")]
    pub(super) group: String,
    /// Name of its event.
    pub(super) event: String,
}

fn default_group() -> String {
    DEFAULT_GROUP.to_owned()
}

/// All probes, in order of registration.
#[utoipa::path(get, path = "/v1/probes", tag = "probes", operation_id = "list_probes",
    responses((status = 200, body = Vec<ProbeStatus>), Problems))]
pub(crate) async fn list(State(engine): Probes) -> Result<axum::Json<Vec<ProbeStatus>>, Problem> {
    Ok(axum::Json(blocking(move || engine.list()).await?))
}

/// Register one probe or several, of both kinds, all or none.
///
/// A JSON object is one probe and answered with one; an array, or lines of kprobe_events' language
/// (blank lines and lines that start with `#` do not count), are answered with an array.
#[utoipa::path(post, path = "/v1/probes", tag = "probes", operation_id = "create_probes",
    request_body(content((ProbeRequests = "application/json"), (String = "text/plain",
        example = "p:getpid __x64_sys_getpid"))),
    responses((status = 200, body = ProbeReport, description = "The result of a dry run"),
        (status = 201, body = Registered,
        headers(("location" = String, description = "The probe, of a single one"))), Problems, NeedsGuest, NotFound, Refused, NoRoom))]
pub(crate) async fn create(
    State(engine): Probes,
    Query(query): Query<RegistrationQuery>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Problem> {
    let definitions = Definitions::read(&media_type(&headers), &body)?;
    let probes = blocking(move || register(&engine, definitions, query)).await??;
    if query.dry_run {
        return Ok(axum::Json(probes).into_response());
    }
    if let Registered::One(probe) = &probes {
        let place = format!("/v1/probes/{}/{}", probe.group, probe.event);
        return Ok(
            (StatusCode::CREATED, [(header::LOCATION, place)], axum::Json(probe)).into_response()
        );
    }
    Ok((StatusCode::CREATED, axum::Json(probes)).into_response())
}

/// Arm or disarm several probes in one change of the guest.
///
/// All that there are of these names.
#[utoipa::path(patch, path = "/v1/probes", tag = "probes", operation_id = "change_probes",
    request_body = ProbesChange,
    responses((status = 200, description = "In the order of the names", body = Vec<Changed>),
        Problems, NeedsGuest, NoRoom))]
pub(crate) async fn change_all(
    State(engine): Probes,
    Json(ProbesChange { names, enabled }): Json<ProbesChange>,
) -> Result<axum::Json<Vec<Changed>>, Problem> {
    Ok(axum::Json(blocking(move || change_named(&engine, names, enabled)).await??))
}

/// Remove all probes.
#[utoipa::path(delete, path = "/v1/probes", tag = "probes", operation_id = "delete_all_probes",
    responses((status = 204, description = "Removed"), Problems, NeedsGuest))]
pub(crate) async fn remove_all(State(engine): Probes) -> Result<StatusCode, Problem> {
    blocking(move || engine.unregister(Selection::all())).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// One probe; of an event that has several, the first.
#[utoipa::path(get, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "show_probe",
    params(Name),
    responses((status = 200, body = ProbeStatus), Problems, NotFound))]
pub(crate) async fn show(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
) -> Result<axum::Json<ProbeStatus>, Problem> {
    let status = blocking(move || engine.show(&group, &event)).await??;
    Ok(axum::Json(status))
}

/// Arm or disarm a probe, or all that its event has.
#[utoipa::path(patch, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "change_probe",
    params(Name),
    request_body = ProbeChange, responses((status = 200, body = ProbeStatus), Problems, NeedsGuest, NotFound, NoRoom))]
pub(crate) async fn change(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
    Json(ProbeChange { enabled }): Json<ProbeChange>,
) -> Result<axum::Json<ProbeStatus>, Problem> {
    let changed = blocking(move || {
        engine.set_enabled(Selection::event(&group, &event), enabled)?;
        engine.show(&group, &event)
    });
    Ok(axum::Json(changed.await??))
}

/// Remove a probe, or all that its event has: when this is answered the guest's instructions are
/// back and no hit is under way.
#[utoipa::path(delete, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "delete_probe",
    params(Name),
    responses((status = 204, description = "Removed"), Problems, NeedsGuest, NotFound))]
pub(crate) async fn remove(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
) -> Result<StatusCode, Problem> {
    blocking(move || engine.unregister(Selection::event(&group, &event))).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove several probes at once.
///
/// An array of names, each `EVENT` or `GROUP/EVENT`, where `*` and `?` may stand for characters.
/// All that there are are removed, in one change of the guest; where a name is no probe's, `addr`
/// is
/// null, and where it has several, it is the first one's.
#[utoipa::path(post, path = "/v1/probes/unregister", tag = "probes",
    operation_id = "unregister_probes",
    request_body(content = Vec<String>, example = json!(["getpid", "mygroup/open", "vfs/*"])),
    responses((status = 200, description = "In the order of the names", body = Vec<Unregistered>),
        Problems, NeedsGuest))]
pub(crate) async fn unregister(
    State(engine): Probes,
    Json(names): Json<Vec<String>>,
) -> Result<axum::Json<Vec<Unregistered>>, Problem> {
    Ok(axum::Json(blocking(move || unregister_named(&engine, names)).await??))
}

/// The probes that a name stands for, which may be a pattern.
fn of_name(name: &str) -> Selection {
    let (group, event) = name.split_once('/').unwrap_or((DEFAULT_GROUP, name));
    Selection::matching(group, event)
}

/// Removes those that there are.
fn unregister_named(engine: &Engine, names: Vec<String>) -> Result<Vec<Unregistered>, Problem> {
    let found = names.into_iter().map(|name| {
        let registrations = engine.registrations(of_name(&name)).unwrap_or_default();
        (name, registrations)
    });
    let found: Vec<(String, Vec<Registration>)> = found.collect();
    let all = found.iter().flat_map(|(_, of)| of).map(|probe| probe.id);
    let removed = match engine.unregister(Selection::ids(all)) {
        Ok(removed) => removed,
        // They are gone all the same, and the text is as the guest wrote it.
        Err(UnregisterError { removed, error: ProbeError::Clobbered { .. } }) => removed,
        Err(UnregisterError { error, .. }) => return Err(error.into()),
    };
    let mut removed: HashSet<u32> = removed.into_iter().map(|probe| probe.id).collect();
    // A name that is given twice is a probe's the first time only.
    let answers = found.into_iter().map(|(name, of)| {
        let of_event: Vec<Registration> =
            of.into_iter().filter(|probe| removed.remove(&probe.id)).collect();
        Unregistered::new(name, &of_event)
    });
    Ok(answers.collect())
}

/// Enables or disables those that there are, in one change.
fn change_named(
    engine: &Engine,
    names: Vec<String>,
    enabled: bool,
) -> Result<Vec<Changed>, Problem> {
    let found: Vec<(String, Vec<u32>)> = names
        .into_iter()
        .map(|name| {
            let found = engine.registrations(of_name(&name)).unwrap_or_default();
            (name, found.into_iter().map(|probe| probe.id).collect())
        })
        .collect();
    let all = found.iter().flat_map(|(_, ids)| ids.iter().copied());
    engine.set_enabled(Selection::ids(all), enabled)?;
    let answers = found.into_iter().map(|(name, ids)| {
        let probes = engine.list_of(Selection::ids(ids)).unwrap_or_default();
        Changed { name, probes }
    });
    Ok(answers.collect())
}
