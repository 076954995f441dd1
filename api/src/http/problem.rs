//! Errors as clients see them: RFC 9457 problem documents with the kernel's errno as `code`.

use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use exoprobe_guest::VcpuError;
use exoprobe_introspect::LookupError;
use exoprobe_probes::{BatchError, ProbeError, UnregisterError};
use exoprobe_vmm::devices::InputFull;
use exoprobe_vmm::{ControlError, DumpError, NewFileError, RebootError, SnapshotError};
use serde::Serialize;
use utoipa::ToSchema;

use super::deadline::{BODY_MAX, too_slow};

/// Media type of every error.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// An error on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(Box<ProblemDocument>);

/// An error (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument {
    /// Always `about:blank`: `code` identifies the problem.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "about:blank")]
    pub kind: &'static str,
    /// The HTTP status in words.
    #[schema(value_type = String, example = "Not Found")]
    pub title: &'static str,
    /// The HTTP status.
    #[schema(example = 404)]
    pub status: u16,
    /// The fault and, where known, its remedy.
    pub detail: String,
    /// Name of the errno that the kernel gives for the same fault. Stable.
    #[schema(value_type = String, example = "ENOENT")]
    pub code: &'static str,
    /// Column of the fault in the definition or argument, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Line of the fault in a text of definitions, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The tracer's identifier of a syntax error, as in tracefs' error_log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "BAD_REG_NAME")]
    pub id: Option<&'static str>,
    /// Symbols with names like the unknown one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub near: Vec<String>,
    /// Which probe of the batch was refused, from 0. None of it was registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// The refused probe's event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

impl Problem {
    /// A problem with the status that belongs to `code`.
    #[must_use]
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self::with_status(status_of(code), code, detail)
    }

    /// A problem whose status `code` does not decide.
    #[must_use]
    pub fn with_status(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemDocument {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            code,
            position: None,
            line: None,
            id: None,
            near: Vec::new(),
            index: None,
            event: None,
        }))
    }

    /// A request that cannot be read at all.
    #[must_use]
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::with_status(StatusCode::BAD_REQUEST, "EINVAL", detail)
    }

    /// The same problem, of a request that cannot be read at all.
    #[must_use]
    pub fn malformed_request(mut self) -> Self {
        let status = StatusCode::BAD_REQUEST;
        (self.status, self.title) = (status.as_u16(), status.canonical_reason().unwrap_or("Error"));
        self
    }

    /// A body of a type that the route does not take.
    #[must_use]
    pub fn media_type(detail: impl Into<String>) -> Self {
        Self::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "EMEDIUMTYPE", detail)
    }

    /// A body that is too large to be taken.
    #[must_use]
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::with_status(StatusCode::PAYLOAD_TOO_LARGE, "EMSGSIZE", detail)
    }

    /// The same problem, of the probe that has this index in its batch.
    #[must_use]
    pub fn at_index(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    /// The same problem, found in a line of a text.
    #[must_use]
    pub fn at_line(mut self, line: usize) -> Self {
        self.line = Some(line);
        self.detail = format!("line {line}: {}", self.detail);
        self
    }
}

