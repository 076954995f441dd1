//! available_events and set_event (events.rst, 2.1): the events, and those that are enabled.

use std::collections::HashSet;

use crate::error::TracerError;
use crate::event;
use crate::listed::{self, ListedEvent};
use crate::scope::Scope;

/// The text of available_events: `GROUP:EVENT`, a line each, the newest first as the kernel has it.
pub(crate) fn listing<'a>(events: impl IntoIterator<Item = &'a ListedEvent>) -> String {
    let mut seen = HashSet::new();
    let events = events.into_iter().map(|listed| (&*listed.group, &*listed.event));
    let events: Vec<_> = events.filter(|event| seen.insert(*event)).collect();
    events.iter().rev().map(|(group, event)| format!("{group}:{event}\n")).collect()
}

/// The text of set_event: the events that are enabled or have triggers.
pub(crate) fn enabled(events: &[ListedEvent]) -> String {
    listing(events.iter().filter(|listed| listed.is_armed))
}

/// Enables the events that words name, in order, and disables those of words with a `!` before
/// them. A word is `GROUP:EVENT`, where either may be `*` or nothing for all; without a colon, the
/// name of a group or of an event.
///
/// # Errors
/// [`TracerError`], EINVAL: a word matches no event. The words before it are done.
pub(crate) fn write(scope: Scope<'_>, text: &str) -> Result<(), TracerError> {
    let events = listed::all(scope);
    for word in text.split_ascii_whitespace() {
        let (on, name) = match word.strip_prefix('!') {
            Some(name) => (false, name),
            None => (true, word),
        };
        let named = events.iter().filter(|listed| is_named(name, &listed.group, &listed.event));
        let named: Vec<&ListedEvent> = named.collect();
        if named.is_empty() {
            let shown: String = name.chars().take(130).collect();
            let message = format!("there is no event `{shown}`: see available_events");
            return Err(TracerError::new("EINVAL", message));
        }
        event::set_enabled(scope, named, on)?;
    }
    Ok(())
}

/// Returns true if a word names an event.
fn is_named(word: &str, group: &str, event: &str) -> bool {
    let is_all = |name: &str| name.is_empty() || name == "*";
    match word.split_once(':') {
        Some((of, name)) => (is_all(of) || of == group) && (is_all(name) || name == event),
        None => word == group || word == event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_groups_events_or_both() {
        for word in ["g:e", "g:*", "g:", "*:e", ":e", "*:*", ":", "g", "e"] {
            assert!(is_named(word, "g", "e"), "{word}");
        }
        for word in ["", "*", "g:f", "f:e", "f:", ":f", "g:e:", "ge", "e:g", "G:e"] {
            assert!(!is_named(word, "g", "e"), "{word}");
        }
    }
}
