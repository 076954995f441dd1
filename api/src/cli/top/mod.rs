//! `exoprobe top`: probes and how often they are hit, as it goes.

mod look;
mod rates;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use tokio::time::{MissedTickBehavior, interval_at};

use super::color::ColorArgs;
use super::context::Context;
use super::error::CliError;
use super::tty::Typed;
use crate::client::Client;
use crate::run::Signals;
use look::{Look, Sample};
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
    /// Seconds between two updates, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one table, of what happens within one interval
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    color: ColorArgs,
}

/// Reads the time between two updates.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("write 0.1 to 3600 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Shows probes until a signal.
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
