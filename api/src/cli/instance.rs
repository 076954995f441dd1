//! `exoprobe instance`: trace instances and their events.

use std::str::FromStr;

use clap::{Args, Subcommand};
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::error::CliError;
use super::format::{Column, table};
use crate::client::{ApiPath, Client, ClientError, Payload};

const ADD_EXAMPLES: &str = "\
Examples:
  exoprobe instance add opens
  exoprobe instance add opens && exoprobe instance enable opens open
  exoprobe events --instance opens --follow";

const LIST_EXAMPLES: &str = "\
Examples:
  exoprobe instance list
  exoprobe instance list --json | jq -r '.[] | select(.events == []) | .name'";

const ENABLE_EXAMPLES: &str = "\
Examples:
  exoprobe instance enable opens open
  exoprobe instance enable opens mygroup:open 'vfs:*'";

const DISABLE_EXAMPLES: &str = "\
Examples:
  exoprobe instance disable opens open
  exoprobe instance disable opens '*:*'";

/// Commands about trace instances.
#[derive(Debug, Subcommand)]
pub(super) enum InstanceCommand {
    /// Make trace instances: each has events of its own, of the same probes
    #[command(after_help = ADD_EXAMPLES)]
    Add(Names),
    /// List the instances, each with the events that are enabled or have triggers in it
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Remove instances with their events, unless these are being read or a histogram there has
    /// variables
    #[command(after_help = "Example:\n  exoprobe instance rm opens")]
    Rm(Names),
    /// Enable events in an instance, whether or not they are enabled elsewhere
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable(Events),
    /// Disable events in an instance
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable(Events),
}

/// Names of instances.
#[derive(Debug, Args)]
pub(super) struct Names {
    /// Name of an instance; several are taken in order, until one is refused
    #[arg(value_name = "NAME", required = true)]
    names: Vec<InstanceName>,
}

/// Events of an instance.
#[derive(Debug, Args)]
pub(super) struct Events {
    /// Name of the instance
    #[arg(value_name = "NAME")]
    instance: InstanceName,
    /// GROUP:EVENT, where either may be `*` for all, or the name of a group or an event
    #[arg(value_name = "EVENT", required = true)]
    events: Vec<EventWord>,
}

/// Name of an instance: that of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceName(String);

impl FromStr for InstanceName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.is_empty() || text == "." || text == ".." || text.contains('/') {
            true => Err("the name of a folder, without a `/`"),
            false => Ok(Self(text.to_owned())),
        }
    }
}

impl InstanceName {
    /// A file of the instance; its folder for none.
    fn path(&self, file: &[&str]) -> ApiPath {
        ApiPath::new(&[&["tracefs", "instances", &self.0], file].concat())
    }

    /// As events of `/v1/events` are asked for.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A word of the file `set_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventWord(String);

impl FromStr for EventWord {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_one = !text.is_empty() && !text.starts_with('!');
        match is_one && !text.contains(|c: char| c.is_ascii_whitespace()) {
            // As in other commands.
            true => Ok(Self(text.replacen('/', ":", 1))),
            false => Err("write GROUP:EVENT, or the name of a group or an event"),
        }
    }
}

/// An instance, as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    /// `GROUP:EVENT` of the events that are enabled or have triggers in it.
    events: Vec<String>,
}

pub(super) async fn run(
    context: &mut Context<'_>,
    command: InstanceCommand,
) -> Result<(), CliError> {
    match command {
        InstanceCommand::Add(Names { names }) => {
            for name in names {
                let none = Payload::Text(String::new());
                context.client.call(Method::PUT, &name.path(&[]), none).await?;
            }
            Ok(())
        }
        InstanceCommand::Rm(Names { names }) => {
            for name in names {
                context.client.call(Method::DELETE, &name.path(&[]), Payload::Empty).await?;
            }
            Ok(())
        }
        InstanceCommand::List => list(context).await,
        InstanceCommand::Enable(events) => set_events(context, &events, "").await,
        InstanceCommand::Disable(events) => set_events(context, &events, "!").await,
    }
}

/// Writes words to the instance's `set_event`, each with `sign` before it.
async fn set_events(
    context: &mut Context<'_>,
    Events { instance, events }: &Events,
    sign: &str,
) -> Result<(), CliError> {
    let words: String = events.iter().map(|EventWord(word)| format!("{sign}{word}\n")).collect();
    let path = instance.path(&["set_event"]);
    context.client.call(Method::POST, &path, Payload::Text(words)).await?;
    Ok(())
}

async fn list(context: &mut Context<'_>) -> Result<(), CliError> {
    let all = instances(context.client).await?;
    if context.json {
        let document = serde_json::to_string(&all).map_err(ClientError::from)?;
        return Ok(context.print_json(&document)?);
    }
    let rows = all.into_iter().map(|Listed { name, events }| {
        vec![name, if events.is_empty() { "-".to_owned() } else { events.join(",") }]
    });
    let columns = [Column::Text("NAME"), Column::Text("EVENTS")];
    Ok(writeln!(context.out, "{}", table(&columns, rows))?)
}

