//! The events that a reader requests.

use exoprobe_guest::GuestTime;
use exoprobe_introspect::glob_matches;

use super::hit::Hit;

/// A selection of events; all of them by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventSelection {
    /// Name of the event, or `GROUP/EVENT`; `*`, `?` and `[...]` are wildcards.
    pub probe: Option<String>,
    /// Number of the current task.
    pub pid: Option<u32>,
    /// Its name, with wildcards.
    pub comm: Option<String>,
    /// Guest seconds since boot of the first event.
    pub since: Option<f64>,
}

impl EventSelection {
    pub(super) fn wants(&self, hit: &Hit) -> bool {
        let Hit { origin, record, .. } = hit;
        let time = || origin.clock.seconds(GuestTime(record.time));
        self.pid.is_none_or(|pid| record.task.is_some_and(|task| task.pid == pid))
            && self.since.is_none_or(|since| time() >= since)
            && self.probe.as_ref().is_none_or(|name| is_named(name, &origin.group, &origin.event))
            && self.comm.as_ref().is_none_or(|pattern| {
                let matches = |name: String| glob_matches(pattern.as_bytes(), name.as_bytes());
                record.task.is_some_and(|task| matches(task.name()))
            })
    }
}

fn is_named(pattern: &str, group: &str, event: &str) -> bool {
    let matches = |pattern: &str, name: &str| glob_matches(pattern.as_bytes(), name.as_bytes());
    match pattern.split_once('/') {
        Some((of_group, of_event)) => matches(of_group, group) && matches(of_event, event),
        None => matches(pattern, event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_wildcards_and_may_have_a_group() {
        for (pattern, wanted) in [
            ("open", true),
            ("op*", true),
            ("*/open", true),
            ("my*/o[opq]en", false),
            ("kprobes/open", true),
            ("other/open", false),
            ("OPEN", false),
            ("", false),
        ] {
            assert_eq!(is_named(pattern, "kprobes", "open"), wanted, "{pattern}");
        }
    }
}
