//! `exoprobe events`.

use std::io::Write;
use std::pin::pin;

use clap::Args;

use super::Context;
use super::callers::Callers;
use super::color::{ColorArgs, Palette};
use super::error::CliError;
use super::event_text::{event_text, lost_text};
use super::format::printable_json;
use crate::client::{EventItem, EventLine, EventQuery, EventReader, Patience};

const EXAMPLES: &str = "\
Examples:
  exoprobe events --limit 20
  exoprobe events --follow --color always | less -R
  exoprobe events --follow --json | jq .args";

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct EventsArgs {
    /// Start at this sequence number
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Wait for more; go on where it was when the connection drops
    #[arg(long, short)]
    follow: bool,
    /// At most so many events
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    color: ColorArgs,
}

pub(super) async fn run(context: &mut Context<'_>, args: &EventsArgs) -> Result<(), CliError> {
    let query = EventQuery { from: args.from, limit: args.limit, follow: args.follow };
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

/// Prints an event as it came; what was lost is told beside them, for programs read events.
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
        EventLine::Event(_) => writeln!(context.out, "{}", printable_json(&item.raw))?,
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