async fn instances(client: &Client) -> Result<Vec<Listed>, CliError> {
    /// The answer of a folder.
    #[derive(Deserialize)]
    struct Folder {
        entries: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        name: String,
    }
    let folder = client.get(&ApiPath::new(&["tracefs", "instances"])).await?;
    let Folder { entries } = serde_json::from_slice(&folder).map_err(ClientError::from)?;
    let mut all = Vec::new();
    for Entry { name } in entries {
        let path = InstanceName(name.clone()).path(&["set_event"]);
        let events = match client.get(&path).await {
            Ok(events) => String::from_utf8_lossy(&events).into_owned(),
            // It was removed meanwhile.
            Err(ClientError::Refused(problem)) if problem.code == "ENOENT" => continue,
            Err(error) => return Err(error.into()),
        };
        let events = events.lines().map(str::to_owned).collect();
        all.push(Listed { name, events });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::Path;
    use axum::http::{Method, StatusCode};
    use axum::routing::get;

    use super::*;
    use crate::cli::tests::exoprobe;
    use crate::client::testing::Fake;

    /// A service with two instances, and the requests that it was sent.
    fn service() -> (Fake, Arc<Mutex<Vec<String>>>) {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&noted);
        let note = async move |method: Method, Path(path): Path<String>, body: String| {
            noted.lock().unwrap().push(format!("{method} {path} {body}"));
            match path.as_str() {
                "none" => {
                    let problem = r#"{"detail":"there is no instance `none`","code":"ENOENT"}"#;
                    (StatusCode::NOT_FOUND, problem)
                }
                "a/set_event" if method == Method::GET => (StatusCode::OK, "g:e\nkprobes:f\n"),
                "b c/set_event" if method == Method::GET => (StatusCode::OK, ""),
                "gone/set_event" => {
                    (StatusCode::NOT_FOUND, r#"{"detail":"it has gone","code":"ENOENT"}"#)
                }
                _ => (StatusCode::NO_CONTENT, ""),
            }
        };
        const FOLDER: &str = r#"{"entries":[{"name":"a"},{"name":"gone"},{"name":"b c"}]}"#;
        let router = Router::new().route("/v1/tracefs/instances", get(async || FOLDER));
        let at = axum::routing::put(note.clone()).post(note.clone()).delete(note.clone()).get(note);
        (Fake::serve(router.route("/v1/tracefs/instances/{*path}", at)), requests)
    }

    #[tokio::test]
    async fn instances_are_made_and_removed_until_one_is_refused() {
        let (fake, requests) = service();
        exoprobe(&fake, &["instance", "add", "x", "y z"]).await.1.unwrap();
        let (out, result) = exoprobe(&fake, &["instance", "rm", "x", "none", "y z"]).await;
        let error = result.unwrap_err();
        let message = error.message().unwrap();
        assert_eq!(message, "error: there is no instance `none` (ENOENT)");
        assert_eq!((error.status(), out.as_str()), (1, ""));
        let all = ["PUT x ", "PUT y z ", "DELETE x ", "DELETE none "];
        assert_eq!(*requests.lock().unwrap(), all);
    }

    #[tokio::test]
    async fn events_are_enabled_by_words_of_set_event() {
        let (fake, requests) = service();
        exoprobe(&fake, &["instance", "enable", "a", "e", "g/e", "g:*"]).await.1.unwrap();
        exoprobe(&fake, &["instance", "disable", "a", "e", "*:*"]).await.1.unwrap();
        let all = ["POST a/set_event e\ng:e\ng:*\n", "POST a/set_event !e\n!*:*\n"];
        assert_eq!(*requests.lock().unwrap(), all);
    }

    #[tokio::test]
    async fn they_are_listed_for_people_and_programs() {
        let (fake, _) = service();
        let (out, result) = exoprobe(&fake, &["instance", "list"]).await;
        result.unwrap();
        assert_eq!(out, "NAME  EVENTS\na     g:e,kprobes:f\nb c   -\n");
        let (out, result) = exoprobe(&fake, &["instance", "list", "--json"]).await;
        result.unwrap();
        let listed = r#"[{"name":"a","events":["g:e","kprobes:f"]},{"name":"b c","events":[]}]"#;
        assert_eq!(out, format!("{listed}\n"));
    }

    #[test]
    fn names_are_those_of_folders_and_words_those_of_events() {
        let path = "a b".parse::<InstanceName>().unwrap().path(&["trace"]);
        assert_eq!(path.as_str(), "/v1/tracefs/instances/a%20b/trace");
        for wrong in ["", ".", "..", "a/b", "/"] {
            assert!(wrong.parse::<InstanceName>().is_err(), "{wrong}");
        }
        for wrong in ["", "!e", "a b", "a\n"] {
            assert!(wrong.parse::<EventWord>().is_err(), "{wrong}");
        }
    }
}
