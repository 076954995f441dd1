//! The events that an instance keeps, as its readers see them.

use std::sync::Arc;

use exoprobe_probes::{Engine, TraceInstance};

use crate::options::SharedOptions;
use crate::scope::Scope;

/// Counts as a reader of an instance, as long as it is there.
pub(crate) type Waiting = Arc<()>;

/// The events of an instance.
pub(crate) struct Kept {
    pub(crate) engine: Arc<Engine>,
    /// `None` of the tracer's own folder.
    own: Option<Arc<TraceInstance>>,
    /// How they are shown.
    pub(crate) options: SharedOptions,
    /// Held by those who wait for more.
    waiting: Waiting,
}

impl Kept {
    pub(crate) fn new(engine: Arc<Engine>, own: Option<Arc<TraceInstance>>) -> Self {
        Self { engine, own, options: SharedOptions::default(), waiting: Waiting::default() }
    }

    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope { engine: &self.engine, own: self.own.as_ref() }
    }

    /// A reader that waits for more.
    pub(crate) fn waiting(&self) -> Waiting {
        Arc::clone(&self.waiting)
    }

    /// Returns true if a reader waits for more.
    pub(crate) fn is_waited_for(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }
}
