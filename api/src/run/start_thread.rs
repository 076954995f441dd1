//! The thread that makes the service. It has no filter of system calls, for it opens devices, binds
//! sockets and makes the machine; so it ends before the guest runs.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

type Task = Box<dyn FnOnce() + Send>;

/// The thread, which waits for work.
pub(super) struct StartThread {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

impl StartThread {
    /// Starts it, with the filters of this thread.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn spawn() -> io::Result<Self> {
        let (tasks, queue): (_, Receiver<Task>) = channel();
        let thread = Builder::new().name("start".to_owned());
        let thread = thread.spawn(move || queue.iter().for_each(|task| task()))?;
        Ok(Self { tasks, thread })
    }

    /// Does `work` there, in the context of this task's runtime. `work` must not have the runtime
    /// start a thread, which would be without a filter.
    ///
    /// # Errors
    /// [`io::ErrorKind::Other`] if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (reply, answer) = oneshot::channel();
        let runtime = Handle::current();
        let task = move || {
            let _context = runtime.enter();
            // No task waits any more once a signal has come.
            drop(reply.send(work()));
        };
        let sent = self.tasks.send(Box::new(task)).is_ok();
        let panicked = || io::Error::other("the thread that starts the service panicked");
        if sent { answer.await.map_err(|_| panicked()) } else { Err(panicked()) }
    }

    /// Returns once it has ended.
    pub(super) fn end(self) {
        drop(self.tasks);
        // A panic was reported already.
        drop(self.thread.join());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn it_answers_until_it_panics() {
        let start = StartThread::spawn().unwrap();
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(start.run(name).await.unwrap().as_deref(), Some("start"));
        start.run(|| Handle::current().spawn(async {})).await.unwrap().await.unwrap();
        for _ in 0..2 {
            let error = start.run(|| panic!("as a bug would")).await.unwrap_err();
            assert!(error.to_string().contains("panicked"), "{error}");
        }
        start.end();
    }
}
