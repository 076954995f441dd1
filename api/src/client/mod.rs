//! A client of the HTTP API, over its unix socket or TCP.
//!
//! Every request has a connection of its own: the service is local, and streams may break
//! without harm to anything else.

mod error;
mod events;
mod lines;
mod path;
mod scripts;
mod serial;
mod target;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use error::{ClientError, Problem};
pub use events::{
    EventItem, EventLine, EventQuery, EventReader, EventRecord, Patience, StackFrame,
};
pub use lines::Lines;
pub use path::ApiPath;
pub use scripts::{NewScript, Script, ScriptArming, ScriptCommand, ScriptCommands, ScriptProbe};
pub use serial::{Port, Reply};
pub use target::{Target, TargetError};

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Streams of events come as server-sent events too; this client reads lines.
const ACCEPTED: &str = "application/json, application/x-ndjson, */*;q=0.5";

/// Body of a request.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Nothing.
    Empty,
    /// A JSON document.
    Json(serde_json::Value),
    /// Text that is to be a JSON document.
    JsonText(String),
    /// Lines of text.
    Text(String),
    /// Bytes as they are.
    Bytes(Vec<u8>),
}

impl Payload {
    fn into_parts(self) -> (Option<&'static str>, Bytes) {
        match self {
            Self::Empty => (None, Bytes::new()),
            Self::Json(value) => (Some("application/json"), value.to_string().into()),
            Self::JsonText(text) => (Some("application/json"), text.into()),
            Self::Text(text) => (Some("text/plain; charset=utf-8"), text.into()),
            Self::Bytes(bytes) => (Some("application/octet-stream"), bytes.into()),
        }
    }
}

/// A client of one service.
#[derive(Clone, Debug)]
pub struct Client {
    target: Target,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client of the service at `target`. The token is only sent over TCP: the unix socket's
    /// permissions speak for themselves.
    ///
    /// # Errors
    /// [`ClientError::Token`] when the token cannot stand in a header.
    pub fn new(target: Target, token: Option<&str>) -> Result<Self, ClientError> {
        let token = token.filter(|_| matches!(target, Target::Tcp { .. }));
        let authorization = token
            .map(|token| {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| ClientError::Token)?;
                value.set_sensitive(true);
                Ok::<_, ClientError>(value)
            })
            .transpose()?;
        Ok(Self { target, authorization })
    }

    /// Where the service is.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request and returns the answer's head, its body still to come.
    ///
    /// # Errors
    /// [`ClientError`]; any status but success is [`ClientError::Refused`].
    pub async fn send(
        &self,
        method: Method,
        path: &ApiPath,
        payload: Payload,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(method, path, payload)?;
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Err(ClientError::Refused(Box::new(Problem::from_answer(status, &body))))
    }

    /// Sends a request and returns the whole answer.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn call(
        &self,
        method: Method,
        path: &ApiPath,
        payload: Payload,
    ) -> Result<Bytes, ClientError> {
        let response = self.send(method, path, payload).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    /// GETs the whole answer.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn get(&self, path: &ApiPath) -> Result<Bytes, ClientError> {
        self.call(Method::GET, path, Payload::Empty).await
    }

    fn request(
        &self,
        method: Method,
        path: &ApiPath,
        payload: Payload,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let (content_type, body) = payload.into_parts();
        let mut request = Request::builder()
            .method(method)
            .uri(path.as_str())
            .header(HOST, self.target.host_header())
            .header(ACCEPT, ACCEPTED);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        Ok(request.body(Full::new(body))?)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let failed = |source| ClientError::Connect { target: self.target.clone(), source };
        match &self.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                let owner = stream.peer_cred().map_err(failed)?.uid();
                if !may_serve(owner, crate::user::id()) && !owns_folder_of(path, owner) {
                    return Err(ClientError::ForeignPeer { path: path.clone(), owner });
                }
                handshake(stream).await
            }
            Target::Tcp { address, .. } => {
                handshake(TcpStream::connect(address).await.map_err(failed)?).await
            }
        }
    }
}

/// Whether a process of `owner` is trusted to be the service of `user`. In `/tmp`, any user can
/// listen on the default path first.
fn may_serve(owner: u32, user: u32) -> bool {
    const ROOT: u32 = 0;
    owner == user || owner == ROOT
}

/// Whether a socket is in a folder of `owner`'s in which no other user can make one, as in that of
/// a jail, which root's client opens.
fn owns_folder_of(path: &Path, owner: u32) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let folder = path.parent().and_then(|folder| folder.metadata().ok());
    folder.is_some_and(|folder| folder.uid() == owner && folder.mode() & OTHERS_WRITE == 0)
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its errors reach the waiter for the answer, or the reader of its body.
    drop(tokio::spawn(connection));
    Ok(sender)
}
