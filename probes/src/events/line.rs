//! Events as lines of the tracer's files `trace` and `trace_pipe` (ftrace.rst, "Output format"; kprobetrace.rst).

use std::fmt::{self, Write};

use exoprobe_guest::{GuestTime, Gva};
use exoprobe_introspect::{SymbolTable, printable};

use super::hit::Hit;
use super::show::{Shown, show_symbol};

/// What the file `trace` begins with: how many events it shows, of how many that there were, and the vCPUs. Behind it
/// come the events.
#[must_use]
pub fn trace_header(events: u64, written: u64, vcpus: usize) -> String {
    format!(
        "# tracer: nop\n\
        #\n\
        # entries-in-buffer/entries-written: {events}/{written}   #P:{vcpus}\n\
        #\n\
        #                                _-----=> irqs-off/BH-disabled\n\
        #                               / _----=> need-resched\n\
        #                              | / _---=> hardirq/softirq\n\
        #                              || / _--=> preempt-depth\n\
        #                              ||| / _-=> migrate-disable\n\
        #                              |||| /     delay\n\
        #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n\
        #              | |         |   |||||     |         |\n"
    )
}

impl Hit {
    /// Adds the event's line. Of the five flags nothing is known here: they are dots.
    pub(crate) fn write_line(&self, out: &mut String) -> fmt::Result {
        let (origin, record) = (&self.origin, &self.record);
        let comm = record.task.map_or_else(|| "<...>".to_owned(), |task| task.name());
        let pid = record.task.map_or(0, |task| task.pid);
        let micros = origin.clock.micros(GuestTime(record.time));
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let who = format!("{:>16}-{pid:<7} [{:03}] .....", printable(&comm), self.vcpu);
        let when = format!("{seconds:>5}.{micros:06}");
        write!(out, "{who} {when}: {}: (", origin.event)?;
        let symbols = origin.symbols.as_ref();
        match record.returned {
            None => out.push_str(&show_symbol(symbols, origin.at.0)),
            Some(returned) => {
                write!(
                    out,
                    "{} <- {}",
                    show_symbol(symbols, returned.to.0),
                    function(symbols, origin.at)
                )?;
            }
        }
        out.push(')');
        for (index, field) in origin.fields.iter().enumerate() {
            write!(out, " {}=", field.name)?;
            Shown::of(field, record, index).print(symbols, out)?;
        }
        out.push('\n');
        if !record.stack.is_empty() {
            writeln!(out, "{who} {when}: <stack trace>")?;
        }
        for addr in &record.stack {
            writeln!(out, " => {}", function(symbols, Gva(*addr)))?;
        }
        Ok(())
    }
}

/// The function that an address is in, by its name; without one, its digits.
fn function(symbols: Option<&SymbolTable>, at: Gva) -> String {
    let found = symbols.and_then(|symbols| symbols.resolve(at));
    found.map_or_else(|| at.to_string(), |found| found.qualified_name())
}
