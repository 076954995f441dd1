//! Threads that stand between the guest's blocking world and the service's.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use exoprobe_probes::Engine;
use exoprobe_vmm::OutputLog;
use tokio::sync::watch;

use super::closing::Growth;
use super::freed::Freed;
use crate::sandbox::seccomp::{Kind, Seccomp};

/// Between two looks at the memory that was freed.
const GIVE_BACK: Duration = Duration::from_secs(5);
/// How soon a log's watcher sees that it is to end.
const WATCH: Duration = Duration::from_millis(100);

/// The name of a worker that has ended by itself.
pub(super) type Failed = watch::Sender<Option<&'static str>>;

/// Waits until a worker ends by itself, which none should. Returns its name.
pub(super) async fn failed(failed: &Failed) -> &'static str {
    let mut changes = failed.subscribe();
    loop {
        if let Some(name) = *changes.borrow_and_update() {
            return name;
        }
        // Never an error: `failed` is the sender.
        let _ = changes.changed().await;
    }
}

/// A thread that ends when this is dropped.
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Never an error: the thread catches its panics.
            let _ = thread.join();
        }
    }
}

/// Starts workers.
#[derive(Clone, Copy)]
pub(super) struct Workers<'a> {
    /// Their filters.
    pub(super) seccomp: &'a Seccomp,
    /// Gets the name of one that ends by itself.
    pub(super) failed: &'a Failed,
}

impl Workers<'_> {
    /// Runs `body` in a thread called `name`. When it ends, other than by `stop`, `failed` has the
    /// name.
    fn spawn(
        self,
        name: &'static str,
        kind: Kind,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, failed, seccomp) =
            (Arc::clone(&stop), self.failed.clone(), self.seccomp.clone());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            seccomp.enter(kind);
            let outcome = catch_unwind(AssertUnwindSafe(|| body(&flag)));
            if outcome.is_err() || !flag.load(Ordering::Acquire) {
                failed.send_replace(Some(name));
            }
        })?;
        Ok(Worker { stop, thread: Some(thread) })
    }

    /// Does the engine's regular work: [`Engine::tick`].
    pub(super) fn drain(self, engine: Arc<Engine>) -> io::Result<Worker> {
        self.spawn("drainer", Kind::Drainer, move |stop| {
            while !stop.load(Ordering::Acquire) {
                thread::park_timeout(engine.tick());
            }
        })
    }

    /// Gives memory that was freed back to the host.
    pub(super) fn give_back(self) -> io::Result<Worker> {
        self.spawn("memory", Kind::Memory, |stop| {
            let mut freed = Freed::default();
            while !stop.load(Ordering::Acquire) {
                thread::park_timeout(GIVE_BACK);
                freed.give_back();
            }
        })
    }

    /// Notifies async readers when a log has grown: it wakes only threads.
    pub(super) fn watch_output(
        self,
        name: &'static str,
        log: &Arc<OutputLog>,
    ) -> io::Result<(Worker, Growth)> {
        let log = Arc::clone(log);
        let sender = watch::Sender::new(log.end());
        let growth = sender.subscribe();
        let worker = self.spawn(name, Kind::Output, move |stop| {
            let mut seen = log.end();
            sender.send_replace(seen);
            while !stop.load(Ordering::Acquire) {
                let end = log.wait(seen, WATCH).end();
                if end != seen {
                    seen = end;
                    sender.send_replace(end);
                }
            }
        })?;
        Ok((worker, growth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_panics_or_returns_is_reported_and_one_that_is_stopped_is_not() {
        let (panics, returns, stops) = (Failed::new(None), Failed::new(None), Failed::new(None));
        let off = Seccomp::off();
        let spawn = |name, failed, body: Box<dyn FnOnce(&AtomicBool) + Send>| {
            Workers { seccomp: &off, failed }.spawn(name, Kind::Memory, body).unwrap()
        };
        drop(spawn("panics", &panics, Box::new(|_| panic!("as a bug would"))));
        assert_eq!(*panics.borrow(), Some("panics"));
        let worker = spawn("returns", &returns, Box::new(|_| ()));
        while returns.borrow().is_none() {
            thread::yield_now();
        }
        drop(worker);
        let until_stopped = |stop: &AtomicBool| {
            while !stop.load(Ordering::Acquire) {
                thread::park_timeout(WATCH);
            }
        };
        drop(spawn("stops", &stops, Box::new(until_stopped)));
        assert_eq!(*stops.borrow(), None);
    }

    #[tokio::test]
    async fn the_end_of_a_worker_is_waited_for() {
        let ended = Failed::new(None);
        let waiting = failed(&ended);
        let off = Seccomp::off();
        let workers = Workers { seccomp: &off, failed: &ended };
        let worker = workers.spawn("drainer", Kind::Drainer, |_| {
            thread::sleep(WATCH);
            panic!("as a bug would")
        });
        assert_eq!(waiting.await, "drainer");
        assert_eq!(failed(&ended).await, "drainer", "also who comes later learns of it");
        drop(worker);
    }
}
