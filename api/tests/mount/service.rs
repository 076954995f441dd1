//! A small service that has a tracefs: kprobe events by name, a trace, and `trace_pipe`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// An event whose name no URL can have as it is.
pub(crate) const ODD: &str = "a b%2F#?é";

/// The service's state, and the service while it runs.
pub(crate) struct Service {
    socket: PathBuf,
    tracer: Arc<Mutex<Tracer>>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// State of the fake files.
#[derive(Default)]
pub(crate) struct Tracer {
    /// Events by name, with their places and whether they are enabled.
    pub(crate) events: BTreeMap<String, (String, bool)>,
    /// Texts written to kprobe_events, one a request; `PUT ` in front of those that truncate.
    pub(crate) written: Vec<String>,
    /// How often `trace` was read.
    pub(crate) reads: usize,
    /// How often folders were listed.
    pub(crate) listed: usize,
    /// Readers of `trace_pipe`.
    pipes: Vec<mpsc::UnboundedSender<String>>,
}

impl Tracer {
    /// How many read `trace_pipe`.
    pub(crate) fn readers(&mut self) -> usize {
        self.pipes.retain(|pipe| !pipe.is_closed());
        self.pipes.len()
    }

    /// Gives a line to one reader.
    pub(crate) fn emit(&mut self, reader: usize, line: &str) {
        self.pipes[reader].send(line.to_owned()).expect("it reads");
    }
}

impl Service {
    /// Starts it on a socket in `dir`.
    pub(crate) fn start(dir: &Path) -> Self {
        let socket = dir.join("socket");
        let mut service = Self { socket, tracer: Arc::default(), running: None };
        service.resume();
        service
    }

    /// Starts it again, as it was.
    pub(crate) fn resume(&mut self) {
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.tracer));
        let socket = self.socket.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Connections end with it.
            runtime.unwrap().block_on(async {
                let listener = UnixListener::bind(&socket).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        self.running = Some((stop, thread));
    }

    /// Ends it in the middle of all that it does.
    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().unwrap();
            std::fs::remove_file(&self.socket).unwrap();
            self.tracer().pipes.clear();
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn tracer(&self) -> MutexGuard<'_, Tracer> {
        self.tracer.lock().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            drop(thread.join());
        }
    }
}

type Answer = Result<Response, (StatusCode, &'static str)>;

const NONE: (StatusCode, &str) = (StatusCode::NOT_FOUND, "ENOENT");
const INVALID: (StatusCode, &str) = (StatusCode::UNPROCESSABLE_ENTITY, "EINVAL");

async fn answer(
    State(tracer): State<Arc<Mutex<Tracer>>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let mut tracer = tracer.lock().unwrap();
    let body = String::from_utf8(body.to_vec()).expect("text");
    let answer = match uri.path().strip_prefix("/v1/tracefs") {
        Some(path) if method == Method::GET => tracer.read(path),
        Some(path) => tracer.write(path, method == Method::PUT, &body),
        None => Err(NONE),
    };
    answer.unwrap_or_else(|(status, code)| {
        let problem = format!(r#"{{"title":"t","detail":"refused","code":"{code}"}}"#);
        (status, problem).into_response()
    })
}

fn folder(listed: &mut usize, entries: &[(&str, &str, &str)]) -> Answer {
    *listed += 1;
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, kind, mode)| serde_json::json!({"name": name, "kind": kind, "mode": mode}))
        .collect();
    Ok(axum::Json(serde_json::json!({ "entries": entries })).into_response())
}

/// The path of an event, as a URL has it.
fn encoded(event: &str) -> String {
    let mut path = "/events/kprobes/".to_owned();
    for byte in event.bytes() {
        match byte.is_ascii_alphanumeric() || byte == b'_' {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

impl Tracer {
    fn read(&mut self, path: &str) -> Answer {
        match path {
            "" => folder(
                &mut self.listed,
                &[
                    ("kprobe_events", "file", "0640"),
                    ("trace", "file", "0640"),
                    ("trace_pipe", "file", "0440"),
                    ("events", "directory", "0750"),
                ],
            ),
            "/kprobe_events" => Ok(self.list().into_response()),
            "/trace" => {
                self.reads += 1;
                Ok(format!("# trace {}\n{}", self.reads, "x".repeat(200_000)).into_response())
            }
            "/trace_pipe" => Ok(self.pipe()),
            "/events" => folder(
                &mut self.listed,
                &[("enable", "file", "0640"), ("kprobes", "directory", "0750")],
            ),
            "/events/kprobes" => {
                let entries: Vec<_> =
                    self.events.keys().map(|name| (name.as_str(), "directory", "0750")).collect();
                folder(&mut self.listed, &entries)
            }
            _ => self.read_event(path),
        }
    }

    fn list(&self) -> String {
        let line = |(name, (place, _)): (&String, &(String, bool))| format!("p:{name} {place}\n");
        self.events.iter().map(line).collect()
    }

    fn pipe(&mut self) -> Response {
        let (sender, lines) = mpsc::unbounded_channel();
        self.pipes.push(sender);
        let lines = UnboundedReceiverStream::new(lines).map(Ok::<_, Infallible>);
        Body::from_stream(lines).into_response()
    }

    fn read_event(&mut self, path: &str) -> Answer {
        for (name, (_, enabled)) in &self.events {
            match path.strip_prefix(&encoded(name)) {
                Some("") => {
                    let files = [("enable", "file", "0640"), ("id", "file", "0440")];
                    return folder(&mut self.listed, &files);
                }
                Some("/enable") => return Ok(format!("{}\n", u8::from(*enabled)).into_response()),
                Some("/id") => return Ok("7\n".into_response()),
                _ => {}
            }
        }
        Err(NONE)
    }

    fn write(&mut self, path: &str, truncate: bool, body: &str) -> Answer {
        let done = Ok(StatusCode::NO_CONTENT.into_response());
        if path != "/kprobe_events" {
            return self.write_event(path, body).and(done);
        }
        self.written.push(format!("{}{body}", if truncate { "PUT " } else { "" }));
        if truncate {
            if self.events.values().any(|(_, enabled)| *enabled) {
                return Err((StatusCode::CONFLICT, "EBUSY"));
            }
            self.events.clear();
        }
        for line in body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let event = line.strip_prefix("p:").ok_or(INVALID)?;
            let (name, place) = event.split_once(' ').ok_or(INVALID)?;
            if self.events.contains_key(name) {
                return Err((StatusCode::CONFLICT, "EEXIST"));
            }
            self.events.insert(name.to_owned(), (place.to_owned(), false));
        }
        done
    }

    fn write_event(&mut self, path: &str, body: &str) -> Result<(), (StatusCode, &'static str)> {
        for (name, (_, enabled)) in &mut self.events {
            match (path.strip_prefix(&encoded(name)), body.trim()) {
                (Some("/enable"), "") => return Ok(()),
                (Some("/enable"), "0" | "1") => {
                    *enabled = body.trim() == "1";
                    return Ok(());
                }
                (Some("/enable"), _) => return Err(INVALID),
                (Some("/id"), _) => return Err((StatusCode::INTERNAL_SERVER_ERROR, "EACCES")),
                _ => {}
            }
        }
        Err(if path == "/trace_pipe" { (StatusCode::FORBIDDEN, "EACCES") } else { NONE })
    }
}
