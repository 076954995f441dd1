//! The files and folders that are mounted, by the kernel's numbers for them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, LockOwner, OpenAccMode, OpenFlags,
};

use tokio::time::{Instant, sleep};

use super::handles::{FolderEntry, Handle, Handles, OpenFile};
use super::inodes::Inodes;
use super::path::TracePath;
use super::pipe::{self, Pipe};
use super::raw::{self, RawPipe};
use super::remote::Remote;

/// How long a removal waits for files to be released, which the kernel asks for some time after the
/// last task has closed them.
const RELEASED: Duration = Duration::from_millis(500);
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(10);
/// Permissions of the root, which no folder lists.
const ROOT_MODE: u16 = 0o750;

/// The service's files, and what the kernel knows and has open of them.
pub(super) struct Tree {
    pub(super) remote: Remote,
    pub(super) handles: Handles,
    inodes: Mutex<Inodes>,
    owner: (u32, u32),
    mounted: SystemTime,
}

impl Tree {
    /// Files of the user and group `owner`.
    pub(super) fn new(remote: Remote, owner: (u32, u32)) -> Self {
        let (inodes, handles) = (Mutex::new(Inodes::new()), Handles::default());
        Self { remote, handles, inodes, owner, mounted: SystemTime::now() }
    }

    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// ESTALE for a number that the kernel said it has forgotten.
    pub(super) fn path(&self, number: INodeNo) -> Result<TracePath, Errno> {
        self.inodes().path(number).ok_or(Errno::ESTALE)
    }

    pub(super) fn forget(&self, number: INodeNo, lookups: u64) {
        self.inodes().forget(number, lookups);
    }

    /// Finds an entry of a folder by name, with a reference of the kernel's.
    pub(super) async fn look_up(
        &self,
        folder: INodeNo,
        name: Option<String>,
    ) -> Result<FileAttr, Errno> {
        let folder = self.path(folder)?;
        let path = name.and_then(|name| folder.child(&name)).ok_or(Errno::ENOENT)?;
        let attr = self.find(&path).await?;
        Ok(FileAttr { ino: self.inodes().look_up(&path), ..attr })
    }

    /// Makes a folder, and finds it as [`Self::look_up`] does.
    ///
    /// # Errors
    /// EPERM elsewhere than in the folder of trace instances, as in tracefs.
    pub(super) async fn make_folder(
        &self,
        folder: INodeNo,
        name: Option<String>,
    ) -> Result<FileAttr, Errno> {
        let above = self.path(folder)?;
        if !above.has_instances() {
            return Err(Errno::EPERM);
        }
        // A name that is no text, or has a line's end, is none of the service's.
        let path = name.as_ref().and_then(|name| above.child(name)).ok_or(Errno::EINVAL)?;
        self.remote.make_folder(&path).await?;
        self.look_up(folder, name).await
    }

    /// Removes a folder.
    ///
    /// # Errors
    /// EPERM elsewhere than in the folder of trace instances; EBUSY while a file in it is open in
    /// this mount.
    pub(super) async fn remove_folder(
        &self,
        folder: INodeNo,
        name: Option<String>,
    ) -> Result<(), Errno> {
        let above = self.path(folder)?;
        if !above.has_instances() {
            return Err(Errno::EPERM);
        }
        let path = name.and_then(|name| above.child(&name)).ok_or(Errno::ENOENT)?;
        let end = Instant::now() + RELEASED;
        while self.handles.has_open_in(&path) {
            if Instant::now() >= end {
                return Err(Errno::EBUSY);
            }
            sleep(LOOK).await;
        }
        self.remote.remove_folder(&path).await
    }

    pub(super) async fn attr(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let path = self.path(number)?;
        Ok(FileAttr { ino: number, ..self.find(&path).await? })
    }

    /// Finds a file or folder by its parent.
    async fn find(&self, path: &TracePath) -> Result<FileAttr, Errno> {
        let Some((folder, name)) = path.parent() else { return Ok(self.root()) };
        let entry = self.remote.find(&folder, name).await?;
        Ok(self.attr_of(entry.kind, entry.mode))
    }

    /// The root: there as long as the mount is, whether the service is or not.
    fn root(&self) -> FileAttr {
        self.attr_of(FileType::Directory, ROOT_MODE)
    }

