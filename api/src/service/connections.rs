//! Serving the connections of a listener: bounded in number, in time, and in the size of headers.

use std::fmt::Debug;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::closing::Closing;
use crate::http::Peer;

/// Largest head of a request (its first line and its headers), in bytes; 431 beyond.
pub(crate) const HEADER_MAX: usize = 16 << 10;
/// Largest buffer of a connection, for each direction, in bytes.
const BUFFER_MAX: usize = 64 << 10;
/// What a head may take to come, from the connection's begin or from the end of the last answer.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// Limits of a listener's connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    /// Most at a time. More wait, unaccepted, in the socket's queue.
    pub(super) connections: usize,
    /// What a request's head may take to come. So it is also how long a connection may be idle.
    pub(super) header: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { connections: usize::MAX, header: HEADER_DEADLINE }
    }
}

/// Serves `router` to the clients of `listener` until the service closes, then waits for the requests
/// that are open.
pub(super) async fn serve_on<L>(
    mut listener: L,
    router: Router,
    limits: ConnectionLimits,
    mut closing: Closing,
) where
    L: Listener,
    L::Addr: Debug,
{
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = closing.closed() => break,
            Some(_) = open.join_next() => {}
            // Never an error: axum's listeners try again what accept refuses.
            (stream, address) = listener.accept(), if open.len() < limits.connections => {
                let peer = Peer::new(&address);
                open.spawn(serve_one(stream, peer, router.clone(), limits, closing.clone()));
            }
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn serve_one<S>(
    stream: S,
    peer: Peer,
    router: Router,
    limits: ConnectionLimits,
    mut closing: Closing,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_header_size(HEADER_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.closed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests;
