//! Clients that send nothing, too slowly, or too much, on listeners of small limits.

use std::path::PathBuf;

use axum::body::Bytes;
use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::*;
use crate::http::{Problem, with_body_deadline};

const SHORT: Duration = Duration::from_millis(100);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A server that answers `POST /` with the length of the body.
struct Server {
    path: PathBuf,
    _dir: tempfile::TempDir,
    _closing: watch::Sender<bool>,
}

impl Server {
    fn start(limits: ConnectionLimits, body: Duration) -> Self {
        let length = |body: Result<Bytes, axum::extract::rejection::BytesRejection>| async {
            Ok::<_, Problem>(body?.len().to_string())
        };
        let router = with_body_deadline(Router::new().route("/", post(length)), body);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let closing = watch::Sender::new(false);
        drop(tokio::spawn(serve_on(listener, router, limits, Closing::new(closing.subscribe()))));
        Self { path, _dir: dir, _closing: closing }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }

    /// Sends `request` and returns all that comes until the server closes the connection.
    async fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request).await.unwrap();
        rest(stream).await
    }
}

async fn rest(mut stream: UnixStream) -> String {
    let mut bytes = Vec::new();
    // A server that closes before it has read all resets the connection.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

const ASK: &[u8] =
    b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab";

fn limits(connections: usize, header: Duration) -> ConnectionLimits {
    ConnectionLimits { connections, header }
}

#[tokio::test]
async fn silent_clients_are_cut_and_those_who_wait_are_served() {
    let server = Server::start(limits(2, SHORT), LONG);
    let silent = [server.connect().await, server.connect().await];
    let answer = server.answer(ASK).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n2"), "{answer}");
    for stream in silent {
        assert_eq!(rest(stream).await, "");
    }
}

#[tokio::test]
async fn connections_have_a_limit() {
    let server = Server::start(limits(2, LONG), LONG);
    let silent = [server.connect().await, server.connect().await];
    let mut third = server.connect().await;
    third.write_all(ASK).await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(SHORT, third.read(&mut byte)).await;
    assert!(early.is_err(), "served beyond the limit: {early:?}");
    drop(silent);
    assert!(rest(third).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_header_that_comes_in_drops_is_cut() {
    let server = Server::start(limits(9, SHORT), LONG);
    let (mut read, mut write) = server.connect().await.into_split();
    let dripping = tokio::spawn(async move {
        write.write_all(b"POST / HTTP/1.1\r\nx: ").await.unwrap();
        while write.write_all(b"y").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    });
    let mut bytes = Vec::new();
    let _ = read.read_to_end(&mut bytes).await;
    dripping.await.unwrap();
}

#[tokio::test]
async fn idle_connections_are_cut_after_their_answer() {
    let server = Server::start(limits(9, SHORT), LONG);
    let answer = server.answer(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nab").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_problem_and_the_end() {
    let server = Server::start(limits(9, LONG), SHORT);
    for begin in ["content-length: 5\r\n\r\nab", "transfer-encoding: chunked\r\n\r\n2\r\nab\r\n"] {
        let answer =
            server.answer(format!("POST / HTTP/1.1\r\nhost: h\r\n{begin}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("ETIMEDOUT"), "{answer}");
    }
}

#[tokio::test]
async fn large_headers_are_refused() {
    let server = Server::start(limits(9, LONG), LONG);
    let ask = |len: usize| {
        let filler = "f".repeat(len);
        format!(
            "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx: {filler}\r\ncontent-length: 0\r\n\r\n"
        )
    };
    let answer = server.answer(ask(HEADER_MAX - 200).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = server.answer(ask(HEADER_MAX).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}
