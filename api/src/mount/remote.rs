//! The tracer's files, as the service has them.

use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileType};
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;

use super::entry::FolderItem;
use super::errno::errno_of;
use super::listings::Listings;
use super::path::TracePath;
use crate::client::{Client, ClientError, Payload};

/// Longest time of a request, except to files without an end.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// The files of one service.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    client: Client,
    limit: Duration,
    listings: Arc<Listings>,
}

#[derive(Deserialize)]
struct Listing {
    entries: Vec<RawEntry>,
}

#[derive(Deserialize)]
struct RawEntry {
    name: String,
    kind: String,
    mode: String,
}

impl RawEntry {
    /// `None` of what no folder of this host could show.
    fn read(self, folder: &TracePath) -> Option<FolderItem> {
        folder.child(&self.name)?;
        let kind = match self.kind.as_str() {
            "file" => FileType::RegularFile,
            "directory" => FileType::Directory,
            _ => return None,
        };
        let mode = u16::from_str_radix(&self.mode, 8).ok()? & 0o7777;
        Some(FolderItem { name: self.name, kind, mode })
    }
}

impl Remote {
    pub(super) fn new(client: Client) -> Self {
        Self { client, limit: LIMIT, listings: Arc::new(Listings::new()) }
    }

    #[cfg(test)]
    pub(super) fn with_limit(client: Client, limit: Duration) -> Self {
        Self { limit, ..Self::new(client) }
    }

    /// One that knows for so long what folders were like.
    #[cfg(test)]
    pub(super) fn with_listings(client: Client, keep: Duration) -> Self {
        Self { listings: Arc::new(Listings::kept_for(keep)), ..Self::new(client) }
    }

    /// Lists a folder.
    pub(super) async fn list(&self, folder: &TracePath) -> Result<Vec<FolderItem>, Errno> {
        let asked = self.listings.ask();
        let listed = self.within(list(&self.client, folder)).await;
        match &listed {
            Ok(entries) => self.listings.put(folder, &asked, entries),
            Err(_) => self.listings.forget(folder),
        }
        listed
    }

    /// Finds an entry of a folder by name, now or in a recent listing.
    ///
    /// # Errors
    /// ENOENT where nothing has.
    pub(super) async fn find(&self, folder: &TracePath, name: &str) -> Result<FolderItem, Errno> {
        if let Some(known) = self.listings.get(folder, name) {
            return Ok(known);
        }
        let entries = self.list(folder).await?;
        entries.into_iter().find(|entry| entry.name == name).ok_or(Errno::ENOENT)
    }

    /// A file's text as it is now.
    pub(super) async fn read(&self, file: &TracePath) -> Result<Bytes, Errno> {
        self.within(self.client.get(&file.api())).await
    }

    /// Does what opening with O_TRUNC does.
    pub(super) async fn truncate(&self, file: &TracePath) -> Result<(), Errno> {
        self.send(Method::PUT, file, String::new()).await
    }

    /// Makes a folder.
    pub(super) async fn make_folder(&self, folder: &TracePath) -> Result<(), Errno> {
        self.send(Method::PUT, folder, String::new()).await
    }

    /// Removes a folder.
    pub(super) async fn remove_folder(&self, folder: &TracePath) -> Result<(), Errno> {
        let path = folder.api();
        let _change = self.listings.change();
        let removed = self.client.call(Method::DELETE, &path, Payload::Empty);
        self.within(removed).await.map(drop)
    }

    /// Writes to a file, as one write(2).
    pub(super) async fn write(&self, file: &TracePath, text: String) -> Result<(), Errno> {
        self.send(Method::POST, file, text).await
    }

    async fn send(&self, method: Method, file: &TracePath, text: String) -> Result<(), Errno> {
        let path = file.api();
        let _change = self.listings.change();
        let sent = self.client.call(method, &path, Payload::Text(text));
        self.within(sent).await.map(drop)
    }

    /// Pages of a file `trace_pipe_raw`, `max` at most, after so long a wait for the first event.
    pub(super) async fn pages(
        &self,
        file: &TracePath,
        max: usize,
        wait: Duration,
    ) -> Result<Bytes, Errno> {
        let path = file.api().query("pages", max).query("wait", wait.as_millis());
        self.within(self.client.get(&path)).await
    }

    /// A file that has no end, as it comes.
    pub(super) async fn follow(&self, file: &TracePath) -> Result<Incoming, Errno> {
        let path = file.api();
        let response = self.client.send(Method::GET, &path, Payload::Empty);
        Ok(self.within(response).await?.into_body())
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Errno> {
        match tokio::time::timeout(self.limit, work).await {
            Ok(done) => done.map_err(|error| errno_of(&error)),
            Err(_) => Err(Errno::ETIMEDOUT),
        }
    }
}

/// Lists a folder of the service without entries that no folder of this host could show.
pub(super) async fn list(
    client: &Client,
    folder: &TracePath,
) -> Result<Vec<FolderItem>, ClientError> {
    let answer = client.get(&folder.api()).await?;
    let listing: Listing = serde_json::from_slice(&answer)?;
    Ok(listing.entries.into_iter().filter_map(|entry| entry.read(folder)).collect())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;
    use crate::client::testing::Fake;

    #[tokio::test]
    async fn folders_are_read_and_odd_names_left_out() {
        let listing = r#"{"entries":[{"name":"trace","kind":"file","mode":"0640"},
            {"name":"events","kind":"directory","mode":"0750"},{"name":"..","kind":"directory","mode":"0750"},
            {"name":"a/b","kind":"file","mode":"0640"},{"name":"x","kind":"socket","mode":"0640"},
            {"name":"y","kind":"file","mode":"rw"}]}"#;
        let fake = Fake::text("/v1/tracefs", listing);
        let entries = Remote::new(fake.client()).list(&TracePath::root()).await.unwrap();
        let entry = |name: &str, kind, mode| FolderItem { name: name.to_owned(), kind, mode };
        let expected = [
            entry("trace", FileType::RegularFile, 0o640),
            entry("events", FileType::Directory, 0o750),
        ];
        assert_eq!(entries, expected);
    }

    #[tokio::test]
    async fn what_goes_wrong_is_an_errno() {
        let busy = async || (StatusCode::CONFLICT, r#"{"detail":"enabled","code":"EBUSY"}"#);
        let silent = async || std::future::pending::<&str>().await;
        let router = Router::new()
            .route("/v1/tracefs/kprobe_events", get(async || "").put(busy))
            .route("/v1/tracefs/trace", get(silent));
        let fake = Fake::serve(router);
        let remote = Remote::with_limit(fake.client(), Duration::from_millis(300));
        let file = |name| TracePath::root().child(name).unwrap();
        assert_eq!(remote.truncate(&file("kprobe_events")).await, Err(Errno::EBUSY));
        assert_eq!(remote.read(&file("trace")).await, Err(Errno::ETIMEDOUT));
        assert_eq!(remote.read(&file("none")).await, Err(Errno::ENOENT));
        assert_eq!(remote.list(&file("kprobe_events")).await, Err(Errno::EIO), "no listing");
        fake.stop();
        assert_eq!(remote.read(&file("trace")).await, Err(Errno::ECONNREFUSED));
    }
}
