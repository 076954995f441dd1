//! `exoprobe export`: events as files that trace viewers open.

mod chrome;
mod hit;
mod output;
mod perfetto;
mod schema;
#[cfg(test)]
mod tests;
mod tracks;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;

use super::callers::Callers;
use super::context::Context;
use super::error::CliError;
use super::instance::InstanceName;
use crate::client::{
    ApiPath, Client, ClientError, EventLine, EventQuery, EventReader, EventRecord, Patience,
};
use crate::log::say;
use crate::run::Signals;
use chrome::Chrome;
use hit::{Hit, TraceFormat};
use output::Output;
use perfetto::Perfetto;
use tracks::{Track, TrackBy};

/// "In the future", which means the next event that happens.
const NEXT_EVENT: u64 = u64::MAX;

const EXAMPLES: &str = "\
Examples:
  exoprobe export --output trace.pftrace
  exoprobe export --seconds 10 --tracks cpu --output trace.pftrace
  exoprobe export --format chrome --from 1000 > trace.json
  exoprobe export --instance opens --output opens.pftrace

Open what was written at https://ui.perfetto.dev, which shows it without sending it anywhere; Chrome's format also at
chrome://tracing. Times are the guest's, since it was booted.";

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// Format: Perfetto's protobuf, or Chrome's JSON
    #[arg(long, value_name = "FORMAT", default_value = "perfetto")]
    format: Format,
    /// File to write; an existing one is replaced [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Start at this sequence number [default: the oldest event kept; with --follow or --seconds,
    /// the next that happens]
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Events of this trace instance (`exoprobe instance list`)
    #[arg(long, value_name = "NAME")]
    instance: Option<InstanceName>,
    /// Write the events that come, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Write the events that come within so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// One track for each task, or for each vCPU
    #[arg(long, value_name = "WHAT", default_value = "task")]
    tracks: TrackBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// Perfetto's trace, binary
    Perfetto,
    /// Chrome's trace event format, JSON
    Chrome,
}

impl ExportArgs {
    fn query(&self) -> EventQuery {
        let follow = self.follow || self.seconds.is_some();
        let from = self.from.or(follow.then_some(NEXT_EVENT));
        let instance = self.instance.as_ref().map(|name| name.as_str().to_owned());
        EventQuery { from, follow, instance, ..EventQuery::default() }
    }

    fn check(&self, stdout_is_terminal: bool) -> Result<(), CliError> {
        let binary = self.format == Format::Perfetto;
        if binary && self.output.is_none() && stdout_is_terminal {
            return Err(CliError::BinaryToTerminal);
        }
        Ok(())
    }
}

/// A trace that is being written.
struct Trace<'a> {
    format: Box<dyn TraceFormat>,
    tracks: TrackBy,
    out: &'a mut dyn Write,
    /// Of the last event, in nanoseconds.
    time: u64,
    /// Not written yet: it stands where the next event does.
    lost: u64,
    written: Written,
}

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Written {
    events: u64,
    lost: u64,
}

impl<'a> Trace<'a> {
    fn begin(args: &ExportArgs, out: &'a mut dyn Write) -> io::Result<Self> {
        let mut format: Box<dyn TraceFormat> = match args.format {
            Format::Perfetto => Box::new(Perfetto::new(args.tracks)),
            Format::Chrome => Box::new(Chrome::new(args.tracks)),
        };
        format.begin(out)?;
        let written = Written::default();
        Ok(Self { format, tracks: args.tracks, out, time: 0, lost: 0, written })
    }

    fn hit(&mut self, event: &EventRecord, caller: Option<String>) -> io::Result<()> {
        self.time = nanoseconds(event.time);
        self.write_lost()?;
        let track = Track::of(event, self.tracks);
        self.written.events += 1;
        let took = event.duration_ns.filter(|_| track.is_of_one_task());
        self.format.hit(&Hit { event, track, time: self.time, took, caller }, self.out)
    }

