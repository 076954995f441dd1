//! Times as text.

use std::fmt::Write;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, FixedOffset};

use super::printer::Printer;

const NANOSECONDS: i64 = 1_000_000_000;

/// Is every conversion of a format known?
pub(crate) fn is_time_format(format: &str) -> bool {
    !StrftimeItems::new(&with_microseconds(format, 0)).any(|item| item == Item::Error)
}

/// Replaces `%f` by microseconds: bpftrace's own conversion.
fn with_microseconds(format: &str, microseconds: i64) -> String {
    let mut parts = format.split("%%");
    let mut text = String::new();
    if let Some(first) = parts.next() {
        text.push_str(&first.replace("%f", &format!("{microseconds:06}")));
    }
    for part in parts {
        text.push_str("%%");
        text.push_str(&part.replace("%f", &format!("{microseconds:06}")));
    }
    text
}

impl Printer<'_> {
    /// A moment of the guest's time as local wall clock.
    pub(crate) fn time(&self, time: u64, format: &str) -> String {
        let wall = self.host.wall_clock(time);
        let offset = FixedOffset::east_opt(self.host.utc_offset());
        let moment = DateTime::from_timestamp_nanos(wall);
        let microseconds = wall.rem_euclid(NANOSECONDS) / 1000;
        let format = with_microseconds(format, microseconds);
        let mut text = String::new();
        let written = match offset {
            Some(offset) => write!(text, "{}", moment.with_timezone(&offset).format(&format)),
            None => write!(text, "{}", moment.format(&format)),
        };
        if written.is_ok() { text } else { String::new() }
    }
}
