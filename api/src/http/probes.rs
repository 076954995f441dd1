//! Routes of the probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use exoprobe_probes::definition::DEFAULT_GROUP;
use exoprobe_probes::{Engine, Kprobe, ProbeDefinition, ProbeError, parse_line};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Body, Json, Path, media_type};
use super::problem::Problem;
use super::wire::{ProbeChange, ProbeRequests, ProbeStatus, Registered};
use super::{Problems, blocking};

type Probes = State<Arc<Engine>>;

pub(crate) fn routes(engine: Arc<Engine>) -> Router {
    let one = get(show).patch(change).delete(remove);
    Router::new()
        .route("/v1/probes", get(list).post(create).delete(remove_all))
        .route("/v1/probes/{event}", one.clone())
        .route("/v1/probes/{group}/{event}", one)
        .route("/v1/kprobes/list", get(list_text))
        .with_state(engine)
}

/// Which probe.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct Name {
    /// Group of its event.
    #[serde(default = "default_group")]
    group: String,
    /// Name of its event.
    event: String,
}

fn default_group() -> String {
    DEFAULT_GROUP.to_owned()
}

/// All probes, in order of registration.
#[utoipa::path(get, path = "/v1/probes", tag = "probes", operation_id = "list_probes",
    responses((status = 200, body = Vec<ProbeStatus>), Problems))]
pub(crate) async fn list(State(engine): Probes) -> Result<axum::Json<Vec<ProbeStatus>>, Problem> {
    let probes = blocking(move || engine.list()).await?;
    Ok(axum::Json(probes.into_iter().map(ProbeStatus::from).collect()))
}

/// Register one probe or several, all or none.
///
/// A JSON object is one probe and answered with one; an array, or lines of kprobe_events' language
/// (blank lines and lines that start with `#` do not count), are answered with an array.
#[utoipa::path(post, path = "/v1/probes", tag = "probes", operation_id = "create_probes",
    request_body(content((ProbeRequests = "application/json"), (String = "text/plain",
        example = "p:getpid __x64_sys_getpid"))),
    responses((status = 201, body = Registered,
        headers(("location" = String, description = "The probe, of a single one"))), Problems))]
pub(crate) async fn create(
    State(engine): Probes,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Problem> {
    let batch = Batch::read(&media_type(&headers), &body)?;
    let probes = blocking(move || register(&engine, batch)).await??;
    if let Registered::One(probe) = &probes {
        let place = format!("/v1/probes/{}/{}", probe.group, probe.event);
        return Ok(
            (StatusCode::CREATED, [(header::LOCATION, place)], axum::Json(probe)).into_response()
        );
    }
    Ok((StatusCode::CREATED, axum::Json(probes)).into_response())
}

/// Remove all probes.
#[utoipa::path(delete, path = "/v1/probes", tag = "probes", operation_id = "delete_all_probes",
    responses((status = 204, description = "Removed"), Problems))]
pub(crate) async fn remove_all(State(engine): Probes) -> Result<StatusCode, Problem> {
    blocking(move || engine.unregister_all()).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// One probe.
#[utoipa::path(get, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "show_probe",
    params(Name),
    responses((status = 200, body = ProbeStatus), Problems))]
pub(crate) async fn show(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
) -> Result<axum::Json<ProbeStatus>, Problem> {
    let status = blocking(move || engine.show(&group, &event)).await??;
    Ok(axum::Json(status.into()))
}

/// Arm or disarm a probe.
#[utoipa::path(patch, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "change_probe",
    params(Name),
    request_body = ProbeChange, responses((status = 200, body = ProbeStatus), Problems))]
pub(crate) async fn change(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
    Json(ProbeChange { enabled }): Json<ProbeChange>,
) -> Result<axum::Json<ProbeStatus>, Problem> {
    let changed = blocking(move || {
        match enabled {
            true => engine.enable_kprobe(&group, &event)?,
            false => engine.disable_kprobe(&group, &event)?,
        }
        engine.show(&group, &event)
    });
    Ok(axum::Json(changed.await??.into()))
}

/// Remove a probe: when this is answered the guest's instruction is back and no hit is under way.
#[utoipa::path(delete, path = "/v1/probes/{group}/{event}",
    tag = "probes", operation_id = "delete_probe",
    params(Name),
    responses((status = 204, description = "Removed"), Problems))]
pub(crate) async fn remove(
    State(engine): Probes,
    Path(Name { group, event }): Path<Name>,
) -> Result<StatusCode, Problem> {
    blocking(move || engine.unregister_kprobe(&group, &event)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// The text of the kernel's kprobes/list.
#[utoipa::path(get, path = "/v1/kprobes/list", tag = "probes", operation_id = "kprobes_list",
    responses((status = 200, body = String, content_type = "text/plain"), Problems))]
pub(crate) async fn list_text(State(engine): Probes) -> Result<String, Problem> {
    blocking(move || engine.list_text()).await
}

/// Definitions as a client sent them.
enum Batch {
    /// One JSON object.
    One(Box<ProbeDefinition>),
    /// A JSON array.
    Array(Vec<ProbeDefinition>),
    /// Lines, each with its number from 1.
    Lines(Vec<(usize, ProbeDefinition)>),
}

impl Batch {
    fn read(media_type: &str, body: &[u8]) -> Result<Self, Problem> {
        match media_type {
            "application/json" => Self::from_json(body),
            "text/plain" => Self::from_text(body),
            // What `curl -d` calls every body. No definition starts with a bracket.
            "application/x-www-form-urlencoded" => match body.trim_ascii_start().first() {
                Some(b'{' | b'[') => Self::from_json(body),
                _ => Self::from_text(body),
            },
            "" => Err(Problem::media_type("no content-type: application/json or text/plain")),
            other => Err(Problem::media_type(format!(
                "content-type {other}: send application/json or text/plain"
            ))),
        }
    }

