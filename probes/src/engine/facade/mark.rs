//! Texts of users among the events.

use std::sync::Arc;

use crate::definition::{Argument, Fetch, ValueType};
use crate::engine::facade::engine::Engine;
use crate::events::{EventStore, Hit, MARK, Origin, Record, Step, TextPlace, TraceInstance};

/// Group and name of the event, as in the kernel's tracer.
const NAME: (&str, &str) = ("ftrace", "print");
/// Name of its one argument.
const TEXT: &str = "buf";

impl Engine {
    /// Puts a text among the events, of now and of vCPU 0, after all hits so far. Returns false,
    /// and does nothing, if the tracer's files show no events
    /// ([`crate::EventStore::set_tracing`]).
    pub fn mark(&self, text: &str) -> bool {
        self.mark_in(&self.store, text)
    }

    /// As [`Self::mark`], among the events of a trace instance.
    pub fn mark_instance(&self, instance: &TraceInstance, text: &str) -> bool {
        self.mark_in(instance.events(), text)
    }

    fn mark_in(&self, store: &EventStore, text: &str) -> bool {
        let mut control = self.lock();
        self.drain_locked(&mut control);
        let place = TextPlace::new(0, text.len());
        let Some(place) = place.filter(|_| store.is_tracing()) else { return false };
        // It is fetched nowhere: its record is made here.
        let (fetch, kind) = (Fetch::Constant(0), ValueType::Text);
        let argument = Argument { name: TEXT.to_owned(), fetch, kind, count: None };
        let name = (NAME.0.into(), NAME.1.into(), MARK);
        let origin = Origin::of_no_place(name, [argument].into(), self.clock);
        let record = Record {
            probe: MARK,
            time: self.clock.now().0,
            task: None,
            returned: None,
            args: vec![Some(place.word())],
            stack: Vec::new(),
            text: text.as_bytes().into(),
        };
        let hit = Hit { origin: Arc::new(origin), vcpu: 0, record };
        store.append([Step::Keep(hit)].into_iter());
        true
    }
}
