//! Parts that the models share: shuttle's schedulers, and parts at each of whose accesses another
//! thread may go on.

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};

use crate::shared::{Cell, Parts, Word, word};

/// Of the scheduler that prefers few changes at rare places: most that it makes in a run.
const CHANGES: usize = 4;

/// Runs a model with so many schedules of both schedulers.
pub(crate) fn check(schedules: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, schedules);
    shuttle::check_pct(model, schedules, CHANGES);
}

/// Parts for a model.
pub(crate) struct Model;

impl Parts for Model {
    type Word = AtomicU64;
    type Cell<T: Send> = Mutex<Option<T>>;
}

word!(AtomicU64);

impl<T: Send> Cell<T> for Mutex<Option<T>> {
    fn new() -> Self {
        Self::new(None)
    }

    fn store(&self, value: Option<T>) {
        *self.lock().unwrap() = value;
    }

    fn take(&self) -> Option<T> {
        self.lock().unwrap().take()
    }
}