    fn lost(&mut self, lost: u64) {
        self.lost += lost;
        self.written.lost += lost;
    }

    fn write_lost(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.lost) {
            0 => Ok(()),
            lost => self.format.lost(lost, self.time, self.out),
        }
    }

    fn end(mut self) -> io::Result<Written> {
        self.write_lost()?;
        self.format.end(self.out)?;
        self.out.flush()?;
        Ok(self.written)
    }
}

/// Seconds as nanoseconds; 0 of what is no time.
fn nanoseconds(seconds: f64) -> u64 {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a trace of the guest's events.
pub(super) async fn run(context: &mut Context<'_>, args: &ExportArgs) -> Result<(), CliError> {
    args.check(io::stdout().is_terminal())?;
    let Some(path) = &args.output else {
        let (written, result) = record(context.client, args, context.out).await?;
        tell(written, args, context.json, &mut io::stderr())?;
        return result;
    };
    let failed = |source| CliError::Write { path: path.clone(), source };
    // A service that does not answer does so before a file is replaced.
    context.client.get(&ApiPath::new(&["events"]).query("limit", 0)).await?;
    let mut file = Output::create(path).map_err(failed)?;
    let recorded = record(context.client, args, &mut file).await;
    let (written, result) = recorded.map_err(|error| match error {
        CliError::Output(source) => failed(source),
        other => other,
    })?;
    file.finish().map_err(failed)?;
    if context.json {
        tell(written, args, true, context.out)?;
    } else {
        tell(written, args, false, &mut io::stderr())?;
    }
    result
}

/// Writes events until there are no more, or until a signal. The trace is whole also where reading
/// them failed, which is the inner result.
async fn record(
    client: &Client,
    args: &ExportArgs,
    out: &mut dyn Write,
) -> Result<(Written, Result<(), CliError>), CliError> {
    let mut trace = Trace::begin(args, out)?;
    let result = if args.query().follow {
        let mut signals = Signals::new()?;
        if args.seconds.is_none() && io::stderr().is_terminal() {
            say!("writing events as they come; Ctrl-C ends it");
        }
        tokio::select! {
            result = copy(client, args.query(), &mut trace) => result,
            () = patience(args.seconds) => Ok(()),
            () = signals.next() => Ok(()),
        }
    } else {
        copy(client, args.query(), &mut trace).await
    };
    match result {
        // Nor would the end be written.
        Err(error @ CliError::Output(_)) => Err(error),
        result => Ok((trace.end()?, result)),
    }
}

async fn patience(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

async fn copy(client: &Client, query: EventQuery, trace: &mut Trace<'_>) -> Result<(), CliError> {
    let mut reader = EventReader::new(client, query, Patience::default());
    let mut callers = Callers::new(client);
    loop {
        let items = match reader.next().await {
            Ok(Some(items)) => items,
            // The trace of a guest that has gone is as good as any.
            Ok(None) | Err(ClientError::Ended) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for item in &items {
            match &item.line {
                EventLine::Lost { lost, .. } => trace.lost(*lost),
                EventLine::Event(event) => trace.hit(event, callers.of(event).await)?,
            }
        }
    }
}

/// Prints a summary of the written file, and the next step.
fn tell(written: Written, args: &ExportArgs, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let Written { events, lost } = written;
    let path = args.output.as_deref().map(Path::display);
    if json {
        let path = path.map(|path| path.to_string());
        let told = json!({"path": path, "format": args.format, "events": events, "lost": lost});
        return writeln!(out, "{told}");
    }
    let to = path.map(|path| format!(" to {path}")).unwrap_or_default();
    let lost = if lost == 0 { String::new() } else { format!(", {lost} lost") };
    let plural = if events == 1 { "" } else { "s" };
    writeln!(out, "wrote {events} event{plural}{to}{lost}; open it at https://ui.perfetto.dev")
}
