//! `exoprobe events`.

use std::io::Write;

use clap::Args;

use super::Context;
use super::error::CliError;
use super::format::event_text;
use crate::client::{EventItem, EventLine, EventQuery, EventReader, Patience};

const EXAMPLES: &str = "\
Examples:
  exoprobe events --limit 20
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
}

pub(super) async fn run(context: &mut Context<'_>, args: &EventsArgs) -> Result<(), CliError> {
    let query = EventQuery { from: args.from, limit: args.limit, follow: args.follow };
    print(context, query, Patience::default(), &mut std::io::stderr()).await
}

async fn print(
    context: &mut Context<'_>,
    query: EventQuery,
    patience: Patience,
    notices: &mut dyn Write,
) -> Result<(), CliError> {
    let mut reader = EventReader::new(context.client, query, patience);
    while let Some(items) = reader.next().await? {
        for item in &items {
            print_item(context, item, notices)?;
        }
        context.out.flush()?;
    }
    Ok(())
}

fn print_item(
    context: &mut Context<'_>,
    item: &EventItem,
    notices: &mut dyn Write,
) -> Result<(), CliError> {
    match &item.line {
        EventLine::Lost { lost, .. } => {
            // Keeps its place among the events when both go to one terminal.
            context.out.flush()?;
            writeln!(notices, "-- lost {lost} events --")?;
        }
        EventLine::Event(_) if context.json => writeln!(context.out, "{}", item.raw)?,
        EventLine::Event(event) => writeln!(context.out, "{}", event_text(event))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::block_on;
    use crate::client::testing::{Fake, event_json};

    async fn printed(fake: &Fake, json: bool, query: EventQuery) -> (String, String) {
        let (mut out, mut notices) = (Vec::new(), Vec::new());
        let client = fake.client();
        let mut context = Context { client: &client, json, out: &mut out };
        let patience =
            Patience { total: Duration::from_millis(400), first: Duration::from_millis(10) };
        print(&mut context, query, patience, &mut notices).await.unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(notices).unwrap())
    }

    #[test]
    fn lost_events_are_told_beside_the_events() {
        block_on(async {
            let body = format!("{{\"lost\":3,\"next\":4}}\n{}\n", event_json(4));
            let fake = Fake::text("/v1/events", body);
            let (out, notices) = printed(&fake, false, EventQuery::default()).await;
            assert_eq!(out, "           <...>-?       [000]      0.000000: e: (f+0x0)\n");
            assert_eq!(notices, "-- lost 3 events --\n");
            let (out, notices) = printed(&fake, true, EventQuery::default()).await;
            assert_eq!(out, format!("{}\n", event_json(4)));
            assert_eq!(notices, "-- lost 3 events --\n");
        })
        .unwrap();
    }
}
