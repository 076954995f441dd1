//! The kernel's requests, answered from the service.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use hyper::body::Bytes;
use tokio::runtime;
use tokio::sync::watch;

use super::caller::{Caller, Wakes};
use super::handles::{Handle, OpenFolder};
use super::lines::WRITE_MAX;
use super::tree::{Change, Tree};

/// How long the kernel may believe what it knows of a file that is there. Whether it is, it asks
/// each time.
const ATTR_TTL: Duration = Duration::from_secs(1);

/// The service's files as a file system.
///
/// fuser calls it from one thread, which only starts a task for each request; the answer comes from
/// that task, whenever it is there. So no request waits for another one.
pub(super) struct TraceFs {
    tree: Arc<Tree>,
    runtime: runtime::Handle,
    /// Set when reads without an end are to end.
    closing: watch::Receiver<bool>,
    /// Set when the kernel asks no more.
    ended: watch::Sender<bool>,
}

impl TraceFs {
    /// Needs tokio's runtime for its tasks.
    pub(super) fn new(
        tree: Tree,
        closing: watch::Receiver<bool>,
        ended: watch::Sender<bool>,
    ) -> Self {
        Self { tree: Arc::new(tree), runtime: runtime::Handle::current(), closing, ended }
    }

    /// Does `work` for a task, and answers it. Only the task's end breaks that off: what ends in
    /// time does not give EINTR.
    fn answer<T: Send + 'static>(
        &self,
        request: &Request,
        work: impl Future<Output = Result<T, Errno>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let caller = Caller::of(request);
        self.runtime.spawn(async move { answer(caller.wait(Wakes::Death, work).await) });
    }

    fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.tree)
    }
}

/// Waits for the end of the mount.
async fn closed(mut closing: watch::Receiver<bool>) {
    // An error means that no receiver is left.
    let _ = closing.wait_for(|closing| *closing).await;
}

fn send_attr(done: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match done {
        // The root is asked for each time: so a dead mount shows as one at once.
        Ok(attr) if attr.ino == INodeNo::ROOT => reply.attr(&Duration::ZERO, &attr),
        Ok(attr) => reply.attr(&ATTR_TTL, &attr),
        Err(errno) => reply.error(errno),
    }
}

fn send_entry(done: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match done {
        Ok(attr) => reply.entry_with_ttls(&ATTR_TTL, &Duration::ZERO, &attr, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn send_data(done: Result<Bytes, Errno>, reply: ReplyData) {
    match done {
        Ok(data) => reply.data(&data),
        Err(errno) => reply.error(errno),
    }
}

fn send_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for TraceFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without the first send setattr, and those without the second lock a folder while
        // it is looked at.
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let max = u32::try_from(WRITE_MAX).expect("it is 64 KiB");
        config.set_max_write(max).map(drop).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (tree, name) = (self.tree(), name.to_str().map(str::to_owned));
        let work = async move { tree.look_up(parent, name).await };
        self.answer(request, work, |done| send_entry(done, reply));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let (tree, name) = (self.tree(), name.to_str().map(str::to_owned));
        let work = async move { tree.make_folder(parent, name).await };
        self.answer(request, work, |done| send_entry(done, reply));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (tree, name) = (self.tree(), name.to_str().map(str::to_owned));
        let work = async move { tree.remove_folder(parent, name).await };
        self.answer(request, work, |done| send_empty(done, reply));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.tree.forget(number, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let tree = self.tree();
        let work = async move { tree.attr(number).await };
        self.answer(request, work, |done| send_attr(done, reply));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = match size {
            _ if mode.is_some() || uid.is_some() || gid.is_some() => Change::Owner,
            Some(size) => Change::Size(size),
            None => Change::Nothing,
        };
        let tree = self.tree();
        let work = async move { tree.set_attr(number, change).await };
        self.answer(request, work, |done| send_attr(done, reply));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let tree = self.tree();
        let work = async move { tree.open(number, flags).await };
        self.answer(request, work, |done| match done {
            Ok((handle, how)) => reply.opened(handle, how),
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (caller, tree, closing) = (Caller::of(request), self.tree(), self.closing.clone());
        let (size, may_wait) = (size as usize, flags.0 & libc::O_NONBLOCK == 0);
        self.runtime.spawn(async move {
            let done = match tree.handles.get(handle).as_deref() {
                Ok(Handle::File(file)) => {
                    caller.wait(Wakes::Death, file.read(&tree.remote, offset, size)).await
                }
                Ok(Handle::Pipe(pipe)) => tokio::select! {
                    biased;
                    done = caller.wait(Wakes::Signal, pipe.read(&tree.remote, size, may_wait)) => done,
                    // As when the service ends it.
                    () = closed(closing) => Ok(Bytes::new()),
                },
                Ok(Handle::Raw(pipe)) => tokio::select! {
                    biased;
                    done = caller.wait(Wakes::Signal, pipe.read(&tree.remote, size, may_wait)) => done,
                    () = closed(closing) => Ok(Bytes::new()),
                },
                Ok(Handle::Folder(_)) => Err(Errno::EISDIR),
                Err(errno) => Err(*errno),
            };
            send_data(done, reply);
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        writer: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (tree, data) = (self.tree(), data.to_vec());
        let work = async move { tree.write(handle, &data, writer).await };
        self.answer(request, work, |done| match done {
            Ok(size) => reply.written(size),
            Err(errno) => reply.error(errno),
        });
    }

    fn flush(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        closer: LockOwner,
        reply: ReplyEmpty,
    ) {
        let tree = self.tree();
        // Also of a task that ends, whose files the kernel closes.
        self.runtime.spawn(async move { send_empty(tree.flush(handle, closer).await, reply) });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let tree = self.tree();
        self.runtime.spawn(async move { send_empty(tree.release(handle).await, reply) });
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.tree.path(number) {
            Ok(path) => {
                let handle = self.tree.handles.add(Handle::Folder(OpenFolder::new(path)));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let tree = self.tree();
        let work = async move { tree.entries(handle, offset).await };
        self.answer(request, work, move |done| match done {
            Ok(entries) => {
                // Where there are entries, the offset is below their number.
                for (entry, at) in entries.into_iter().zip(offset..) {
                    if reply.add(entry.number, at + 1, entry.kind, &entry.name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.tree.handles.remove(handle);
        reply.ok();
    }

    // Otherwise folders have only what the service puts there; errnos as of a folder of tracefs.

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EACCES);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EACCES);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
