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

impl Worker {
    /// Runs `body` in a thread called `name`. When it ends, other than by `stop`, `failed` has the
    /// name.
    fn spawn(
        name: &'static str,
        failed: &Failed,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, failed) = (Arc::clone(&stop), failed.clone());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| body(&flag)));
            if outcome.is_err() || !flag.load(Ordering::Acquire) {
                failed.send_replace(Some(name));
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
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

/// Does the engine's regular work: [`Engine::tick`].
pub(super) fn drain(engine: Arc<Engine>, failed: &Failed) -> io::Result<Worker> {
    Worker::spawn("drainer", failed, move |stop| {
        while !stop.load(Ordering::Acquire) {
            thread::park_timeout(engine.tick());
        }
    })
}

/// Gives memory that was freed back to the host.
pub(super) fn give_back(failed: &Failed) -> io::Result<Worker> {
    Worker::spawn("memory", failed, |stop| {
        let mut freed = Freed::default();
        while !stop.load(Ordering::Acquire) {
            thread::park_timeout(GIVE_BACK);
            freed.give_back();
        }
    })
}

/// Notifies async readers when a log has grown: it wakes only threads.
pub(super) fn watch_output(
    name: &'static str,
    log: &Arc<OutputLog>,
    failed: &Failed,
) -> io::Result<(Worker, Growth)> {
    let log = Arc::clone(log);
    let sender = watch::Sender::new(log.end());
    let growth = sender.subscribe();
    let worker = Worker::spawn(name, failed, move |stop| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_panics_or_returns_is_reported_and_one_that_is_stopped_is_not() {
        let (panics, returns, stops) = (Failed::new(None), Failed::new(None), Failed::new(None));
        drop(Worker::spawn("panics", &panics, |_| panic!("as a bug would")).unwrap());
        assert_eq!(*panics.borrow(), Some("panics"));
        let worker = Worker::spawn("returns", &returns, |_| ()).unwrap();
        while returns.borrow().is_none() {
            thread::yield_now();
        }
        drop(worker);
        let until_stopped = |stop: &AtomicBool| {
            while !stop.load(Ordering::Acquire) {
                thread::park_timeout(WATCH);
            }
        };
        drop(Worker::spawn("stops", &stops, until_stopped).unwrap());
        assert_eq!(*stops.borrow(), None);
    }

    #[tokio::test]
    async fn the_end_of_a_worker_is_waited_for() {
        let ended = Failed::new(None);
        let waiting = failed(&ended);
        let worker = Worker::spawn("drainer", &ended, |_| {
            thread::sleep(WATCH);
            panic!("as a bug would")
        });
        assert_eq!(waiting.await, "drainer");
        assert_eq!(failed(&ended).await, "drainer", "also who comes later learns of it");
        drop(worker);
    }
}
