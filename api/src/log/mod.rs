//! All that the program writes to standard error: its log and its messages to people.
//!
//! A write to standard error that fails is dropped. It never ends a thread: `eprintln!` would panic
//! where standard error is a closed pipe or a full disk, so clippy refuses it in this crate.
//!
//! The rate of each message is limited, since a guest can cause most of them (`Limiter`).

mod limiter;

use std::fmt::{self, Arguments};
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use exoprobe_introspect::printable_lines;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use limiter::{Limiter, WINDOW};

/// Filter of the log on standard error, as tracing's `EnvFilter` reads it.
const LOG_ENV: &str = "EXOPROBE_LOG";

const ESC: &str = "\u{1b}";
/// As [`printable_lines`] shows it.
const SHOWN_ESC: &str = "\\u{1b}";

static LIMITER: Limiter = Limiter::new();

/// Writes a line to standard error. Takes the arguments of `format!`; never panics.
macro_rules! say {
    ($($text:tt)*) => { $crate::log::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Writes a line to standard error, unprintable characters as escapes; use [`say!`].
pub(crate) fn line(text: Arguments<'_>) {
    // One write, so that lines of several threads do not mix. There is no place to report a
    // failure.
    let text = format!("{text}\n");
    let _ = io::stderr().lock().write_all(printable_lines(&text).as_bytes());
}

/// Writes a line that a guest can cause, unless `kind` had its share: then it is only counted.
pub(crate) fn limited(kind: &'static str, text: Arguments<'_>) {
    if let Some(left_out) = LIMITER.admit(kind, Instant::now()) {
        say_left_out(kind, left_out);
        line(text);
    }
}

fn say_left_out(kind: &str, count: u64) {
    if count > 0 {
        line(format_args!("{}", LeftOut { kind, count }));
    }
}

/// A count of messages that were left out, as a line.
struct LeftOut<'a> {
    kind: &'a str,
    count: u64,
}

impl fmt::Display for LeftOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} more messages were left out: {}", self.count, self.kind)
    }
}

/// Writes the counts of messages that were left out, of windows that are over; never returns.
pub(crate) async fn report_left_out() -> std::convert::Infallible {
    loop {
        tokio::time::sleep(WINDOW).await;
        for (kind, count) in LIMITER.overdue(Instant::now()) {
            say_left_out(kind, count);
        }
    }
}

/// Writes all counts of messages that were left out. For the end of the service.
pub(crate) fn report_all_left_out() {
    for (kind, count) in LIMITER.all() {
        say_left_out(kind, count);
    }
}

/// Sets up the log on standard error, in colour on a terminal (unless `NO_COLOR` is set).
pub(crate) fn init() {
    let filter = EnvFilter::try_from_env(LOG_ENV).unwrap_or_else(|_| EnvFilter::new("warn"));
    // Standard error is not `anstream`'s business here: tracing writes colours itself.
    let colored = io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = subscriber(filter, colored, &LIMITER, || Lossy(io::stderr()));
    // Only fails where the embedding program has set up a log already.
    let _ = tracing::subscriber::set_global_default(log);
}

/// A log that writes at most so much as `limiter` admits, and nothing that steers a terminal but
/// colours.
fn subscriber<W>(
    filter: EnvFilter,
    colored: bool,
    limiter: &'static Limiter,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync
where
    W: Write + 'static,
{
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colored)
        // It would say with `eprintln!` that standard error cannot be written.
        .log_internal_errors(false)
        .with_writer(move || Printable { inner: writer(), colored })
        .event_format(Limited { inner: format::Format::default(), limiter })
        .finish()
}

/// A writer of lines whose text may be the guest's: what steers a terminal becomes an escape.
struct Printable<W> {
    inner: W,
    /// The lines have colours, which stay.
    colored: bool,
}

impl<W: Write> Write for Printable<W> {
    /// Writes an event, which comes whole.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split(ESC);
        let mut line = printable_lines(parts.next().unwrap_or_default()).into_owned();
        for part in parts {
            let keeps = self.colored && is_colour(part);
            line.push_str(if keeps { ESC } else { SHOWN_ESC });
            line.push_str(&printable_lines(part));
        }
        self.inner.write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns true if ESC and this text begin with a choice of colours (ECMA-48, SGR).
fn is_colour(text: &str) -> bool {
    let parameters = text.strip_prefix('[').and_then(|text| text.split_once('m'));
    parameters.is_some_and(|(all, _)| all.chars().all(|c| c.is_ascii_digit() || c == ';'))
}

/// A writer whose failures are dropped.
struct Lossy<W>(W);

impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // In one write: a part of a line says nothing.
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Formats the events that the limiter admits, and of others writes nothing.
struct Limited<F> {
    inner: F,
    limiter: &'static Limiter,
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // An event's name is its place in the source.
        let kind = event.metadata().name();
        let Some(count) = self.limiter.admit(kind, Instant::now()) else { return Ok(()) };
        if count > 0 {
            writeln!(writer, "{}", LeftOut { kind, count })?;
        }
        self.inner.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests;
