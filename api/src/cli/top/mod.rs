//! `exoprobe top`: probes and how often they are hit, as it goes.

mod rates;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use exoprobe_probes::Latency;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval_at};

use super::Context;
use super::color::ColorArgs;
use super::error::CliError;
use super::format::{Column, table};
use super::latency::{duration, sparkline};
use super::show::ProbeRow;
use super::tty::Typed;
use crate::client::{ApiPath, Client, ClientError};
use crate::run::Signals;
use rates::rates;
use screen::{Screen, frame};

const EXAMPLES: &str = "\
Examples:
  exoprobe top
  exoprobe top --interval 0.5
  exoprobe top --once
  exoprobe top --json | jq -c '.probes[] | [.event, .hits_per_second]'

q or Ctrl-C ends it. HOW says how hits are taken: `int3` leaves the guest, `optimized` does not; `disabled`, `pending`, `gone` and
`clobbered` probes have none. Of return probes whose returns are recorded, LATENCY shows how long all their calls took, a bar for each power of
two, and P50 and P99 what half and 99 % of them did not take longer than.";

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TopArgs {
    /// Between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one table, of what happens within one interval
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    color: ColorArgs,
}

/// Reads the time between two looks.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("write 0.1 to 3600 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// The books of all probes at one time.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    probes: Vec<ProbeRow>,
}

impl Sample {
    async fn take(client: &Client) -> Result<Self, ClientError> {
        let probes: Value = serde_json::from_slice(&client.get(&ApiPath::new(&["probes"])).await?)?;
        Ok(Self { at: Instant::now(), probes: Vec::deserialize(probes)? })
    }

    /// As [`Sample::take`], of a service that has answered before.
    async fn again(client: &Client) -> Result<Self, CliError> {
        Self::take(client).await.map_err(|error| match error {
            ClientError::Connect { .. } | ClientError::Broken(_) => CliError::Gone(error),
            other => other.into(),
        })
    }
}

/// A probe and its hits per second, where they are known.
struct Row<'a> {
    probe: &'a ProbeRow,
    rate: Option<f64>,
}

/// What happened between two samples.
struct Look<'a> {
    /// Of which the rates are; none before the second sample.
    seconds: Option<f64>,
    /// The probe that is hit most often first.
    rows: Vec<Row<'a>>,
}

impl<'a> Look<'a> {
    fn new(before: Option<&Sample>, now: &'a Sample) -> Self {
        let elapsed = before.map(|before| now.at.saturating_duration_since(before.at));
        let rates = match before.zip(elapsed) {
            Some((before, elapsed)) => rates(&before.probes, &now.probes, elapsed),
            None => vec![None; now.probes.len()],
        };
        let mut rows: Vec<_> =
            now.probes.iter().zip(rates).map(|(probe, rate)| Row { probe, rate }).collect();
        let known = |row: &Row<'_>| row.rate.unwrap_or(-1.0);
        rows.sort_by(|a, b| known(b).total_cmp(&known(a)).then(b.probe.hits.cmp(&a.probe.hits)));
        Self { seconds: elapsed.map(|elapsed| elapsed.as_secs_f64()), rows }
    }

    /// Hits per second of all probes, as far as they are known.
    fn total(&self) -> f64 {
        // From 0, for the sum of nothing is -0.
        self.rows.iter().filter_map(|row| row.rate).fold(0.0, |sum, rate| sum + rate)
    }

    /// What matters most stands to the left: a narrow window shows no more.
    fn table(&self) -> String {
        let mut columns =
            vec![Column::Number("HITS/S"), Column::Text("EVENT"), Column::Number("HITS")];
        let timed = self.rows.iter().any(|row| row.timed().is_some());
        if timed {
            let [half, most] = [Column::Number("P50"), Column::Number("P99")];
            columns.extend([most, Column::Text("LATENCY"), half]);
        }
        columns.extend([
            Column::Number("LOST"),
            Column::Number("NMISSED"),
            Column::Text("HOW"),
            Column::Number("RECORDED"),
            Column::Number("FILTERED"),
            Column::Text("PLACE"),
        ]);
        table(&columns, self.rows.iter().map(|row| row.cells(timed)))
    }

    fn json(&self) -> Value {
        let probes: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({"seconds": self.seconds, "hits_per_second": self.total(), "probes": probes})
    }
}

