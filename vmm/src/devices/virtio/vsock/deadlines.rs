//! How long the guest has to answer a connection that the host's side asks for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use vmm_sys_util::timerfd::TimerFd;

/// The deadlines, in order, and a timer for the first of them.
pub(super) struct Deadlines<K> {
    timer: TimerFd,
    within: Duration,
    due: VecDeque<(Instant, K)>,
}

impl<K: Copy + PartialEq> Deadlines<K> {
    /// Of answers that have so much time each.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(within: Duration) -> io::Result<Self> {
        Ok(Self { timer: TimerFd::new()?, within, due: VecDeque::new() })
    }

    /// The timer's file: it is readable from the first deadline on.
    pub(super) fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    #[cfg(test)]
    pub(super) fn set_within(&mut self, within: Duration) {
        self.within = within;
    }

    #[cfg(test)]
    pub(super) fn expire_all(&mut self) {
        let now = Instant::now();
        self.due.iter_mut().for_each(|(deadline, _)| *deadline = now);
    }

    /// Awaits an answer from now on.
    pub(super) fn add(&mut self, key: K) {
        self.due.push_back((Instant::now() + self.within, key));
        if self.due.len() == 1 {
            self.arm();
        }
    }

    /// Awaits it no more.
    pub(super) fn remove(&mut self, key: K) {
        self.due.retain(|(_, due)| *due != key);
    }

    pub(super) fn clear(&mut self) {
        self.due.clear();
    }

    /// Takes the next whose time is over; sets the timer for those that remain.
    pub(super) fn next_expired(&mut self) -> Option<K> {
        if self.due.front().is_some_and(|(deadline, _)| *deadline <= Instant::now()) {
            return self.due.pop_front().map(|(_, key)| key);
        }
        self.arm();
        None
    }

    fn arm(&mut self) {
        let Some((deadline, _)) = self.due.front() else { return };
        // Zero would disarm it.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        if let Err(error) = self.timer.reset(left, None) {
            tracing::warn!(%error, "the timer of a vsock device");
        }
    }
}
