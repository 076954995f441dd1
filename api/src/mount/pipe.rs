//! Files that have no end.

use std::time::Duration;

use fuser::Errno;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::path::TracePath;
use super::remote::Remote;

/// How long a read that does not wait lets the first lines of a new stream come.
const FIRST: Duration = Duration::from_millis(100);

/// The name of files without an end, wherever they are.
pub(super) const NAME: &str = "trace_pipe";

/// One opening of `trace_pipe`.
///
/// Its stream begins with the first read and ends with its handle. Nothing is asked for ahead: what
/// has no reader waits in the sockets between here and the service, and then in the service. The
/// service gives each line to one reader only. So what has come for this one, and is not read
/// before it is closed, is lost, as is what a read had received whose task was killed meanwhile.
#[derive(Debug)]
pub(super) struct Pipe {
    file: TracePath,
    stream: Mutex<Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    body: Option<Incoming>,
    /// Bytes that the last read had no room for.
    rest: Bytes,
}

impl Pipe {
    pub(super) fn new(file: TracePath) -> Self {
        Self { file, stream: Mutex::default() }
    }

    pub(super) fn file(&self) -> &TracePath {
        &self.file
    }

    /// Reads the next bytes, `size` at most; none when the service ends the stream. A read past
    /// that begins another. Bears to be dropped while it waits.
    ///
    /// # Errors
    /// EAGAIN where there is nothing and the read must not wait.
    pub(super) async fn read(
        &self,
        remote: &Remote,
        size: usize,
        may_wait: bool,
    ) -> Result<Bytes, Errno> {
        let mut stream = turn(&self.stream, may_wait).await?;
        let mut patience = Duration::ZERO;
        if stream.rest.is_empty() && stream.body.is_none() {
            stream.body = Some(remote.follow(&self.file).await?);
            patience = FIRST;
        }
        if stream.rest.is_empty() && !may_wait {
            let more = timeout(patience, stream.fill()).await;
            more.unwrap_or(Err(Errno::EAGAIN))?;
        } else if stream.rest.is_empty() {
            stream.fill().await?;
        }
        let size = size.min(stream.rest.len());
        Ok(stream.rest.split_to(size))
    }
}

/// Locks what readers of an opening take turns with.
///
/// # Errors
/// EAGAIN where another reads and this one must not wait.
pub(super) async fn turn<T>(shared: &Mutex<T>, may_wait: bool) -> Result<MutexGuard<'_, T>, Errno> {
    if may_wait {
        return Ok(shared.lock().await);
    }
    shared.try_lock().map_err(|_| Errno::EAGAIN)
}

