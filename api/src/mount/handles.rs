//! Open files and folders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{Errno, FileHandle, FileType, INodeNo, LockOwner};
use hyper::body::Bytes;

use super::lines::LineKeeper;
use super::path::TracePath;
use super::pipe::Pipe;
use super::raw::RawPipe;
use super::remote::Remote;

/// Open files and folders, by the number that the kernel passes back.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: Mutex<(u64, HashMap<u64, Arc<Handle>>)>,
}

/// One opening of something.
#[derive(Debug)]
pub(super) enum Handle {
    /// A file with an end.
    File(OpenFile),
    /// A file without one.
    Pipe(Pipe),
    /// A file without one, of pages.
    Raw(RawPipe),
    /// A folder.
    Folder(OpenFolder),
}

impl Handles {
    pub(super) fn add(&self, handle: Handle) -> FileHandle {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, handles) = &mut *open;
        *last += 1;
        handles.insert(*last, Arc::new(handle));
        FileHandle(*last)
    }

    /// # Errors
    /// EBADF for a number that was not given, or taken back.
    pub(super) fn get(&self, number: FileHandle) -> Result<Arc<Handle>, Errno> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.get(&number.0).cloned().ok_or(Errno::EBADF)
    }

    /// Returns true if a file in a folder is open, as deep as it may be.
    pub(super) fn has_open_in(&self, folder: &TracePath) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.values().any(|handle| handle.file().is_some_and(|file| file.is_in(folder)))
    }

    pub(super) fn remove(&self, number: FileHandle) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.remove(&number.0);
    }
}

impl Handle {
    /// The path, if it is of a file.
    fn file(&self) -> Option<&TracePath> {
        match self {
            Self::File(file) => Some(&file.path),
            Self::Pipe(pipe) => Some(pipe.file()),
            Self::Raw(pipe) => Some(pipe.file()),
            Self::Folder(_) => None,
        }
    }
}

/// One opening of a file that has an end.
#[derive(Debug)]
pub(super) struct OpenFile {
    path: TracePath,
    text: tokio::sync::Mutex<Option<Bytes>>,
    lines: tokio::sync::Mutex<LineKeeper>,
}

impl OpenFile {
    pub(super) fn new(path: TracePath) -> Self {
        Self { path, text: tokio::sync::Mutex::default(), lines: tokio::sync::Mutex::default() }
    }

    /// `size` bytes from `offset` on, or what there is. A read at 0 asks the service; those after
    /// are answered from the same text, so that a reader sees no halves of two.
    pub(super) async fn read(
        &self,
        remote: &Remote,
        offset: u64,
        size: usize,
    ) -> Result<Bytes, Errno> {
        let mut text = self.text.lock().await;
        if offset == 0 {
            *text = None;
        }
        let text = match &*text {
            Some(text) => text,
            None => text.insert(remote.read(&self.path).await?),
        };
        let begin = usize::try_from(offset).map_or(text.len(), |offset| offset.min(text.len()));
        Ok(text.slice(begin..text.len().min(begin.saturating_add(size))))
    }

    /// Writes `data`; where it is written to is of no meaning, as in tracefs.
    ///
    /// # Errors
    /// EINVAL for what is no text, and for a line that does not end.
    pub(super) async fn write(
        &self,
        remote: &Remote,
        data: &[u8],
        writer: Option<LockOwner>,
    ) -> Result<(), Errno> {
        let mut lines = self.lines.lock().await;
        let portion = lines.portion(data, writer).map_err(|_| Errno::EINVAL)?;
        let sent = match portion.send.as_slice() {
            [] => Ok(()),
            send => self.send(remote, send.to_vec()).await,
        };
        match sent {
            Ok(()) => lines.sent(portion),
            Err(_) => lines.refused(),
        }
        sent
    }

    /// Sends what `closer` left of a write that the kernel took apart, or anybody (`None`).
    pub(super) async fn flush(
        &self,
        remote: &Remote,
        closer: Option<LockOwner>,
    ) -> Result<(), Errno> {
        match self.lines.lock().await.rest(closer) {
            rest if rest.is_empty() => Ok(()),
            rest => self.send(remote, rest).await,
        }
    }

    async fn send(&self, remote: &Remote, text: Vec<u8>) -> Result<(), Errno> {
        let text = String::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        remote.write(&self.path, text).await
    }
}

/// One opening of a folder.
#[derive(Debug)]
pub(super) struct OpenFolder {
    pub(super) path: TracePath,
    /// Its entries when it was read from its beginning.
    pub(super) entries: tokio::sync::Mutex<Vec<FolderEntry>>,
}

/// A line of a folder, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FolderEntry {
    pub(super) number: INodeNo,
    pub(super) kind: FileType,
    pub(super) name: String,
}

