//! The kprobe event tracer's files, as the kernel has them in tracefs.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{self, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use exoprobe_tracer::{LinesReader, NodeKind, Pipe, RawPipe, Tracer, TracerError};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Duration, Instant, sleep, timeout_at};
use utoipa::{IntoParams, ToSchema};

use super::answers::{NeedsGuest, NoRoom, NoSuchAccess, NotFound, Problems, Refused};
use super::extract::blocking;
use super::extract::{Path, PresentBody, Query};
use super::histograms::HistogramAnswers;
use super::problem::Problem;
use super::stream::OCTETS;
use crate::service::Closing;

const TEXT: &str = "text/plain; charset=utf-8";
/// Events that a reader of `trace_pipe` is given at once.
const LINES: usize = 256;

/// Pages that a reader of `trace_pipe_raw` is given unless it says.
const PAGES: usize = 16;
/// Most pages of one answer.
const PAGES_MAX: usize = 256;
/// How long a removal waits for readers: one that has just closed its connection may still be
/// there.
const READERS_GO: Duration = Duration::from_millis(500);
/// Between two looks at them.
const READERS_LOOK: Duration = Duration::from_millis(10);
/// Longest time that an answer waits for events, in milliseconds.
const WAIT_MAX: u64 = 15_000;

#[derive(Clone)]
pub(crate) struct TracefsApi {
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) histograms: HistogramAnswers,
    pub(crate) closing: Closing,
}

pub(crate) fn routes(api: TracefsApi) -> Router {
    Router::new()
        .route("/v1/tracefs", get(root))
        .route("/v1/tracefs/", get(root))
        .route("/v1/tracefs/{*path}", get(read).put(replace).post(append).delete(remove))
        .with_state(api)
}

/// Entries of a folder.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TracefsFolder)]
pub(crate) struct Folder {
    /// In no particular order.
    entries: Vec<FolderEntry>,
}

/// A file or folder in a folder.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TracefsEntry)]
pub(crate) struct FolderEntry {
    /// Its name.
    #[schema(example = "kprobe_events")]
    name: String,
    /// `file` or `directory`.
    #[schema(value_type = String, example = "file")]
    kind: &'static str,
    /// Permissions, in octal digits.
    #[schema(example = "0640")]
    mode: String,
}

impl From<exoprobe_tracer::Item> for FolderEntry {
    fn from(entry: exoprobe_tracer::Item) -> Self {
        let (kind, mode) = match entry.kind {
            NodeKind::Directory => ("directory", 0o750),
            NodeKind::File(mode) => ("file", mode),
        };
        Self { name: entry.name, kind, mode: format!("{mode:04o}") }
    }
}

impl From<TracerError> for Problem {
    fn from(error: TracerError) -> Self {
        let mut problem = match (error.errno, error.id) {
            // The filter that was written has the fault; the file exists.
            ("ENOENT", Some("TOO_MANY_OPEN")) => {
                Self::with_status(StatusCode::UNPROCESSABLE_ENTITY, error.errno, error.message)
            }
            _ => Self::new(error.errno, error.message),
        };
        (problem.line, problem.position, problem.id) = (error.line, error.position, error.id);
        problem
    }
}

/// The tracer's folder.
#[utoipa::path(get, path = "/v1/tracefs", tag = "tracefs", operation_id = "list_tracefs",
    responses((status = 200, body = Folder), Problems, NeedsGuest))]
pub(crate) async fn root(State(api): State<TracefsApi>) -> Result<Response, Problem> {
    answer(api, String::new()).await
}

/// How much of a file `trace_pipe_raw`. Other files are whole.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RawQuery {
    /// Most pages: 16 when absent.
    #[param(minimum = 1, maximum = 256)]
    pages: Option<usize>,
    /// Milliseconds to wait for events where there are none: 0 when absent, 15,000 at most.
    wait: Option<u64>,
}

