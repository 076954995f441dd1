//! `exoprobe events`.

use std::io::Write;
use std::pin::pin;

use clap::{Args, Subcommand};
use hyper::Method;

use super::callers::Callers;
use super::color::{ColorArgs, Palette};
use super::context::Context;
use super::error::CliError;
use super::event_text::{event_text, lost_text};
use super::instance::InstanceName;
use crate::client::{ApiPath, EventItem, EventLine, EventQuery, EventReader, Patience, Payload};

const EXAMPLES: &str = "\
Examples:
  exoprobe events --last 20
  exoprobe events --since 10s --probe 'open*' --comm sh
  exoprobe events --follow --color always | less -R
  exoprobe events --follow --json | jq .args
  exoprobe events --instance opens --follow
  exoprobe events clear

Without options, all events that are kept. --follow begins with the next event, unless --from, --last
or --since says where.";

/// "In the future", which means the next event that happens.
const NEXT_EVENT: u64 = u64::MAX;

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct EventsArgs {
    #[command(subcommand)]
    command: Option<EventsCommand>,
    /// Start at this sequence number
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// The newest N events, then with --follow those that come
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "limit"])]
    last: Option<u64>,
    /// Events from this time on: guest seconds since boot, or so long ago with a unit (10s, 500ms,
    /// 2m, 1h)
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<f64>,
    /// Events of this name, or GROUP/EVENT: `*` stands for any run of characters, `?` for any one
    #[arg(long, value_name = "EVENT")]
    probe: Option<String>,
    /// Events of the task of this number
    #[arg(long)]
    pid: Option<u32>,
    /// Events of tasks of this name, with `*` and `?`
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Events of this trace instance (`exoprobe instance list`)
    #[arg(long, value_name = "NAME")]
    instance: Option<InstanceName>,
    /// Wait for more; continue at the same place when the connection drops
    #[arg(long, short)]
    follow: bool,
    /// At most so many events: the newest, with --from the first, with --follow the next
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    color: ColorArgs,
}

const CLEAR_EXAMPLES: &str = "\
Examples:
  exoprobe events clear
  exoprobe events clear --instance opens";

#[derive(Clone, Debug, Subcommand)]
enum EventsCommand {
    /// Forget all events that are kept, those in the tracer's `trace` too
    #[command(after_help = CLEAR_EXAMPLES)]
    Clear {
        /// Those of this trace instance, and no others
        #[arg(long, value_name = "NAME")]
        instance: Option<InstanceName>,
    },
}

impl EventsArgs {
    fn query(&self) -> EventQuery {
        let starts = self.from.is_some() || self.last.is_some() || self.since.is_some();
        let from = self.from.or((self.follow && !starts).then_some(NEXT_EVENT));
        let newest = self.limit.filter(|_| from.is_none() && !self.follow);
        EventQuery {
            from,
            limit: self.limit,
            follow: self.follow,
            last: self.last.or(newest),
            since: self.since,
            probe: self.probe.clone(),
            pid: self.pid,
            comm: self.comm.clone(),
            instance: self.instance.as_ref().map(|name| name.as_str().to_owned()),
        }
    }
}

/// Guest seconds, or a negative number of seconds for a duration before now.
fn since(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let with_unit = UNITS.iter().find_map(|(unit, seconds)| {
        let ago = number(text.strip_suffix(unit)?)? * seconds;
        // Zero has no sign that the service could go by.
        Some(-ago.max(1e-6))
    });
    let wrong = || "write seconds since boot, as 12.5, or a duration, as 10s or 500ms".to_owned();
    with_unit.or_else(|| number(text)).ok_or_else(wrong)
}

