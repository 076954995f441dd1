//! A service that says what a test wants.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::{Client, Target};

/// A fake service on a unix socket.
pub(crate) struct Fake {
    dir: TempDir,
    server: tokio::task::JoinHandle<()>,
}

impl Fake {
    /// Serves `router`.
    pub(crate) fn serve(router: Router) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let server = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { dir, server }
    }

    /// Serves one text at one path.
    pub(crate) fn text(path: &str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::serve(Router::new().route(path, get(async || text)))
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        Client::new(Target::Unix(self.dir.path().join("socket")), None).unwrap()
    }

    /// Ends the service: requests get no answer any more.
    pub(crate) fn stop(&self) {
        self.server.abort();
        std::fs::remove_file(self.dir.path().join("socket")).unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A body that breaks off after `text`.
pub(crate) fn broken(text: String) -> Body {
    let parts = [Ok(text), Err(std::io::Error::other("broken off"))];
    // A pause, so that the text is sent before the connection is torn down.
    Body::from_stream(futures_util::StreamExt::then(
        futures_util::stream::iter(parts),
        |part| async {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            part
        },
    ))
}

/// A body that never ends, and has nothing after `text`.
pub(crate) fn endless(text: String) -> Body {
    let first = futures_util::stream::iter([Ok::<_, std::io::Error>(text)]);
    Body::from_stream(futures_util::StreamExt::chain(first, futures_util::stream::pending()))
}

/// An event as the service writes it.
pub(crate) fn event_json(seq: u64) -> String {
    format!(
        r#"{{"seq":{seq},"time":0.0,"vcpu":0,"group":"kprobes","event":"e","symbol_name":"f","offset":0,"addr":"0x1","args":{{}}}}"#
    )
}