/// A file's text as it is now, or what a folder has.
///
/// Of `per_cpu/cpuN/trace_pipe_raw`: the events that are there, as pages of 4096 bytes in the
/// layout of the kernel's ring buffer; none where there is no event.
///
/// Files `trace_pipe` do not end: their lines come as their events happen, and each goes to one
/// reader only.
#[utoipa::path(get, path = "/v1/tracefs/{path}", tag = "tracefs", operation_id = "read_tracefs",
    params(RawQuery, ("path" = String, Path, example = "events/kprobes/getpid/format")),
    responses((status = 200, content((String = "text/plain"), (Folder = "application/json"),
        (Vec<u8> = "application/octet-stream"))), Problems, NeedsGuest, NotFound, NoSuchAccess))]
pub(crate) async fn read(
    State(api): State<TracefsApi>,
    Path(path): Path<String>,
    Query(query): Query<RawQuery>,
) -> Result<Response, Problem> {
    if let Some(file) = api.tracer.raw_pipe(&path) {
        return pages(api, file, &query).await;
    }
    if let Some(file) = api.tracer.pipe(&path) {
        return Ok(pipe(api, file));
    }
    let permit = match api.tracer.is_histogram(&path) {
        true => Some(api.histograms.take()?),
        false => None,
    };
    let (tracer, opened) = (Arc::clone(&api.tracer), path.clone());
    if let Some((header, reader)) = blocking(move || tracer.open_lines(&opened)).await? {
        return Ok(lines(header, (reader, permit)));
    }
    answer(api, path).await
}

/// Write a file from its begin, as a shell's `>` does, or make a trace instance.
///
/// Of `kprobe_events` and `dynamic_events`: all events are removed first, unless one is enabled. Of
/// `set_event`: all are disabled first. Of `trace` and `error_log`: they are emptied.
///
/// Of `instances/NAME`, with an empty body: the folder is made, as by mkdir.
#[utoipa::path(put, path = "/v1/tracefs/{path}", tag = "tracefs", operation_id = "replace_tracefs",
    params(("path" = String, Path, example = "kprobe_events")),
    request_body(content = String, content_type = "text/plain", example = "p:getpid __x64_sys_getpid"),
    responses((status = 204, description = "Written"), Problems, NeedsGuest, NotFound, Refused, NoRoom, NoSuchAccess))]
pub(crate) async fn replace(
    State(api): State<TracefsApi>,
    Path(path): Path<String>,
    PresentBody(text): PresentBody,
) -> Result<StatusCode, Problem> {
    if text.is_empty() && Tracer::is_instance(&path) {
        blocking(move || api.tracer.make_folder(&path)).await??;
        return Ok(StatusCode::NO_CONTENT);
    }
    write(api, path, text, true).await
}

/// Remove a trace instance, as rmdir does.
///
/// Its events go with it. No other folder or file can be removed.
#[utoipa::path(delete, path = "/v1/tracefs/{path}", tag = "tracefs", operation_id = "remove_tracefs",
    params(("path" = String, Path, example = "instances/foo")),
    responses((status = 204, description = "Removed"), Problems, NeedsGuest, NotFound, Refused))]
pub(crate) async fn remove(
    State(api): State<TracefsApi>,
    Path(path): Path<String>,
) -> Result<StatusCode, Problem> {
    let end = Instant::now() + READERS_GO;
    loop {
        let (tracer, removed) = (Arc::clone(&api.tracer), path.clone());
        match blocking(move || tracer.remove_folder(&removed)).await? {
            Ok(()) => return Ok(StatusCode::NO_CONTENT),
            Err(error) if error.errno != "EBUSY" || Instant::now() >= end => {
                return Err(error.into());
            }
            Err(_) => sleep(READERS_LOOK).await,
        }
    }
}

/// Write to a file, as a shell's `>>` does.
///
/// Lines of `kprobe_events` are commands; they run in order, and what comes before one that is
/// wrong stays.
#[utoipa::path(post, path = "/v1/tracefs/{path}", tag = "tracefs", operation_id = "append_tracefs",
    params(("path" = String, Path, example = "events/kprobes/getpid/enable")),
    request_body(content = String, content_type = "text/plain", example = "1"),
    responses((status = 204, description = "Written"), Problems, NeedsGuest, NotFound, Refused, NoRoom, NoSuchAccess))]
