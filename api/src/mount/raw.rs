//! Files of pages of the ring buffer, which have no end.

use std::time::Duration;

use fuser::Errno;
use hyper::body::Bytes;
use tokio::sync::Mutex;

use super::path::TracePath;
use super::pipe::turn;
use super::remote::Remote;

/// The name of such files, wherever they are.
pub(super) const NAME: &str = "trace_pipe_raw";
/// Bytes of a page.
const PAGE: usize = 4096;
/// Most pages that are asked for at once: the service has a bound, too.
const PAGES_MAX: usize = 64;
/// How long one request waits for events; then comes the next one.
const WAIT: Duration = Duration::from_secs(10);

/// One opening of `trace_pipe_raw`. Each read asks the service for the pages that it has room for,
/// so that nothing waits in sockets, and a read that must not wait finds all that is there.
#[derive(Debug)]
pub(super) struct RawPipe {
    file: TracePath,
    /// The rest of a page that the last read had no room for.
    rest: Mutex<Bytes>,
}

impl RawPipe {
    pub(super) fn new(file: TracePath) -> Self {
        Self { file, rest: Mutex::default() }
    }

    pub(super) fn file(&self) -> &TracePath {
        &self.file
    }

    /// Reads the next bytes, `size` at most: whole pages if there is room for one. Bears to be
    /// dropped while it waits.
    ///
    /// # Errors
    /// EAGAIN where there is nothing and the read must not wait.
    pub(super) async fn read(
        &self,
        remote: &Remote,
        size: usize,
        may_wait: bool,
    ) -> Result<Bytes, Errno> {
        let mut rest = turn(&self.rest, may_wait).await?;
        let pages = (size / PAGE).clamp(1, PAGES_MAX);
        let wait = if may_wait { WAIT } else { Duration::ZERO };
        while rest.is_empty() {
            *rest = remote.pages(&self.file, pages, wait).await?;
            if rest.is_empty() && !may_wait {
                return Err(Errno::EAGAIN);
            }
        }
        let size = size.min(rest.len());
        Ok(rest.split_to(size))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::extract::Query;
    use axum::routing::get;

    use super::*;
    use crate::client::testing::Fake;

    #[tokio::test]
    async fn a_read_is_one_request_for_the_pages_that_it_has_room_for() {
        let left = Arc::new(AtomicUsize::new(5));
        let pages = async move |Query(query): Query<HashMap<String, usize>>| {
            let asked = query["pages"].min(left.load(Ordering::Relaxed));
            left.fetch_sub(asked, Ordering::Relaxed);
            vec![b'x'; asked * PAGE]
        };
        let fake = Fake::serve(Router::new().route("/v1/tracefs/trace_pipe_raw", get(pages)));
        let remote = Remote::new(fake.client());
        let pipe = RawPipe::new(TracePath::root().child(NAME).unwrap());
        let read = async |size| pipe.read(&remote, size, false).await.map(|bytes| bytes.len());
        assert_eq!(read(2 * PAGE + 100).await, Ok(2 * PAGE));
        assert_eq!(read(100).await, Ok(100));
        assert_eq!(read(PAGE).await, Ok(PAGE - 100), "the rest of a page");
        assert_eq!(read(100 * PAGE).await, Ok(2 * PAGE));
        assert_eq!(read(PAGE).await, Err(Errno::EAGAIN));
    }
}