impl Stream {
    /// Waits for more, or the end.
    async fn fill(&mut self) -> Result<(), Errno> {
        while let Some(body) = &mut self.body {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data().map_err(drop)
                        && !data.is_empty()
                    {
                        self.rest = data;
                        return Ok(());
                    }
                }
                Some(Err(_)) => {
                    self.body = None;
                    return Err(Errno::EIO);
                }
                None => self.body = None,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;
    use crate::client::testing::{Fake, broken};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A service whose `trace_pipe` is given one sender for each stream that is opened.
    struct Source {
        fake: Fake,
        opened: tokio::sync::mpsc::UnboundedReceiver<UnboundedSender<String>>,
    }

    impl Source {
        fn new() -> Self {
            let (told, opened) = unbounded_channel();
            let open = async move || {
                let (lines, stream) = unbounded_channel::<String>();
                told.send(lines).unwrap();
                let stream = UnboundedReceiverStream::new(stream);
                Body::from_stream(stream.map(Ok::<_, std::io::Error>))
            };
            let fake = Fake::serve(Router::new().route("/v1/tracefs/trace_pipe", get(open)));
            Self { fake, opened }
        }

        fn remote(&self) -> Remote {
            Remote::new(self.fake.client())
        }
    }

    fn pipe() -> Pipe {
        Pipe::new(TracePath::root().child(NAME).unwrap())
    }

    #[tokio::test]
    async fn reads_wait_for_lines_and_take_what_they_have_room_for() {
        let mut source = Source::new();
        let (remote, pipe) = (source.remote(), pipe());
        assert!(source.opened.try_recv().is_err(), "no stream before the first read");
        let (read, lines) = tokio::join!(pipe.read(&remote, 4, true), async {
            let lines = source.opened.recv().await.unwrap();
            lines.send("abcdef\n".to_owned()).unwrap();
            lines
        });
        assert_eq!(read.unwrap(), "abcd");
        assert_eq!(pipe.read(&remote, 100, true).await.unwrap(), "ef\n");
        let dropped = timeout(Duration::from_millis(50), pipe.read(&remote, 9, true)).await;
        assert!(dropped.is_err(), "nothing to read");
        lines.send("more\n".to_owned()).unwrap();
        assert_eq!(pipe.read(&remote, 100, true).await.unwrap(), "more\n");
        drop(lines);
        assert_eq!(pipe.read(&remote, 100, true).await.unwrap(), "", "the end");
        assert!(source.opened.try_recv().is_err(), "one stream for all of it");
    }

    #[tokio::test]
    async fn a_read_that_must_not_wait_does_not() {
        let mut source = Source::new();
        let (remote, pipe) = (source.remote(), pipe());
        assert_eq!(pipe.read(&remote, 9, false).await, Err(Errno::EAGAIN));
        let lines = source.opened.recv().await.unwrap();
        assert_eq!(pipe.read(&remote, 9, false).await, Err(Errno::EAGAIN));
        let waiting = pipe.read(&remote, 9, true);
        let (waited, at_once) = tokio::join!(waiting, async {
            let at_once = pipe.read(&remote, 9, false).await;
            lines.send("x\n".to_owned()).unwrap();
            at_once
        });
        assert_eq!(at_once, Err(Errno::EAGAIN), "another reader waits");
        assert_eq!(waited.unwrap(), "x\n");
    }

    #[tokio::test]
    async fn the_service_sees_when_a_reader_is_gone() {
        let mut source = Source::new();
        let (remote, pipe) = (source.remote(), pipe());
        assert_eq!(pipe.read(&remote, 9, false).await, Err(Errno::EAGAIN));
        let lines = source.opened.recv().await.unwrap();
        assert!(!lines.is_closed());
        drop(pipe);
        timeout(PATIENCE, lines.closed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_stream_that_breaks_is_an_error_and_the_next_read_begins_another() {
        let opened = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&opened);
        let open = async move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => broken("a\n".to_owned()),
            _ => Body::from("b\n"),
        };
        let fake = Fake::serve(Router::new().route("/v1/tracefs/trace_pipe", get(open)));
        let (remote, pipe) = (Remote::new(fake.client()), pipe());
        assert_eq!(pipe.read(&remote, 9, true).await.unwrap(), "a\n");
        assert_eq!(pipe.read(&remote, 9, true).await, Err(Errno::EIO));
        assert_eq!(pipe.read(&remote, 9, true).await.unwrap(), "b\n");
        assert_eq!(pipe.read(&remote, 9, true).await.unwrap(), "");
        fake.stop();
        assert_eq!(pipe.read(&remote, 9, true).await, Err(Errno::ECONNREFUSED));
    }

    #[tokio::test]
    async fn what_nobody_reads_is_not_taken_in() {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let chunk = [b'x'; 4096];
        let flood = tokio_stream::iter(std::iter::repeat_with(move || {
            counted.fetch_add(chunk.len(), Ordering::Relaxed);
            Ok::<_, std::io::Error>(chunk.to_vec())
        }));
        let body = Arc::new(std::sync::Mutex::new(Some(Body::from_stream(flood))));
        let open = async move || body.lock().unwrap().take().unwrap();
        let fake = Fake::serve(Router::new().route("/v1/tracefs/trace_pipe", get(open)));
        let (remote, pipe) = (Remote::new(fake.client()), pipe());
        assert!(!pipe.read(&remote, 9, true).await.unwrap().is_empty());
        let mut before = 0;
        // The sockets fill up, and then nothing moves.
        timeout(PATIENCE, async {
            while before != taken.load(Ordering::Relaxed) {
                before = taken.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
        .await
        .unwrap();
        assert!(taken.load(Ordering::Relaxed) < 16 << 20, "{taken:?}");
    }
}
