//! Threads that stand between the guest's blocking world and the service's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use exoprobe_probes::Engine;
use exoprobe_vmm::Vm;
use tokio::sync::watch;

use super::Growth;

/// How long hits may wait in the rings while there are probes.
const DRAIN_BUSY: Duration = Duration::from_millis(5);
/// So many hits at once, and the next are not waited for: a ring holds 4,000 records of four arguments.
const MANY: usize = 500;
/// How soon the drainer sees that there are probes.
const DRAIN_IDLE: Duration = Duration::from_millis(50);
/// How long the guest may have rewritten text under a probe, or a probe could be placed or optimized, before the
/// engine looks.
const PATROL: Duration = Duration::from_millis(100);
/// How soon a port's watcher sees that it is to end.
const WATCH: Duration = Duration::from_millis(100);

/// A thread that ends when this is dropped.
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn spawn(name: &str, body: impl FnOnce(&AtomicBool) + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || body(&flag))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of the service panicked");
            }
        }
    }
}

/// Moves hits from the rings into the event store as they come, looks after the probes' text, and optimizes.
pub(super) fn drain(engine: Arc<Engine>) -> io::Result<Worker> {
    Worker::spawn("drainer", move |stop| {
        let mut patrolled = Instant::now();
        while !stop.load(Ordering::Acquire) {
            let moved = engine.drain();
            if patrolled.elapsed() >= PATROL {
                engine.patrol();
                engine.optimize();
                patrolled = Instant::now();
            }
            let rest = match engine.has_probes() {
                true if moved > MANY => Duration::ZERO,
                true => DRAIN_BUSY,
                false => DRAIN_IDLE,
            };
            thread::park_timeout(rest);
        }
    })
}

/// Tells async readers when serial port `port` has more: its log wakes only threads.
pub(super) fn watch_port(vm: &Vm, port: usize) -> io::Result<(Worker, Growth)> {
    let log = Arc::clone(vm.serial(port).expect("a machine has ports 0 and 1").log());
    let sender = watch::Sender::new(log.end());
    let growth = sender.subscribe();
    let worker = Worker::spawn(&format!("serial-{port}"), move |stop| {
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
