//! Errors between client and service.

use std::path::PathBuf;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::Target;

/// Longest part of an answer that is no problem document to show.
const EXCERPT: usize = 200;

/// Why a request got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers there.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// Where.
        target: Target,
        /// The host's error.
        source: std::io::Error,
    },
    /// Another user's process listens on the socket: it could pose as the service.
    #[error(
        "{path} belongs to a process of user {owner}, neither you, nor root, nor the owner of its folder: give another --socket, or run this command as that user"
    )]
    ForeignPeer {
        /// The socket.
        path: PathBuf,
        /// User id of the process.
        owner: u32,
    },
    /// The connection ended within an answer.
    #[error("the connection to the service broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The service ended a stream that was to go on.
    #[error("the service has ended")]
    Ended,
    /// The request cannot be written as HTTP.
    #[error("cannot make the request: {0}")]
    Request(#[from] hyper::http::Error),
    /// The token has characters that no header can hold.
    #[error("the token has characters that no HTTP header can hold")]
    Token,
    /// The service refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The answer is of a kind this client does not know.
    #[error("the service's answer is not understood (is it of another version?): {0}")]
    Answer(#[from] serde_json::Error),
    /// The answer lacks a header.
    #[error("the service's answer lacks the header {0} (is it of another version?)")]
    NoHeader(&'static str),
}

/// A refusal: RFC 9457's members and this API's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// HTTP status; 0 of what no service refused.
    #[serde(skip_serializing_if = "is_zero")]
    pub status: u16,
    /// Its kind in words.
    pub title: String,
    /// The fault, and its remedy.
    pub detail: String,
    /// Stable name, an errno's where one applies.
    pub code: String,
    /// Column of the fault in a definition, in bytes from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Line of a text of definitions, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The tracer's name for a syntax error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Names close to one that is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
    /// Which definition of a batch, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Its event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

fn is_zero(status: &u16) -> bool {
    *status == 0
}

impl Problem {
    /// Reads the body of a refusal, whatever it is.
    pub(super) fn from_answer(status: StatusCode, body: &[u8]) -> Self {
        match serde_json::from_slice::<Self>(body) {
            Ok(problem) if !(problem.detail.is_empty() && problem.title.is_empty()) => {
                Self { status: status.as_u16(), ..problem }
            }
            _ => Self::unstructured(status, body),
        }
    }

    fn unstructured(status: StatusCode, body: &[u8]) -> Self {
        let excerpt: String = String::from_utf8_lossy(body).trim().chars().take(EXCERPT).collect();
        let title = status.canonical_reason().unwrap_or("refused").to_owned();
        let code = format!("HTTP {}", status.as_u16());
        Self { status: status.as_u16(), title, detail: excerpt, code, ..Self::default() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let detail = if self.detail.is_empty() { &self.title } else { &self.detail };
        match self.code.as_str() {
            "" => f.write_str(detail),
            code => write!(f, "{detail} ({code})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_shown_with_their_code() {
        let body = br#"{"title":"No","status":404,"detail":"unknown symbol `a`","code":"ENOENT",
            "near":["b","c"]}"#;
        let problem = Problem::from_answer(StatusCode::NOT_FOUND, body);
        assert_eq!(problem.to_string(), "unknown symbol `a` (ENOENT)");
        assert_eq!(problem.near, ["b", "c"]);
    }

    #[test]
    fn answers_that_are_no_problem_documents_are_shown_too() {
        let show = |body: &[u8]| Problem::from_answer(StatusCode::BAD_GATEWAY, body).to_string();
        assert_eq!(show(b" oops\n"), "oops (HTTP 502)");
        assert_eq!(show(b""), "Bad Gateway (HTTP 502)");
        assert_eq!(show(b"{}"), "{} (HTTP 502)");
        assert_eq!(show(&vec![b'x'; 5000]).len(), EXCERPT + " (HTTP 502)".len());
    }
}
