//! Entries of error_log with identifiers in place of messages: the kernel's messages are its own,
//! ours are longer. Which of the kernel's faults the sessions have reached.

mod tables;

use std::collections::BTreeSet;

use tables::{TABLES, Table};

/// The kernel's faults in answers of it.
#[derive(Default)]
pub(super) struct Reached(BTreeSet<(&'static str, String)>);

impl Reached {
    /// Adds those in the text of a file.
    pub(super) fn add(&mut self, text: &str) {
        for line in text.lines() {
            let Some((part, id)) = line.rsplit_once(": ") else { continue };
            if let Some(table) = table_of(part).filter(|table| table.has(id)) {
                self.0.insert((table.part, id.to_owned()));
            }
        }
    }

    /// # Panics
    /// When a fault is in no session, or one is that cannot be reached.
    pub(super) fn judge(&self) {
        for table in &TABLES {
            let is_reached = |id: &str| self.0.contains(&(table.part, id.to_owned()));
            let unreachable: Vec<&str> = table.unreachable.iter().map(|(id, _)| *id).collect();
            let ids = || table.messages.iter().map(|(id, _)| *id);
            let (part, not_listed) = (table.part, |id: &&str| !unreachable.contains(id));
            let lacking: Vec<&str> =
                ids().filter(not_listed).filter(|id| !is_reached(id)).collect();
            assert!(lacking.is_empty(), "no session has these faults of {part}: {lacking:?}");
            for (id, reason) in table.unreachable {
                assert!(table.has(id), "{part} has no {id}");
                assert!(
                    !is_reached(id),
                    "a session has {id} of {part}, which is listed as {reason}"
                );
            }
        }
    }
}

impl Table {
    fn has(&self, id: &str) -> bool {
        self.messages.iter().any(|(known, _)| *known == id)
    }

    /// The identifier of a message.
    fn id(&self, message: &str) -> Option<&'static str> {
        let found = self.messages.iter().find(|(_, text)| *text == message);
        found.map(|(id, _)| *id)
    }
}

/// The table that an entry's fault is of.
fn table_of(part: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| part.starts_with(table.part))
}

/// The text of the file with the kernel's identifiers.
pub(super) fn of_kernel(log: &str) -> String {
    entries(log, |table, message| table.id(message).unwrap_or(message).to_owned())
}

/// The text of our file with the identifiers of these faults, in their order. Messages that begin
/// as the kernel's have its identifiers, also those of faults that no write returns.
pub(super) fn of_ours(log: &str, ids: &[&str]) -> String {
    let mut ids = ids.iter().peekable();
    entries(log, |table, message| {
        let begin = message.split(": ").next().unwrap_or_default();
        let id = match table.id(begin) {
            Some(known) => ids.next_if(|id| **id == known).map_or(known, |id| *id),
            None => ids.next().map_or(message, |id| *id),
        };
        id.to_owned()
    })
}

fn entries(log: &str, mut id: impl FnMut(&Table, &str) -> String) -> String {
    let line = |line: &str| {
        let entry = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let fault = entry.and_then(|(_, entry)| entry.split_once(": error: "));
        let of_table = fault.and_then(|(part, message)| Some((table_of(part)?, part, message)));
        match of_table {
            Some((table, part, message)) => format!("{part}: {}", id(table, message)),
            // The event's number.
            None if line.starts_with("ID: ") => "ID: #".to_owned(),
            None => line.to_owned(),
        }
    };
    let lines: Vec<String> = log.trim_end().lines().map(line).collect();
    lines.join("\n")
}