impl Row<'_> {
    /// How long a return probe's calls took, where some were timed.
    fn timed(&self) -> Option<&Latency> {
        self.probe.latency.as_ref().filter(|latency| latency.calls > 0)
    }

    /// With three columns about latency where some probe has them.
    fn cells(&self, timed: bool) -> Vec<String> {
        let probe = self.probe;
        let mut cells = vec![
            self.rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            probe.name(),
            probe.hits.to_string(),
        ];
        let within = |thousandths| {
            let found = self.timed().and_then(|latency| latency.quantile(thousandths));
            found.map_or_else(String::new, duration)
        };
        if timed {
            let bars = self.timed().map_or_else(String::new, sparkline);
            cells.extend([within(990), bars, within(500)]);
        }
        cells.extend([probe.lost.to_string(), probe.nmissed.to_string(), how(&probe.flags)]);
        cells.extend([probe.recorded.to_string(), probe.filtered.to_string(), probe.place()]);
        cells
    }

    fn json(&self) -> Value {
        let probe = self.probe;
        json!({
            "id": probe.id, "kind": probe.kind, "group": probe.group, "event": probe.event,
            "symbol_name": probe.symbol_name, "offset": probe.offset, "addr": probe.addr,
            "hits_per_second": self.rate, "hits": probe.hits, "recorded": probe.recorded,
            "filtered": probe.filtered, "lost": probe.lost, "nmissed": probe.nmissed,
            "flags": probe.flags, "how": how(&probe.flags), "latency": probe.latency,
        })
    }
}

/// How a probe's hits are taken, or why there are none.
fn how(flags: &[String]) -> String {
    if flags.is_empty() { "int3".to_owned() } else { flags.join(",").to_lowercase() }
}

/// Shows probes until told to end.
pub(super) async fn run(context: &mut Context<'_>, args: &TopArgs) -> Result<(), CliError> {
    if args.once {
        return once(context, args).await;
    }
    if context.json {
        let mut signals = Signals::new()?;
        return tokio::select! {
            result = stream(context, args) => result,
            () = signals.next() => Ok(()),
        };
    }
    if !io::stdout().is_terminal() {
        return Err(CliError::NoTerminal);
    }
    live(context, args).await
}

async fn once(context: &mut Context<'_>, args: &TopArgs) -> Result<(), CliError> {
    let before = Sample::take(context.client).await?;
    tokio::time::sleep(args.interval).await;
    let now = Sample::again(context.client).await?;
    let look = Look::new(Some(&before), &now);
    if context.json {
        return Ok(context.print_json(&look.json().to_string())?);
    }
    Ok(writeln!(context.out, "{}", look.table())?)
}

/// Prints an object for each interval.
async fn stream(context: &mut Context<'_>, args: &TopArgs) -> Result<(), CliError> {
    let client = context.client;
    let first = Sample::take(client).await?;
    watch(client, args, first, |before, now| {
        context.print_json(&Look::new(Some(before), now).json().to_string())?;
        context.out.flush()
    })
    .await
}

/// Redraws the terminal for each interval; it is as before when this returns.
async fn live(context: &mut Context<'_>, args: &TopArgs) -> Result<(), CliError> {
    let palette = args.color.palette();
    let first = Sample::take(context.client).await?;
    let mut signals = Signals::new()?;
    // The screen is left first, for it is entered last.
    let mut keys = Typed::keys();
    let mut screen = Screen::enter(context.out)?;
    let mut draw = |before: Option<&Sample>, now: &Sample| {
        let size = Screen::size()?;
        screen.draw(&frame(&Look::new(before, now), size, &palette), size)
    };
    draw(None, &first)?;
    tokio::select! {
        result = watch(context.client, args, first, |before, now| draw(Some(before), now)) => result,
        () = quit(&mut keys) => Ok(()),
        () = signals.next() => Ok(()),
    }
}

/// Takes a sample each interval, and has it shown.
async fn watch(
    client: &Client,
    args: &TopArgs,
    first: Sample,
    mut show: impl FnMut(&Sample, &Sample) -> io::Result<()>,
) -> Result<(), CliError> {
    let mut before = first;
    let mut ticks = interval_at(tokio::time::Instant::now() + args.interval, args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Sample::again(client).await?;
        show(&before, &now)?;
        before = now;
    }
}

/// Waits until the user has had enough.
async fn quit(keys: &mut Option<Typed>) {
    let Some(keys) = keys else { return std::future::pending().await };
    while let Some(typed) = keys.next().await {
        if typed.iter().any(|key| matches!(key, b'q' | b'Q')) {
            return;
        }
    }
}