impl Deref for Problem {
    type Target = ProblemDocument;
    fn deref(&self) -> &ProblemDocument {
        &self.0
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut ProblemDocument {
        &mut self.0
    }
}

fn status_of(code: &str) -> StatusCode {
    match code {
        "ENOENT" | "ENODEV" => StatusCode::NOT_FOUND,
        "EEXIST" | "EBUSY" | "EBADF" | "ESHUTDOWN" | "ETXTBSY" | "ENODATA" | "ENXIO" => {
            StatusCode::CONFLICT
        }
        "EINVAL" | "EILSEQ" | "EOPNOTSUPP" | "E2BIG" | "EADDRNOTAVAIL" | "EFAULT" | "EDOM"
        | "EPERM" | "ESRCH" | "ENOTDIR" | "ENAMETOOLONG" => StatusCode::UNPROCESSABLE_ENTITY,
        "EACCES" => StatusCode::FORBIDDEN,
        "EISDIR" => StatusCode::METHOD_NOT_ALLOWED,
        "EAGAIN" | "ECANCELED" => StatusCode::SERVICE_UNAVAILABLE,
        "ENOMEM" | "ENOSPC" => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("made from a StatusCode");
        let mut response = (status, Json(&*self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<ProbeError> for Problem {
    fn from(error: ProbeError) -> Self {
        let mut problem = Self::new(error.code(), error.to_string());
        match error {
            ProbeError::Syntax(syntax) => {
                problem.position = Some(syntax.position);
                problem.id = Some(syntax.id);
            }
            ProbeError::Symbol(LookupError::Unknown { near, .. }) => problem.near = near,
            _ => {}
        }
        problem
    }
}

impl From<UnregisterError> for Problem {
    fn from(error: UnregisterError) -> Self {
        error.error.into()
    }
}

impl From<BatchError> for Problem {
    fn from(batch: BatchError) -> Self {
        // A guest that cannot be probed is no one probe's fault.
        if let ProbeError::Attach(_) | ProbeError::Vcpu(_) = batch.error {
            return batch.error.into();
        }
        let mut problem = Self::from(batch.error).at_index(batch.index);
        problem.event = Some(batch.name);
        problem
    }
}

impl From<VcpuError> for Problem {
    fn from(error: VcpuError) -> Self {
        let code = match error {
            VcpuError::NoSuchVcpu(_) => "ENOENT",
            VcpuError::Gone(_) => "ESHUTDOWN",
            VcpuError::Kvm(_) => "EIO",
        };
        Self::new(code, error.to_string())
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::AlreadyStarted | ControlError::Held => {
                Self::new("EBUSY", error.to_string())
            }
            ControlError::Stopped => Self::new("ESHUTDOWN", error.to_string()),
            ControlError::NotStarted | ControlError::NoPowerButton => {
                Self::new("EAGAIN", error.to_string())
            }
            ControlError::Vcpu(vcpu) => vcpu.into(),
            ControlError::Snapshot(snapshot) => snapshot.into(),
            ControlError::Dump(dump) => dump.into(),
            ControlError::Disk(_) | ControlError::Kvm(_) => Self::new("EIO", error.to_string()),
        }
    }
}

impl From<RebootError> for Problem {
    fn from(error: RebootError) -> Self {
        match error {
            RebootError::NotStarted => Self::new("EAGAIN", error.to_string()),
            RebootError::NoFiles => Self::new("ENODATA", error.to_string()),
            RebootError::Vcpu(vcpu) => vcpu.into(),
            RebootError::Memory(_) | RebootError::Lock(_) => Self::new("ENOMEM", error.to_string()),
            RebootError::Boot(_) | RebootError::Kvm { .. } => Self::new("EIO", error.to_string()),
        }
    }
}

impl From<SnapshotError> for Problem {
    fn from(error: SnapshotError) -> Self {
        match &error {
            SnapshotError::File(file) => of_new_file(file, error.to_string()),
            SnapshotError::Io { source, .. } => of_file(source, error.to_string()),
            SnapshotError::Ended => Self::new("ECANCELED", error.to_string()),
            _ => Self::new("EIO", error.to_string()),
        }
    }
}

impl From<DumpError> for Problem {
    fn from(error: DumpError) -> Self {
        match &error {
            DumpError::Exists(_) => Self::new("EEXIST", error.to_string()),
            DumpError::File(file) => of_new_file(file, error.to_string()),
            DumpError::Io { source, .. } => of_file(source, error.to_string()),
            DumpError::Ended => Self::new("ECANCELED", error.to_string()),
        }
    }
}

/// Of a file that was to be made at a path that the client gave.
fn of_new_file(error: &NewFileError, detail: String) -> Problem {
    match error {
        NewFileError::NotAFile(_) => Problem::new("EINVAL", detail),
        NewFileError::Exists(_) => Problem::new("EEXIST", detail),
        NewFileError::Io { source, .. } => of_file(source, detail),
    }
}

/// Of a file at a path that the client gave.
fn of_file(source: &std::io::Error, detail: String) -> Problem {
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Problem::new("ENOSPC", detail),
        // The path is the client's: the request is at fault and not the service.
        Some(libc::ENOENT) => {
            Problem::with_status(StatusCode::UNPROCESSABLE_ENTITY, "ENOENT", detail)
        }
        // EINVAL: a path with a zero byte.
        Some(libc::ENOTDIR | libc::EISDIR | libc::ENAMETOOLONG | libc::ELOOP | libc::EINVAL) => {
            Problem::new("EINVAL", detail)
        }
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            Problem::with_status(StatusCode::UNPROCESSABLE_ENTITY, "EACCES", detail)
        }
        // The same, found before the host was asked; or a path of a folder.
        None if matches!(source.kind(), ErrorKind::InvalidInput | ErrorKind::IsADirectory) => {
            Problem::new("EINVAL", detail)
        }
        _ => Problem::new("EIO", detail),
    }
}

impl From<InputFull> for Problem {
    fn from(full: InputFull) -> Self {
        Self::new("EAGAIN", full.to_string())
    }
}

impl From<tokio::task::JoinError> for Problem {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::new("EIO", format!("the service failed at this request: {error}"))
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let detail = format!("the body is larger than {} bytes", BODY_MAX);
            return Self::too_large(detail);
        }
        if let Some(slow) = too_slow(&rejection) {
            return Self::with_status(StatusCode::REQUEST_TIMEOUT, "ETIMEDOUT", slow.to_string());
        }
        Self::malformed(rejection.body_text())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        match rejection {
            JsonRejection::MissingJsonContentType(_) => {
                Self::media_type("send the body as content-type application/json")
            }
            JsonRejection::BytesRejection(bytes) => bytes.into(),
            other => Self::malformed(other.body_text()),
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_probes::{AttachError, parse_line};

    fn check(problem: impl Into<Problem>, status: u16, code: &str) -> Problem {
        let problem = problem.into();
        assert_eq!((problem.status, problem.code), (status, code), "{problem:?}");
        problem
    }

    #[test]
    fn engine_errors_keep_their_codes_and_particulars() {
        let syntax = parse_line("p:e sym %zz").unwrap_err();
        let problem = check(ProbeError::Syntax(syntax), 422, "EINVAL");
        assert_eq!((problem.position, problem.id), (Some(8), Some("BAD_REG_NAME")));
        let near = vec!["vfs_read".to_owned()];
        let unknown = LookupError::Unknown { name: "vfs_raed".to_owned(), near: near.clone() };
        let batch = BatchError { index: 2, name: "r".to_owned(), error: unknown.into() };
        let problem = check(batch, 404, "ENOENT");
        assert_eq!((&problem.near, problem.index), (&near, Some(2)));
        assert_eq!(problem.event.as_deref(), Some("r"));
        check(ProbeError::NameTaken("a/b".to_owned()), 409, "EEXIST");
        check(ProbeError::NoSlots(4096), 507, "ENOMEM");
        check(ProbeError::TooManyArgs(129), 422, "E2BIG");
        check(ProbeError::Attach(AttachError::Stopped), 409, "ESHUTDOWN");
    }

    #[test]
    fn vm_errors() {
        check(ControlError::Stopped, 409, "ESHUTDOWN");
        check(ControlError::Held, 409, "EBUSY");
        check(ControlError::NoPowerButton, 503, "EAGAIN");
        check(RebootError::NotStarted, 503, "EAGAIN");
        check(RebootError::Vcpu(VcpuError::Gone(1)), 409, "ESHUTDOWN");
        check(VcpuError::NoSuchVcpu(7), 404, "ENOENT");
        check(InputFull { waiting: 9 }, 503, "EAGAIN");
        let no_space = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let path = "/x".into();
        check(SnapshotError::Io { path, source: no_space }, 507, "ENOSPC");
        check(SnapshotError::File(NewFileError::NotAFile("/x".into())), 422, "EINVAL");
        let source = ErrorKind::IsADirectory.into();
        check(SnapshotError::File(NewFileError::Io { path: "/".into(), source }), 422, "EINVAL");
        check(SnapshotError::Ended, 503, "ECANCELED");
        check(RebootError::NoFiles, 409, "ENODATA");
    }

    #[test]
    fn the_document_is_as_rfc_9457_has_it() {
        let response = Problem::new("EAGAIN", "later").into_response();
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let json = serde_json::to_value(&*Problem::new("ENOENT", "none").at_line(3)).unwrap();
        let expected = serde_json::json!({
            "type": "about:blank", "title": "Not Found", "status": 404,
            "detail": "line 3: none", "code": "ENOENT", "line": 3,
        });
        assert_eq!(json, expected);
    }
}