pub(crate) async fn append(
    State(api): State<TracefsApi>,
    Path(path): Path<String>,
    PresentBody(text): PresentBody,
) -> Result<StatusCode, Problem> {
    write(api, path, text, false).await
}

async fn write(
    api: TracefsApi,
    path: String,
    text: Bytes,
    from_begin: bool,
) -> Result<StatusCode, Problem> {
    let text = String::from_utf8(text.into())
        .map_err(|_| Problem::new("EINVAL", "what is written is not UTF-8 text"))?;
    let work = move || {
        if from_begin {
            api.tracer.truncate(&path)?;
        }
        // Opening alone writes nothing.
        if from_begin && text.is_empty() { Ok(()) } else { api.tracer.write(&path, &text) }
    };
    blocking(work).await??;
    Ok(StatusCode::NO_CONTENT)
}

async fn answer(api: TracefsApi, path: String) -> Result<Response, Problem> {
    let work = move || match api.tracer.list(&path)? {
        Some(entries) => {
            let entries = entries.into_iter().map(FolderEntry::from).collect();
            Ok(axum::Json(Folder { entries }).into_response())
        }
        None => Ok(([(header::CONTENT_TYPE, TEXT)], api.tracer.read(&path)?).into_response()),
    };
    blocking(work).await?.map_err(|error: TracerError| error.into())
}

/// Pages of a file `trace_pipe_raw`.
async fn pages(api: TracefsApi, file: RawPipe, query: &RawQuery) -> Result<Response, Problem> {
    let TracefsApi { mut closing, .. } = api;
    let max = query.pages.unwrap_or(PAGES);
    if !(1..=PAGES_MAX).contains(&max) {
        return Err(Problem::malformed(format!("`pages` is from 1 to {PAGES_MAX}")));
    }
    let wait = query.wait.unwrap_or_default();
    if wait > WAIT_MAX {
        return Err(Problem::malformed(format!("`wait` is at most {WAIT_MAX} milliseconds")));
    }
    let mut latest = file.events().latest();
    let end = Instant::now() + Duration::from_millis(wait);
    let taken = loop {
        latest.mark_unchanged();
        let from = file.clone();
        let taken = blocking(move || from.take(max)).await?;
        if !taken.is_empty() {
            break taken;
        }
        match timeout_at(end, closing.or_changed(&mut latest)).await {
            Ok(Some(())) => {}
            Ok(None) | Err(_) => break taken,
        }
    };
    Ok(([(header::CONTENT_TYPE, OCTETS)], taken).into_response())
}

/// The file `trace`, `snapshot` or `hist`, part by part: all of it may be many times the memory of
/// what it shows. The permit is given back when the answer is sent, or its client has gone.
fn lines(header: String, reader: (LinesReader, Option<OwnedSemaphorePermit>)) -> Response {
    let parts = stream::unfold(reader, |mut reader| async move {
        let part = reader.0.next()?;
        Some((Ok::<_, Infallible>(Bytes::from(part)), reader))
    });
    let all = stream::iter([Ok(Bytes::from(header))]).chain(parts);
    ([(header::CONTENT_TYPE, TEXT)], body::Body::from_stream(all)).into_response()
}

/// A reader of a file `trace_pipe`.
struct PipeReader {
    file: Pipe,
    latest: watch::Receiver<u64>,
    closing: Closing,
}

fn pipe(TracefsApi { closing, .. }: TracefsApi, file: Pipe) -> Response {
    let latest = file.events().latest();
    let lines = stream::unfold(PipeReader { file, latest, closing }, |mut reader| async move {
        Some((Ok::<_, Infallible>(reader.next().await?), reader))
    });
    ([(header::CONTENT_TYPE, TEXT)], body::Body::from_stream(lines)).into_response()
}

impl PipeReader {
    /// The next lines; `None` when the service ends.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // Before reading, so that no event after it is missed.
            self.latest.mark_unchanged();
            let lines = self.file.take(LINES);
            if !lines.is_empty() {
                return Some(lines.into());
            }
            self.closing.or_changed(&mut self.latest).await?;
        }
    }
}