pub(super) async fn run(context: &mut Context<'_>, args: &EventsArgs) -> Result<(), CliError> {
    if let Some(EventsCommand::Clear { instance }) = &args.command {
        let instance = instance.as_ref().map(InstanceName::as_str);
        let path = ApiPath::new(&["events"]).query_if("instance", instance);
        context.client.call(Method::DELETE, &path, Payload::Empty).await?;
        return Ok(());
    }
    let query = args.query();
    let (palette, mut notices) = (args.color.palette(), std::io::stderr());
    let print = print(context, query, Patience::default(), palette, &mut notices);
    if !args.follow {
        return print.await;
    }
    // Not in the middle of a line, nor of a colour.
    tokio::select! {
        result = pin!(print) => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn print(
    context: &mut Context<'_>,
    query: EventQuery,
    patience: Patience,
    palette: Palette,
    notices: &mut dyn Write,
) -> Result<(), CliError> {
    let mut reader = EventReader::new(context.client, query, patience);
    let mut callers = Callers::new(context.client);
    while let Some(items) = reader.next().await? {
        for item in &items {
            if context.json {
                print_json(context, item, notices)?;
            } else {
                let text = match &item.line {
                    EventLine::Lost { lost, .. } => lost_text(*lost, &palette),
                    EventLine::Event(event) => {
                        event_text(event, callers.of(event).await.as_deref(), &palette)
                    }
                };
                writeln!(context.out, "{text}")?;
            }
        }
        context.out.flush()?;
    }
    Ok(())
}

/// Prints an event as it came; lost ones are reported on standard error, for programs read events.
fn print_json(
    context: &mut Context<'_>,
    item: &EventItem,
    notices: &mut dyn Write,
) -> Result<(), CliError> {
    match &item.line {
        EventLine::Lost { lost, .. } => {
            // Keeps its place among the events when both go to one terminal.
            context.out.flush()?;
            writeln!(notices, "{}", lost_text(*lost, &Palette::PLAIN))?;
        }
        EventLine::Event(_) => context.print_json(&item.raw)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::extract::RawQuery;
    use axum::routing::get;

    use super::*;
    use crate::cli::block_on;
    use crate::client::testing::{Fake, event_json};

    async fn printed(fake: &Fake, json: bool, palette: Palette) -> (String, String) {
        let (mut out, mut notices) = (Vec::new(), Vec::new());
        let client = fake.client();
        let mut context = Context { client: &client, json, out: &mut out };
        let patience =
            Patience { total: Duration::from_millis(400), first: Duration::from_millis(10) };
        let query = EventQuery::default();
        print(&mut context, query, patience, palette, &mut notices).await.unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(notices).unwrap())
    }

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: EventsArgs,
    }

    fn query(args: &[&str]) -> EventQuery {
        let cli = <Cli as clap::Parser>::try_parse_from([&["events"], args].concat());
        cli.unwrap_or_else(|e| panic!("{args:?}: {e}")).args.query()
    }

    #[test]
    fn a_reader_starts_where_it_is_told() {
        let starts = |args: &[&str]| {
            let EventQuery { from, last, limit, .. } = query(args);
            (from, last, limit)
        };
        assert_eq!(starts(&[]), (None, None, None));
        assert_eq!(starts(&["--limit", "3"]), (None, Some(3), Some(3)), "the newest three");
        assert_eq!(starts(&["--last", "3"]), (None, Some(3), None));
        assert_eq!(starts(&["--from", "5", "--limit", "3"]), (Some(5), None, Some(3)));
        assert_eq!(starts(&["-f"]), (Some(NEXT_EVENT), None, None), "from now on");
        assert_eq!(starts(&["-f", "--limit", "3"]), (Some(NEXT_EVENT), None, Some(3)));
        assert_eq!(starts(&["-f", "--last", "3"]), (None, Some(3), None));
        assert_eq!(starts(&["-f", "--since", "5"]), (None, None, None));
        let selected = query(&["--pid", "7", "--comm", "s*", "--probe", "g/*", "--since", "2m"]);
        assert_eq!((selected.pid, selected.since), (Some(7), Some(-120.0)));
        assert_eq!((&*selected.comm.unwrap(), &*selected.probe.unwrap()), ("s*", "g/*"));
        assert_eq!(query(&["--instance", "foo"]).instance.as_deref(), Some("foo"));
    }

    #[test]
    fn times_are_since_boot_or_before_now() {
        assert_eq!(since("12.5"), Ok(12.5));
        assert_eq!((since("500ms"), since("1h")), (Ok(-0.5), Ok(-3600.0)));
        assert!(since("0s").unwrap() < 0.0);
        for wrong in ["", "s", "-1", "1d", "NaN", "infs", "1 s"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lost_events_are_told_in_their_place() {
        block_on(async {
            let body = format!("{}\n{{\"lost\":3,\"next\":5}}\n{}\n", event_json(1), event_json(5));
            let fake = Fake::text("/v1/events", body);
            let (out, notices) = printed(&fake, false, Palette::PLAIN).await;
            let event = "           <...>-?       [000]      0.000000: e: (f+0x0)\n";
            assert_eq!(out, format!("{event}-- lost 3 events --\n{event}"));
            assert_eq!(notices, "");
            let (out, notices) = printed(&fake, true, Palette::COLORED).await;
            assert_eq!(out, format!("{}\n{}\n", event_json(1), event_json(5)));
            assert_eq!(notices, "-- lost 3 events --\n");
        })
        .unwrap();
    }

    #[test]
    fn returns_have_their_callers_name() {
        block_on(async {
            let event = event_json(1).replace(r#""args""#, r#""ret_addr":"0x14","args""#);
            let symbols = async |RawQuery(query): RawQuery| match query.unwrap().as_str() {
                "name=f&limit=100" => r#"[{"name":"f","addr":"0x1"}]"#,
                _ => r#"[{"name":"caller","addr":"0x10","offset":4}]"#,
            };
            let router = Router::new()
                .route("/v1/events", get(async || event))
                .route("/v1/symbols", get(symbols));
            let (out, _) = printed(&Fake::serve(router), false, Palette::PLAIN).await;
            assert!(out.ends_with(": e: (caller+0x4 <- f)\n"), "{out}");
        })
        .unwrap();
    }

    #[test]
    fn json_has_no_character_that_a_terminal_acts_on() {
        block_on(async {
            let event = event_json(1).replace(r#"{}"#, "{\"s\":\"\u{9b}2J\"}");
            let (out, _) = printed(&Fake::text("/v1/events", event), true, Palette::PLAIN).await;
            assert!(out.contains(r#""s":"\u009b2J""#), "{out:?}");
        })
        .unwrap();
    }
}
