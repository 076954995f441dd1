//! Return probes, by each way to take hold of a return, and their events.

use exoprobe_probes::{Event, ProbeDefinition, ReturnMode};
use exoprobe_tests::{TestGuest, definition};
use std::sync::Arc;

/// Ways to intercept a call's return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A trampoline's int3.
    Trampoline,
    /// An int3 where it returns to.
    Site,
    /// Code in the guest, once the probe is optimized.
    Code,
}

pub(crate) const ALL: [By; 3] = [By::Trampoline, By::Site, By::Code];

/// Where handlers run in the VMM.
pub(crate) const MODES: [By; 2] = [By::Trampoline, By::Site];

/// A function that is overwritten: it runs only when the guest reboots.
pub(crate) const SCRATCH: &str = "__do_sys_reboot";

/// A definition whose returns are taken hold of in this way.
pub(crate) fn in_mode(line: &str, by: By) -> ProbeDefinition {
    let return_mode = match by {
        By::Trampoline | By::Code => ReturnMode::Trampoline,
        By::Site => ReturnMode::Site,
    };
    ProbeDefinition { return_mode, ..definition(line) }
}

pub(crate) fn follow(guest: &TestGuest, line: &str, by: By) {
    guest.engine.register(in_mode(line, by)).unwrap_or_else(|e| panic!("{line}: {e}"));
    if by == By::Code {
        // As far as it goes: some functions cannot be, and others are busy.
        guest.engine.optimize();
    }
}

/// Events of one probe so far.
pub(crate) fn events_of(guest: &TestGuest, event: &str) -> Vec<Arc<Event>> {
    guest.engine.drain();
    let page = guest.engine.events().read(1, usize::MAX);
    assert_eq!(page.lost, 0);
    page.events.into_iter().filter(|e| *e.event == *event).collect()
}

/// The values of an argument that are shown as text.
pub(crate) fn values<'a>(events: &'a [Arc<Event>], name: &str) -> Vec<&'a str> {
    events.iter().map(|event| event.args[name].as_str().expect("text")).collect()
}

/// Each return says how long the call took, and the probe's books have the sum of it.
pub(crate) fn assert_durations(guest: &TestGuest, event: &str) {
    let events = events_of(guest, event);
    let durations = events.iter().map(|event| event.duration_ns.expect("a return's event has it"));
    let latency = guest.status(event).latency.expect("a return probe has it");
    assert_eq!(latency.calls, guest.status(event).recorded);
    assert_eq!((latency.calls, latency.total_ns), (events.len() as u64, durations.clone().sum()));
    assert_eq!(Some(latency.max_ns), durations.max());
}