    fn attr_of(&self, kind: FileType, perm: u16) -> FileAttr {
        let (uid, gid) = self.owner;
        FileAttr {
            ino: INodeNo::ROOT,
            // As in tracefs: how long a text is, is known when it is read.
            size: 0,
            blocks: 0,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    pub(super) async fn open(&self, number: INodeNo, flags: OpenFlags) -> Result<Opened, Errno> {
        let path = self.path(number)?;
        if flags.0 & libc::O_TRUNC != 0 {
            self.remote.truncate(&path).await?;
        }
        let mut how = FopenFlags::FOPEN_DIRECT_IO;
        let name = path.parent().map(|(_, name)| name.to_owned()).unwrap_or_default();
        let pipe = name == pipe::NAME || name == raw::NAME;
        if pipe {
            // Without a position, so that two readers of one opening wait here and not for its
            // lock.
            how |= FopenFlags::FOPEN_NONSEEKABLE | FopenFlags::FOPEN_STREAM;
        }
        let handle = match name.as_str() {
            pipe::NAME => Handle::Pipe(Pipe::new(path)),
            raw::NAME => Handle::Raw(RawPipe::new(path)),
            _ => Handle::File(OpenFile::new(path)),
        };
        if pipe || flags.acc_mode() == OpenAccMode::O_RDONLY {
            how |= FopenFlags::FOPEN_NOFLUSH;
        }
        Ok((self.handles.add(handle), how))
    }

    pub(super) async fn write(
        &self,
        handle: FileHandle,
        data: &[u8],
        writer: Option<LockOwner>,
    ) -> Result<u32, Errno> {
        match &*self.handles.get(handle)? {
            Handle::File(file) => file.write(&self.remote, data, writer).await?,
            Handle::Pipe(_) | Handle::Raw(_) => return Err(Errno::EACCES),
            Handle::Folder(_) => return Err(Errno::EISDIR),
        }
        u32::try_from(data.len()).map_err(|_| Errno::EINVAL)
    }

    /// `closer` closes the file; others may have it open still.
    pub(super) async fn flush(&self, handle: FileHandle, closer: LockOwner) -> Result<(), Errno> {
        match &*self.handles.get(handle)? {
            Handle::File(file) => file.flush(&self.remote, Some(closer)).await,
            Handle::Pipe(_) | Handle::Raw(_) | Handle::Folder(_) => Ok(()),
        }
    }

    /// Nobody has it open any more.
    pub(super) async fn release(&self, handle: FileHandle) -> Result<(), Errno> {
        let open = self.handles.get(handle)?;
        self.handles.remove(handle);
        match &*open {
            Handle::File(file) => file.flush(&self.remote, None).await,
            Handle::Pipe(_) | Handle::Raw(_) | Handle::Folder(_) => Ok(()),
        }
    }

    pub(super) async fn set_attr(
        &self,
        number: INodeNo,
        change: Change,
    ) -> Result<FileAttr, Errno> {
        match change {
            // From truncate(2), or from open(2) where the kernel does not hand its O_TRUNC over.
            Change::Size(0) => self.remote.truncate(&self.path(number)?).await?,
            Change::Size(_) => return Err(Errno::EINVAL),
            Change::Owner => return Err(Errno::EPERM),
            Change::Nothing => {}
        }
        self.attr(number).await
    }

    /// A folder as it is shown, read anew at its beginning.
    pub(super) async fn entries(
        &self,
        handle: FileHandle,
        offset: u64,
    ) -> Result<Vec<FolderEntry>, Errno> {
        let handle = self.handles.get(handle)?;
        let Handle::Folder(folder) = &*handle else { return Err(Errno::ENOTDIR) };
        let mut entries = folder.entries.lock().await;
        if offset == 0 {
            *entries = self.show(&folder.path).await?;
        }
        let begin = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        Ok(entries.iter().skip(begin).cloned().collect())
    }

    async fn show(&self, folder: &TracePath) -> Result<Vec<FolderEntry>, Errno> {
        let listed = self.remote.list(folder).await?;
        let inodes = self.inodes();
        let above = folder.parent().map(|(above, _)| above).unwrap_or_default();
        let own = [(folder, "."), (&above, "..")].map(|(path, name)| FolderEntry {
            number: inodes.number(path),
            kind: FileType::Directory,
            name: name.to_owned(),
        });
        let listed = listed.into_iter().filter_map(|entry| {
            let number = inodes.number(&folder.child(&entry.name)?);
            Some(FolderEntry { number, kind: entry.kind, name: entry.name })
        });
        Ok(own.into_iter().chain(listed).collect())
    }
}

/// A handle, and how the kernel is to treat it.
pub(super) type Opened = (FileHandle, FopenFlags);

/// A request of setattr.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Nothing,
    Size(u64),
    /// Owner or permissions, which are the service's.
    Owner,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;
    use crate::client::testing::Fake;
    use crate::mount::handles::OpenFolder;

    const ROOT: &str = r#"{"entries":[{"name":"trace","kind":"file","mode":"0640"},
        {"name":"trace_pipe","kind":"file","mode":"0440"},{"name":"events","kind":"directory","mode":"0750"}]}"#;
    const EVENTS: &str = r#"{"entries":[{"name":"enable","kind":"file","mode":"0640"}]}"#;

    /// A tree, and how often `trace` was emptied.
    fn tree() -> (Fake, Tree, Arc<Mutex<usize>>) {
        let emptied = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&emptied);
        let empty = async move |body: String| {
            assert_eq!(body, "");
            *counted.lock().unwrap() += 1;
            StatusCode::NO_CONTENT
        };
        let router = Router::new()
            .route("/v1/tracefs", get(async || ROOT))
            .route("/v1/tracefs/events", get(async || EVENTS))
            .route("/v1/tracefs/trace", get(async || "").put(empty));
        let fake = Fake::serve(router);
        let tree = Tree::new(Remote::new(fake.client()), (7, 8));
        (fake, tree, emptied)
    }

    async fn number(tree: &Tree, folder: INodeNo, name: &str) -> Result<INodeNo, Errno> {
        tree.look_up(folder, Some(name.to_owned())).await.map(|attr| attr.ino)
    }

    #[tokio::test]
    async fn what_a_file_is_comes_from_its_folder() {
        let (fake, tree, _) = tree();
        let events = tree.look_up(INodeNo::ROOT, Some("events".to_owned())).await.unwrap();
        assert_eq!((events.kind, events.perm), (FileType::Directory, 0o750));
        let enable = tree.look_up(events.ino, Some("enable".to_owned())).await.unwrap();
        assert_eq!((enable.kind, enable.perm, enable.size), (FileType::RegularFile, 0o640, 0));
        assert_eq!((enable.uid, enable.gid), (7, 8));
        assert_eq!(tree.attr(enable.ino).await.unwrap(), enable);
        for name in ["none", "..", "a/b"] {
            assert_eq!(number(&tree, events.ino, name).await, Err(Errno::ENOENT), "{name}");
        }
        assert_eq!(tree.look_up(INodeNo::ROOT, None).await.err(), Some(Errno::ENOENT));
        tree.forget(enable.ino, 1);
        assert_eq!(tree.attr(enable.ino).await, Err(Errno::ESTALE));
        fake.stop();
        tree.remote.truncate(&TracePath::root()).await.unwrap_err();
        assert_eq!(tree.attr(events.ino).await, Err(Errno::ECONNREFUSED));
        assert_eq!(tree.attr(INodeNo::ROOT).await.unwrap().kind, FileType::Directory);
    }

    /// The folder `events` as a test wants it, and how often folders were asked for.
    fn counting(names: &Arc<Mutex<Vec<&'static str>>>) -> (Fake, Arc<Mutex<usize>>) {
        let (asked, names) = (Arc::new(Mutex::new(0)), Arc::clone(names));
        let [of_root, of_events] = [Arc::clone(&asked), Arc::clone(&asked)];
        let root = async move || {
            *of_root.lock().unwrap() += 1;
            ROOT
        };
        let events = async move || {
            *of_events.lock().unwrap() += 1;
            let entry = |name| format!(r#"{{"name":"{name}","kind":"file","mode":"0640"}}"#);
            let entries: Vec<String> = names.lock().unwrap().iter().map(entry).collect();
            format!(r#"{{"entries":[{}]}}"#, entries.join(","))
        };
        let router = Router::new()
            .route("/v1/tracefs", get(root))
            .route("/v1/tracefs/events", get(events))
            .route("/v1/tracefs/trace", get(async || "").put(async || StatusCode::NO_CONTENT));
        (Fake::serve(router), asked)
    }

    #[tokio::test]
    async fn parts_of_paths_are_not_asked_for_each_time_and_what_is_not_known_is() {
        let names = Arc::new(Mutex::new(vec!["a", "b"]));
        let (fake, asked) = counting(&names);
        let hour = std::time::Duration::from_secs(3600);
        let tree = Tree::new(Remote::with_listings(fake.client(), hour), (7, 8));
        for _ in 0..100 {
            let events = number(&tree, INodeNo::ROOT, "events").await.unwrap();
            number(&tree, events, "a").await.unwrap();
            number(&tree, events, "b").await.unwrap();
        }
        assert_eq!(*asked.lock().unwrap(), 2, "one for each folder");
        let events = number(&tree, INodeNo::ROOT, "events").await.unwrap();
        *names.lock().unwrap() = vec!["c"];
        assert!(number(&tree, events, "a").await.is_ok(), "it was there a moment ago");
        assert!(number(&tree, events, "c").await.is_ok(), "what is new is found at once");
        assert_eq!(number(&tree, events, "a").await, Err(Errno::ENOENT));
        *names.lock().unwrap() = vec![];
        let trace = number(&tree, INodeNo::ROOT, "trace").await.unwrap();
        tree.set_attr(trace, Change::Size(0)).await.unwrap();
        assert_eq!(number(&tree, events, "c").await, Err(Errno::ENOENT), "something was written");
    }

    #[tokio::test]
    async fn a_truncating_open_empties_once_and_gives_its_error() {
        let (_fake, tree, emptied) = tree();
        let trace = number(&tree, INodeNo::ROOT, "trace").await.unwrap();
        let write = OpenFlags(libc::O_WRONLY | libc::O_TRUNC);
        let (handle, how) = tree.open(trace, write).await.unwrap();
        assert_eq!((*emptied.lock().unwrap(), how), (1, FopenFlags::FOPEN_DIRECT_IO));
        tree.handles.remove(handle);
        let pipe = number(&tree, INodeNo::ROOT, "trace_pipe").await.unwrap();
        assert_eq!(tree.open(pipe, write).await, Err(Errno::ENOENT), "the fake has none");
        assert_eq!(tree.set_attr(trace, Change::Size(0)).await.unwrap().ino, trace);
        assert_eq!(*emptied.lock().unwrap(), 2);
        assert_eq!(tree.set_attr(trace, Change::Size(1)).await, Err(Errno::EINVAL));
        assert_eq!(tree.set_attr(trace, Change::Owner).await, Err(Errno::EPERM));
        assert!(tree.set_attr(trace, Change::Nothing).await.is_ok());
        assert_eq!(*emptied.lock().unwrap(), 2);
    }

    #[tokio::test]
    async fn a_folder_is_read_from_its_beginning_on() {
        let (fake, tree, _) = tree();
        let events = number(&tree, INodeNo::ROOT, "events").await.unwrap();
        let path = tree.path(events).unwrap();
        let handle = tree.handles.add(Handle::Folder(OpenFolder::new(path)));
        let entries = tree.entries(handle, 0).await.unwrap();
        let shown: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.number)).collect();
        let enable = number(&tree, events, "enable").await.unwrap();
        assert_eq!(shown, [(".", events), ("..", INodeNo::ROOT), ("enable", enable)]);
        fake.stop();
        assert_eq!(tree.entries(handle, 2).await.unwrap(), entries[2..]);
        assert_eq!(tree.entries(handle, 3).await.unwrap(), []);
        assert_eq!(tree.entries(handle, 0).await, Err(Errno::ECONNREFUSED));
    }

    #[tokio::test]
    async fn folders_are_made_and_removed_among_instances_alone() {
        let made = Arc::new(Mutex::new(false));
        let [listed, by_put, by_delete] = [(); 3].map(|()| Arc::clone(&made));
        let list = async move || match *listed.lock().unwrap() {
            true => r#"{"entries":[{"name":"foo","kind":"directory","mode":"0750"}]}"#,
            false => r#"{"entries":[]}"#,
        };
        let put = async move || {
            *by_put.lock().unwrap() = true;
            StatusCode::NO_CONTENT
        };
        let delete = async move || {
            *by_delete.lock().unwrap() = false;
            StatusCode::NO_CONTENT
        };
        let root = r#"{"entries":[{"name":"instances","kind":"directory","mode":"0750"}]}"#;
        let router = Router::new()
            .route("/v1/tracefs", get(async move || root))
            .route("/v1/tracefs/instances", get(list))
            .route("/v1/tracefs/instances/foo", get(async || "").put(put).delete(delete));
        let fake = Fake::serve(router);
        let hour = std::time::Duration::from_secs(3600);
        let tree = Tree::new(Remote::with_listings(fake.client(), hour), (7, 8));
        let foo = || Some("foo".to_owned());
        assert_eq!(tree.make_folder(INodeNo::ROOT, foo()).await.err(), Some(Errno::EPERM));
        let instances = number(&tree, INodeNo::ROOT, "instances").await.unwrap();
        assert_eq!(number(&tree, instances, "foo").await, Err(Errno::ENOENT));
        let folder = tree.make_folder(instances, foo()).await.unwrap();
        assert_eq!((folder.kind, folder.perm), (FileType::Directory, 0o750));
        assert_eq!(number(&tree, instances, "foo").await, Ok(folder.ino));
        assert_eq!(tree.make_folder(instances, None).await.err(), Some(Errno::EINVAL));
        assert_eq!(tree.make_folder(folder.ino, foo()).await.err(), Some(Errno::EPERM));
        assert_eq!(tree.remove_folder(INodeNo::ROOT, foo()).await, Err(Errno::EPERM));
        let pipe = tree.path(folder.ino).unwrap().child("trace_pipe").unwrap();
        let open = tree.handles.add(Handle::Pipe(Pipe::new(pipe)));
        assert_eq!(tree.remove_folder(instances, foo()).await, Err(Errno::EBUSY));
        let (removed, ()) = tokio::join!(tree.remove_folder(instances, foo()), async {
            sleep(2 * LOOK).await;
            tree.handles.remove(open);
        });
        assert_eq!(removed, Ok(()), "it was released meanwhile");
        assert_eq!(number(&tree, instances, "foo").await, Err(Errno::ENOENT));
    }
}
