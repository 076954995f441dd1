//! Threads of a machine. Each is of a kind, and calls the embedder's hook before its work.
//!
//! The threads of devices are started when their drivers start, by a vCPU's thread. A thread
//! inherits the seccomp filters of the one that starts it, and a vCPU's may allow less than a
//! device needs. So a machine with a hook has a thread that only starts others.
//!
//! A thread that panics stops the machine.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::failures::Failures;

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadKind {
    /// Runs a vCPU, the handlers of its hits, and the registers of devices.
    Vcpu,
    /// Starts the threads of devices.
    Starter,
    /// Serves a disk's queue.
    Disk,
    /// Carries out requests of a disk that wait for the host's medium.
    DiskRequest,
    /// Serves the queues of a network interface.
    Network,
    /// Serves the queues of the vsock device, and its sockets.
    Vsock,
    /// Serves the queues of the virtio console.
    Console,
    /// Serves the queue of the random numbers.
    Random,
}

impl ThreadKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Vcpu,
        Self::Starter,
        Self::Disk,
        Self::DiskRequest,
        Self::Network,
        Self::Vsock,
        Self::Console,
        Self::Random,
    ];

    /// The name of such a thread; the index of its vCPU follows in [`Self::Vcpu`]'s.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Starter => "thread starter",
            Self::Disk => "disk",
            Self::DiskRequest => "disk waits",
            Self::Network => "network",
            Self::Vsock => "vsock",
            Self::Console => "console",
            Self::Random => "random numbers",
        }
    }
}

/// Called in each thread of a machine before its work, for what holds for that thread alone: a
/// seccomp filter, a CPU set.
pub type ThreadHook = Arc<dyn Fn(ThreadKind) + Send + Sync>;

/// The way in which a machine starts its threads.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    hooked: Option<Arc<Hooked>>,
    failures: Failures,
}

struct Hooked {
    hook: ThreadHook,
    starter: Starter,
}

impl Threads {
    /// # Errors
    /// The system's, when no thread can be started.
    pub(crate) fn new(hook: Option<&ThreadHook>) -> io::Result<Self> {
        let failures = Failures::default();
        let hooked = |hook: &ThreadHook| -> io::Result<_> {
            let starter = Starter::new(Arc::clone(hook), failures.clone())?;
            Ok(Arc::new(Hooked { hook: Arc::clone(hook), starter }))
        };
        Ok(Self { hooked: hook.map(hooked).transpose()?, failures })
    }

    /// The embedder's hook, for a thread that is started in another way.
    pub(crate) fn hook(&self) -> Option<ThreadHook> {
        self.hooked.as_ref().map(|hooked| Arc::clone(&hooked.hook))
    }

    /// The failures of the threads.
    pub(crate) const fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Starts a thread. A panic in it is one of [`Self::failures`].
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        kind: ThreadKind,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let builder = Builder::new().name(kind.name().to_owned());
        let (hook, failures) = (self.hook(), self.failures.clone());
        let body = move || {
            let work = || {
                if let Some(hook) = hook {
                    hook(kind);
                }
                body()
            };
            failures.watch(kind.name(), work).unwrap_or_else(|panic| resume_unwind(panic))
        };
        let Some(hooked) = &self.hooked else { return builder.spawn(body) };
        let (reply, answer) = sync_channel(1);
        hooked.starter.run(move || {
            let started = builder.spawn(body);
            // The thread that asked waits for it.
            drop(reply.send(started));
        })?;
        answer.recv().map_err(|_| gone())?
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// The thread that starts others. It ends with this.
struct Starter {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Starter {
    fn new(hook: ThreadHook, failures: Failures) -> io::Result<Self> {
        let (tasks, queue): (_, Receiver<Task>) = channel();
        let kind = ThreadKind::Starter;
        let thread = Builder::new().name(kind.name().to_owned()).spawn(move || {
            let work = || {
                hook(kind);
                queue.iter().for_each(|task| task());
            };
            // A panic is reported: nothing else remains to do.
            drop(failures.watch(kind.name(), work));
        })?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    fn run(&self, task: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let sent = self.tasks.as_ref().map(|tasks| tasks.send(Box::new(task)));
        if let Some(Ok(())) = sent { Ok(()) } else { Err(gone()) }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts others has ended")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::current;

    use super::*;
    use crate::failures::tests::PATIENCE;

    #[test]
    fn each_thread_calls_the_hook_first_and_one_thread_starts_them() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let hook: ThreadHook = Arc::new(move |kind| {
            log.lock().unwrap().push((kind, current().name().unwrap().to_owned()));
        });
        let threads = Threads::new(Some(&hook)).unwrap();
        for kind in [ThreadKind::Disk, ThreadKind::Random] {
            let log = Arc::clone(&seen);
            let body = move || log.lock().unwrap().len();
            let hooked = threads.spawn(kind, body).unwrap().join().unwrap();
            assert_eq!(seen.lock().unwrap().last().unwrap().0, kind);
            assert_eq!(hooked, seen.lock().unwrap().len(), "before its work");
        }
        drop(threads);
        let all: Vec<_> = seen.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
        assert_eq!(all, [ThreadKind::Starter, ThreadKind::Disk, ThreadKind::Random]);
        assert!(seen.lock().unwrap().iter().all(|(kind, name)| kind.name() == name));
        assert_eq!(Arc::strong_count(&hook), 1, "the thread that starts others has ended");
    }

    #[test]
    fn without_a_hook_the_caller_starts_threads() {
        let threads = Threads::new(None).unwrap();
        assert!(threads.hook().is_none());
        let name = threads.spawn(ThreadKind::Vsock, || current().name().map(str::to_owned));
        assert_eq!(name.unwrap().join().unwrap().as_deref(), Some("vsock"));
    }

    /// A hook that panics in threads of this kind.
    fn panics_in(kind: ThreadKind) -> ThreadHook {
        Arc::new(move |own| assert!(own != kind, "as a bug would"))
    }

    #[test]
    fn a_thread_that_panics_is_a_failure_also_in_its_hook() {
        let threads = Threads::new(Some(&panics_in(ThreadKind::Console))).unwrap();
        let messages = threads.failures().messages();
        threads.spawn(ThreadKind::Vsock, || ()).unwrap().join().unwrap();
        let panics: fn() = || panic!("as a bug would");
        assert!(threads.spawn(ThreadKind::DiskRequest, panics).unwrap().join().is_err());
        assert!(threads.spawn(ThreadKind::Console, || ()).unwrap().join().is_err());
        let all: Vec<_> = messages.try_iter().collect();
        assert_eq!(all, ["the thread `disk waits` panicked", "the thread `console` panicked"]);
    }

    #[test]
    fn a_thread_starter_that_panics_is_a_failure_and_starts_nothing() {
        let threads = Threads::new(Some(&panics_in(ThreadKind::Starter))).unwrap();
        let messages = threads.failures().messages();
        assert_eq!(
            messages.recv_timeout(PATIENCE).unwrap(),
            "the thread `thread starter` panicked"
        );
        let error = threads.spawn(ThreadKind::Disk, || ()).unwrap_err();
        assert_eq!(error.to_string(), gone().to_string());
    }
}
