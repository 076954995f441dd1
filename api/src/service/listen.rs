//! Sockets to serve on, and serving until the service closes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::serve::ListenerExt;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::Service;
use super::connections::{ConnectionLimits, serve_on};
use super::descriptors::{self, Connections};
use super::socket::{SocketError, SocketFile, bind};
use crate::http::{self, Token};

/// How long open requests may take to finish.
const GRACE: Duration = Duration::from_secs(2);
/// How long an answer on TCP may wait for a client that reads none of it, or is gone.
const UNREAD: Duration = Duration::from_secs(300);
/// Silence on TCP after which a client's host is asked whether it is still there.
const TCP_SILENCE: Duration = Duration::from_secs(60);

/// Why there is nothing to listen on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The unix socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The TCP address.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The host's error.
        source: io::Error,
    },
}

/// Bound sockets, before there is something to serve. The unix socket's file goes with them.
pub struct Listeners {
    unix: UnixListener,
    file: SocketFile,
    tcp: Option<(TcpListener, Token)>,
    /// Most connections of each.
    most: Connections,
}

impl Listeners {
    /// Binds the unix socket and, if any, the TCP address, whose clients need the token. Waits for
    /// a lock that another process may hold, so not to be called on an async thread; but in the
    /// context of a runtime.
    ///
    /// # Errors
    /// [`ListenError`]: nothing is bound then.
    ///
    /// # Panics
    /// Without a runtime.
    pub fn bind(socket: &Path, tcp: Option<(SocketAddr, Token)>) -> Result<Self, ListenError> {
        // The socket last: once its file exists, the TCP port is open too.
        let tcp = match tcp {
            None => None,
            Some((address, token)) => {
                let bound = Handle::current().block_on(TcpListener::bind(address));
                let listener = bound.map_err(|source| ListenError::Tcp { address, source })?;
                Some((listener, token))
            }
        };
        let (unix, file) = bind(socket)?;
        Ok(Self { unix, file, tcp, most: descriptors::connections() })
    }

    /// Where clients find the service.
    #[must_use]
    pub fn describe(&self) -> String {
        let unix = format!("unix:{}", self.file.path().display());
        match self.tcp.as_ref().and_then(|(tcp, _)| tcp.local_addr().ok()) {
            Some(address) => format!("{unix} and http://{address}"),
            None => unix,
        }
    }
}

/// Serves until `service` closes, then lets open requests finish for a moment. The socket's file is
/// gone when this returns.
pub async fn serve(service: &Service, listeners: Listeners) {
    let Listeners { unix, file, tcp, most: connections } = listeners;
    let mut servers = JoinSet::new();
    let limits = |connections| ConnectionLimits { connections, ..ConnectionLimits::default() };
    let router = http::with_body_deadline(service.router(), http::BODY_DEADLINE);
    if let Some((tcp, token)) = tcp {
        let tcp = tcp.tap_io(|stream| {
            if let Err(error) = set_options(stream) {
                tracing::debug!(%error, "options of a TCP socket");
            }
        });
        let router = http::with_token(router.clone(), token, http::FAILURE_DELAY);
        servers.spawn(serve_on(tcp, router, limits(connections.tcp), service.closing()));
    }
    servers.spawn(serve_on(unix, router, limits(connections.unix), service.closing()));
    service.closing().closed().await;
    drop(file);
    let finish = async { while servers.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finish).await.is_err() {
        tracing::warn!("requests were still open at the end");
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Events are small, and late with Nagle's algorithm.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_SILENCE))?;
    socket.set_tcp_user_timeout(Some(UNREAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_on_tcp_that_is_gone_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        set_options(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_SILENCE);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNREAD));
        drop(client);
    }
}
