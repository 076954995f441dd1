//! Failures of a machine's threads other than the vCPUs': each stops the machine.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Stops the machine; gets the message.
type Stop = Box<dyn Fn(String) + Send>;

#[derive(Default)]
struct State {
    stop: Option<Stop>,
    /// The first failure before `stop` was set: devices of a snapshot start before the machine.
    early: Option<String>,
}

/// The way in which threads report that they have failed.
#[derive(Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<State>>);

impl Failures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `stop` for each failure from now on, and for the first one until now. A failed thread
    /// calls it: it must not wait for another thread, which may wait for the end of that one.
    pub(crate) fn on_failure(&self, stop: impl Fn(String) + Send + 'static) {
        let mut state = self.lock();
        if let Some(message) = state.early.take() {
            stop(message);
        }
        state.stop = Some(Box::new(stop));
    }

    /// Drops the function of [`Self::on_failure`]. No thread is in it afterwards.
    pub(crate) fn ignore(&self) {
        self.lock().stop = None;
    }

    /// Reports that the thread of this name cannot go on.
    pub(crate) fn report(&self, name: &str, error: &impl Display) {
        self.add(format!("the thread `{name}` cannot go on: {error}"));
    }

    /// Does some work of the thread of this name. If it panics, reports and returns the panic.
    pub(crate) fn watch<T>(&self, name: &str, work: impl FnOnce() -> T) -> thread::Result<T> {
        let panicked = || self.add(format!("the thread `{name}` panicked"));
        catch_unwind(AssertUnwindSafe(work)).inspect_err(|_| panicked())
    }

    fn add(&self, message: String) {
        tracing::error!("{message}");
        let mut state = self.lock();
        match &state.stop {
            Some(stop) => stop(message),
            None => drop(state.early.get_or_insert(message)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    /// Only a hang takes so long.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

    impl Failures {
        /// The messages of all failures, for tests without a machine.
        pub(crate) fn messages(&self) -> Receiver<String> {
            let (sender, messages) = channel();
            self.on_failure(move |message| drop(sender.send(message)));
            messages
        }
    }

    #[test]
    fn a_panic_and_an_error_are_reported_and_other_outcomes_are_not() {
        let failures = Failures::default();
        let messages = failures.messages();
        assert_eq!(failures.watch("vsock", || 7).unwrap(), 7);
        let panicked: thread::Result<()> = failures.watch("network", || panic!("as a bug would"));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "as a bug would");
        failures.report("console", &"no descriptor");
        let all: Vec<_> = messages.try_iter().collect();
        let expected =
            ["the thread `network` panicked", "the thread `console` cannot go on: no descriptor"];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_first_failure_waits_for_the_machine() {
        let failures = Failures::default();
        failures.report("disk", &"the first");
        failures.report("disk", &"the second");
        let messages = failures.messages();
        failures.report("disk", &"the third");
        let all: Vec<_> = messages.try_iter().collect();
        let expected =
            ["the first", "the third"].map(|it| format!("the thread `disk` cannot go on: {it}"));
        assert_eq!(all, expected);
        failures.ignore();
        failures.report("disk", &"the fourth");
        assert!(messages.recv().is_err(), "the function is gone");
    }
}