    fn from_json(body: &[u8]) -> Result<Self, Problem> {
        match parse_requests(body)? {
            ProbeRequests::One(request) => Ok(Self::One(Box::new((*request).try_into()?))),
            ProbeRequests::Many(requests) => {
                let definitions = requests.into_iter().enumerate().map(|(index, request)| {
                    ProbeDefinition::try_from(request).map_err(|problem| problem.at_index(index))
                });
                non_empty(definitions.collect::<Result<_, _>>()?).map(Self::Array)
            }
        }
    }

    fn from_text(body: &[u8]) -> Result<Self, Problem> {
        let text = str::from_utf8(body).map_err(|error| {
            Problem::malformed(format!("the definitions are not UTF-8: {error}"))
        })?;
        let lines = (1..).zip(text.lines());
        let lines = lines.filter(|(_, line)| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with('#')
        });
        let parsed = lines.enumerate().map(|(index, (number, line))| {
            let definition = parse_line(line).map_err(|error| {
                Problem::from(ProbeError::Syntax(error)).at_line(number).at_index(index)
            })?;
            Ok((number, definition))
        });
        non_empty(parsed.collect::<Result<_, Problem>>()?).map(Self::Lines)
    }
}

/// Looks for the bracket itself: serde's untagged enums do not say what is wrong, and where.
fn parse_requests(body: &[u8]) -> Result<ProbeRequests, Problem> {
    let parsed = match body.trim_ascii_start().first() {
        Some(b'[') => serde_json::from_slice(body).map(ProbeRequests::Many),
        _ => serde_json::from_slice(body).map(ProbeRequests::One),
    };
    parsed.map_err(|error| Problem::malformed(error.to_string()))
}

fn non_empty<T>(batch: Vec<T>) -> Result<Vec<T>, Problem> {
    match batch.is_empty() {
        true => Err(Problem::new("EINVAL", "there is no probe definition in the body")),
        false => Ok(batch),
    }
}

fn register(engine: &Engine, batch: Batch) -> Result<Registered, Problem> {
    match batch {
        Batch::One(definition) => {
            let registered = register_all(engine, vec![*definition]);
            let mut probes = registered.map_err(|mut problem| {
                problem.index = None;
                problem
            })?;
            let gone = || Problem::new("ENOENT", "the probe was deleted meanwhile");
            Ok(Registered::One(Box::new(probes.pop().ok_or_else(gone)?)))
        }
        Batch::Array(definitions) => Ok(Registered::Many(register_all(engine, definitions)?)),
        Batch::Lines(lines) => {
            let (numbers, definitions): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
            let probes = register_all(engine, definitions).map_err(|problem| {
                let line = problem.index.and_then(|index| numbers.get(index).copied());
                match line {
                    Some(line) => problem.at_line(line),
                    None => problem,
                }
            })?;
            Ok(Registered::Many(probes))
        }
    }
}

/// Registers all or none; gives them in order.
fn register_all(
    engine: &Engine,
    definitions: Vec<ProbeDefinition>,
) -> Result<Vec<ProbeStatus>, Problem> {
    let ids = engine.register_kprobes(definitions.into_iter().map(Kprobe::from).collect())?;
    let probes = engine.list().into_iter().filter(|probe| ids.contains(&probe.id));
    Ok(probes.map(ProbeStatus::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(media_type: &str, body: &str) -> Problem {
        Batch::read(media_type, body.as_bytes()).err().expect("it is wrong")
    }

    #[test]
    fn lines_are_numbered_and_comments_do_not_count() {
        let text = "# two probes\n\np:a f\r\n  # more\np:b g+4 %di\n";
        let Ok(Batch::Lines(lines)) = Batch::read("text/plain", text.as_bytes()) else {
            panic!("these are lines")
        };
        let found: Vec<_> = lines.iter().map(|(n, d)| (*n, d.event_name())).collect();
        assert_eq!(found, [(3, "a".to_owned()), (5, "b".to_owned())]);
        let wrong = problem("text/plain", "p:a f\n#\np:b g %zz\n");
        assert_eq!((wrong.line, wrong.index, wrong.position), (Some(3), Some(1), Some(6)));
        assert!(wrong.detail.starts_with("line 3: "), "{}", wrong.detail);
    }

    #[test]
    fn the_content_type_decides_and_curl_need_not_give_one() {
        let form = "application/x-www-form-urlencoded";
        assert!(matches!(Batch::read(form, b"p:a f"), Ok(Batch::Lines(_))));
        assert!(matches!(Batch::read(form, b" {\"symbol_name\":\"f\"}"), Ok(Batch::One(_))));
        assert!(matches!(Batch::read("application/json", b" [{}]"), Ok(Batch::Array(_))));
        assert_eq!(problem("application/xml", "<p/>").status, 415);
        assert_eq!(problem("", "p:a f").status, 415);
        assert_eq!(problem("application/json", "p:a f").status, 400);
    }

    #[test]
    fn nothing_at_all_is_an_error() {
        assert_eq!(problem("text/plain", "\n# none\n").status, 422);
        assert_eq!(problem("application/json", "[]").status, 422);
        let array = r#"[{"symbol_name":"f"},{"symbol_name":"f","args":["%zz"]}]"#;
        let wrong = problem("application/json", array);
        assert_eq!((wrong.status, wrong.index), (422, Some(1)));
    }
}