impl OpenFolder {
    pub(super) fn new(path: TracePath) -> Self {
        Self { path, entries: tokio::sync::Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::{get, post};

    use super::*;
    use crate::client::testing::Fake;
    use crate::mount::lines::WRITE_MAX;

    fn file(name: &str) -> OpenFile {
        OpenFile::new(TracePath::root().child(name).unwrap())
    }

    #[tokio::test]
    async fn a_text_is_asked_for_once_and_again_at_its_beginning() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let text = async move || format!("text {}\n", counted.fetch_add(1, Ordering::Relaxed));
        let fake = Fake::serve(Router::new().route("/v1/tracefs/trace", get(text)));
        let (remote, file) = (Remote::new(fake.client()), file("trace"));
        assert_eq!(file.read(&remote, 0, 4).await.unwrap(), "text");
        assert_eq!(file.read(&remote, 4, 100).await.unwrap(), " 0\n");
        assert_eq!(file.read(&remote, 7, 100).await.unwrap(), "");
        assert_eq!(file.read(&remote, u64::MAX, 100).await.unwrap(), "");
        assert_eq!(file.read(&remote, 0, 100).await.unwrap(), "text 1\n");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        fake.stop();
        assert_eq!(file.read(&remote, 4, 100).await.unwrap(), " 1\n");
        assert_eq!(file.read(&remote, 0, 100).await, Err(Errno::ECONNREFUSED));
    }

    /// A file that takes what does not begin with `bad`, and what it took.
    fn writable() -> (Router, Arc<Mutex<Vec<String>>>) {
        let written = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&written);
        let take = async move |body: String| -> Response {
            if body.starts_with("bad") {
                let problem = r#"{"detail":"no","code":"EEXIST"}"#;
                return (StatusCode::CONFLICT, problem).into_response();
            }
            noted.lock().unwrap().push(body);
            StatusCode::NO_CONTENT.into_response()
        };
        (Router::new().route("/v1/tracefs/kprobe_events", post(take)), written)
    }

    #[tokio::test]
    async fn writes_go_as_they_come_and_their_errors_come_back() {
        let (router, written) = writable();
        let fake = Fake::serve(router);
        let (remote, file) = (Remote::new(fake.client()), file("kprobe_events"));
        file.write(&remote, b"p:a f\n", None).await.unwrap();
        assert_eq!(file.write(&remote, b"bad\n", None).await, Err(Errno::EEXIST));
        assert_eq!(file.write(&remote, b"\xff\n", None).await, Err(Errno::EINVAL));
        file.write(&remote, b"p:b f", None).await.unwrap();
        file.flush(&remote, None).await.unwrap();
        assert_eq!(*written.lock().unwrap(), ["p:a f\n", "p:b f"]);
    }

    #[tokio::test]
    async fn a_cut_line_is_sent_whole_or_with_the_flush() {
        let (router, written) = writable();
        let fake = Fake::serve(router);
        let (remote, file) = (Remote::new(fake.client()), file("kprobe_events"));
        let mut data = "p:a f\n".repeat(WRITE_MAX / 6).into_bytes();
        data.extend_from_slice(b"p:bcdef");
        data.truncate(WRITE_MAX);
        let cut = WRITE_MAX % 6;
        file.write(&remote, &data, None).await.unwrap();
        file.write(&remote, b"|end\n", None).await.unwrap();
        file.write(&remote, &data, None).await.unwrap();
        file.flush(&remote, None).await.unwrap();
        file.flush(&remote, None).await.unwrap();
        let written = written.lock().unwrap();
        assert!(cut > 0 && written.len() == 4, "{}", written.len());
        assert!(written[0].ends_with("f\n") && written[0].len() == WRITE_MAX - cut);
        assert_eq!(written[1], format!("{}|end\n", &"p:bcdef"[..cut]));
        assert_eq!(written[3], "p:bcdef"[..cut]);
    }

    #[test]
    fn a_handle_is_there_until_it_is_closed() {
        let handles = Handles::default();
        let (a, b) = (
            handles.add(Handle::File(file("trace"))),
            handles.add(Handle::Folder(OpenFolder::new(TracePath::root()))),
        );
        assert_ne!(a, b);
        let folder = TracePath::root().child("instances").unwrap().child("a").unwrap();
        handles.add(Handle::Folder(OpenFolder::new(folder.clone())));
        assert!(!handles.has_open_in(&folder), "a folder alone");
        let pipe = handles.add(Handle::Pipe(Pipe::new(folder.child("trace_pipe").unwrap())));
        assert!(handles.has_open_in(&folder));
        handles.remove(pipe);
        assert!(!handles.has_open_in(&folder));
        handles.remove(a);
        assert_eq!(handles.get(a).err(), Some(Errno::EBADF));
        assert!(matches!(&*handles.get(b).unwrap(), Handle::Folder(_)));
    }
}
