//! Threads of a disk that wait for the host's medium: each carries out one request at a time. A
//! request that panics has no outcome: it stops the machine, as each panic of a device does.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::threads::{ThreadKind, Threads};

/// Threads of a disk, and so the most requests under way.
pub(super) const THREADS: usize = 16;

/// Outcomes of requests, `None` after a panic; and the file that is readable when there are some.
struct Done<D> {
    all: Mutex<Vec<Option<D>>>,
    event: EventFd,
}

impl<D> Done<D> {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<D>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, done: Option<D>) {
        self.lock().push(done);
        // A counter that is full is readable, too.
        drop(self.event.write(1));
    }
}

/// The threads. They end when the pool does, after the requests that they have.
pub(super) struct Pool<J, D> {
    jobs: Option<Sender<J>>,
    threads: Vec<JoinHandle<()>>,
    done: Arc<Done<D>>,
    under_way: usize,
}

impl<J: Send + 'static, D: Send + 'static> Pool<J, D> {
    /// Starts the threads, by `starter`, which carry requests out by `work`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(
        starter: &Threads,
        work: impl Fn(J) -> D + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let done = Arc::new(Done { all: Mutex::default(), event: EventFd::new(EFD_NONBLOCK)? });
        let (receiver, work) = (Arc::new(Mutex::new(receiver)), Arc::new(work));
        let mut threads = Vec::with_capacity(THREADS);
        let kind = ThreadKind::DiskRequest;
        for _ in 0..THREADS {
            let (receiver, work) = (Arc::clone(&receiver), Arc::clone(&work));
            let (done, failures) = (Arc::clone(&done), starter.failures().clone());
            threads.push(starter.spawn(kind, move || {
                while let Some(job) = next(&receiver) {
                    done.push(failures.watch(kind.name(), || work(job)).ok());
                }
            })?);
        }
        Ok(Self { jobs: Some(sender), threads, done, under_way: 0 })
    }

    /// The file that is readable when requests are done.
    pub(super) fn fd(&self) -> RawFd {
        self.done.event.as_raw_fd()
    }

    /// Returns true if a thread is free for a request more than the `kept` ones.
    pub(super) const fn has_room(&self, kept: usize) -> bool {
        self.under_way + kept < THREADS
    }

    /// Returns true if no request is under way.
    pub(super) const fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Requests handed over whose outcomes were not taken.
    #[cfg(test)]
    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Hands a request to a thread. There must be room.
    pub(super) fn hand_over(&mut self, job: J) {
        self.under_way += 1;
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        // They end with the pool alone.
        debug_assert!(matches!(sent, Some(Ok(()))), "no thread");
    }

    /// Takes the outcomes since the call before.
    pub(super) fn take_done(&mut self) -> Vec<D> {
        drop(self.done.event.read());
        let done = std::mem::take(&mut *self.done.lock());
        self.under_way -= done.len();
        done.into_iter().flatten().collect()
    }

    /// Waits for all requests under way, and ends the threads. Returns the outcomes that remain.
    pub(super) fn finish(&mut self) -> Vec<D> {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        self.take_done()
    }
}

impl<J, D> Drop for Pool<J, D> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// The next request; `None` at the end. One thread waits for it, the others for that thread.
fn next<J>(jobs: &Mutex<Receiver<J>>) -> Option<J> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::failures::tests::PATIENCE;

    #[test]
    fn a_request_that_panics_is_a_failure_and_frees_its_thread() {
        let threads = Threads::default();
        let messages = threads.failures().messages();
        let work = |job: usize| {
            assert!(job.is_multiple_of(2), "as a bug would");
            job
        };
        let mut pool = Pool::start(&threads, work).unwrap();
        let (mut outcomes, begun) = (Vec::new(), Instant::now());
        // Each thread may get more than one that panics.
        for job in 0..THREADS * 4 {
            while !pool.has_room(0) {
                assert!(begun.elapsed() < PATIENCE, "a thread is never free again");
                outcomes.extend(pool.take_done());
            }
            pool.hand_over(job);
        }
        outcomes.extend(pool.finish());
        assert!(pool.is_idle());
        outcomes.sort_unstable();
        assert!(outcomes.into_iter().eq((0..THREADS * 4).step_by(2)));
        let all: Vec<_> = messages.try_iter().collect();
        assert_eq!(all, vec!["the thread `disk waits` panicked"; THREADS * 2]);
    }
}
