//! A command's own probe: counts hits in a histogram until it is time, and goes in every way of
//! ending.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use clap::Args;
use exoprobe_probes::definition::definition_lines;
use exoprobe_probes::{Flag, ProbeDefinition};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::context::Context;
use super::definitions::{has_pattern, read_line, with_kinds};
use super::error::CliError;
use super::show::PENDING;
use crate::client::{ApiPath, Client, ClientError, Payload, StackFrame};
use crate::log::say;
use crate::run::Signals;

/// Group of the probes.
const GROUP: &str = "exoprobe";
/// Delay between two checks that the probe still exists.
const LOOK: Duration = Duration::from_millis(500);
/// HTTP status of a probe that is not there.
const NOT_FOUND: u16 = 404;
/// The tracer's name for a modifier that a field does not have.
pub(super) const BAD_MODIFIER: &str = "BAD_FIELD_MODIFIER";

/// How long to collect, and how much.
#[derive(Clone, Debug, Args)]
pub(super) struct CollectArgs {
    /// Collect for so long, 0.1 to 86400 [default: until Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    limit: Option<Duration>,
    /// Most entries; hits of further ones are counted as dropped
    #[arg(long, value_name = "N", default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(128..=131_072))]
    size: u32,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write 0.1 to 86400 seconds".to_owned())
}

/// The histogram's trigger: its keys, and what its entries are sorted by.
pub(super) struct Wanted {
    pub(super) keys: Vec<String>,
    pub(super) sort: String,
}

/// A histogram as it was at the end.
#[derive(Deserialize)]
pub(super) struct Histogram {
    pub(super) hits: u64,
    dropped: u64,
    pub(super) entries: Vec<Bucket>,
}

/// The hits of one key.
#[derive(Deserialize)]
pub(super) struct Bucket {
    pub(super) keys: Vec<Key>,
    pub(super) hits: u64,
}

/// A value that all hits of an entry have.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Key {
    Unsigned(u64),
    Signed(i64),
    Range { from: u64, to: u64 },
    Task { comm: String, pid: u32 },
    Text(String),
    Stack(Vec<StackFrame>),
}

/// The histogram, and the hits that are not in it.
pub(super) struct Collected {
    pub(super) histogram: Histogram,
    /// As the service sent it, with the two counts below.
    pub(super) json: Value,
    books: Books,
}

/// Hits that are in no histogram.
#[derive(Default, Deserialize)]
struct Books {
    lost: u64,
    nmissed: u64,
}

impl Collected {
    /// All counts in one line. Those of hits that are missing are always among them.
    pub(super) fn totals(&self) -> String {
        let Histogram { hits, dropped, entries } = &self.histogram;
        let Books { lost, nmissed } = self.books;
        let entries = entries.len();
        format!("hits {hits}, entries {entries}, dropped {dropped}, lost {lost}, nmissed {nmissed}")
    }
}

/// Reads the definition of one probe, as `probe add` takes it. Its own name goes.
///
/// # Errors
/// [`CliError::Definition`], [`CliError::Pattern`], [`CliError::NoDefinition`].
pub(super) fn definition(text: &str) -> Result<ProbeDefinition, CliError> {
    let lines = with_kinds(text);
    if has_pattern(&lines) {
        let why = "one place is counted at a time: give SYMBOL[+OFFSET] (`exoprobe probe add` takes patterns and source lines)";
        return Err(CliError::Pattern { pattern: text.to_owned(), why: why.to_owned() });
    }
    let Some((_, line)) = definition_lines(&lines).next() else {
        return Err(CliError::NoDefinition);
    };
    read_line(line)
}

/// Registers a probe, counts its hits by the keys of `wanted` until it is time or a signal comes,
/// and removes it. `wanted` is called with the fields that are known to be no numbers, until the
/// service takes its keys.
///
/// # Errors
/// [`CliError`]; the probe is removed all the same.
pub(super) async fn collect(
    context: &Context<'_>,
    definition: ProbeDefinition,
    args: &CollectArgs,
    wanted: impl Fn(&[String]) -> Wanted,
) -> Result<Collected, CliError> {
    // Before the probe: none may remain.
    let (mut signals, mut impatient) = (Signals::new()?, Signals::new()?);
    let probe = Temporary::new(context.client, context.json);
    let work = async {
        let collected = probe.collect(definition, args, wanted, &mut signals).await;
        let removed = probe.remove().await;
        let collected = collected?;
        removed?;
        Ok(collected)
    };
    let second_signal = async {
        impatient.next().await;
        impatient.next().await;
    };
    tokio::select! {
        collected = work => collected,
        // The service does not answer.
        () = second_signal => Err(CliError::LeftBehind(format!("{GROUP}/{}", probe.event))),
    }
}

/// A probe that no other client has made: its name has this process's number and 64 random bits.
struct Temporary<'c> {
    client: &'c Client,
    /// A program reads standard error.
    json: bool,
    event: String,
}

impl<'c> Temporary<'c> {
    fn new(client: &'c Client, json: bool) -> Self {
        let random = RandomState::new().hash_one(std::process::id());
        Self { client, json, event: format!("tmp_{}_{random:016x}", std::process::id()) }
    }

    fn path(&self, below: &[&str]) -> ApiPath {
        ApiPath::new(&[&["probes", GROUP, &self.event], below].concat())
    }

    async fn collect(
        &self,
        mut definition: ProbeDefinition,
        args: &CollectArgs,
        wanted: impl Fn(&[String]) -> Wanted,
        signals: &mut Signals,
    ) -> Result<Collected, CliError> {
        // An event's filter is for what is shown, and this one shows nothing.
        let filter = definition.filter.take();
        let condition = filter.map(|filter| format!(" if {filter}")).unwrap_or_default();
        self.register(definition).await?;
        let mut no_numbers = Vec::new();
        loop {
            let Wanted { keys, sort } = wanted(&no_numbers);
            let (list, size) = (keys.join(","), args.size);
            let trigger = format!("hist:keys={list}:sort={sort}:size={size}{condition}");
            let Err(error) = self.set(trigger).await else { break };
            match not_of_numbers(&error, &keys) {
                // A modifier that the user gave stays.
                Some(field) if !no_numbers.contains(&field) => no_numbers.push(field),
                _ => return Err(error.into()),
            }
        }
        if args.limit.is_none() && !self.json {
            say!("counting; Ctrl-C ends it and prints");
        }
        tokio::select! {
            error = self.watch() => return Err(error),
            () = signals.next() => {}
            () = until(args.limit) => {}
        }
        self.read().await
    }

    async fn register(&self, mut definition: ProbeDefinition) -> Result<(), CliError> {
        definition.group = Some(GROUP.to_owned());
        definition.event = Some(self.event.clone());
        // Armed by its trigger alone, so that its hits are no events.
        definition.flags = vec![Flag::Disabled];
        let line = definition.to_string();
        let payload = Payload::Json(serde_json::to_value(definition).map_err(ClientError::from)?);
        let added = self.client.call(Method::POST, &ApiPath::new(&["probes"]), payload).await;
        let added = added.map_err(|error| match error {
            ClientError::Refused(mut problem) => {
                // A column of one argument, not of the line.
                problem.position = None;
                CliError::Definition { problem, definition: line }
            }
            other => other.into(),
        })?;
        let probe: Value = serde_json::from_slice(&added).map_err(ClientError::from)?;
        if probe["state"] == PENDING {
            let reason = probe["reason"].as_str().unwrap_or("its text is not there yet");
            return Err(CliError::NotPlaced(reason.to_owned()));
        }
        Ok(())
    }

    async fn set(&self, trigger: String) -> Result<(), ClientError> {
        let path = ApiPath::new(&["tracefs", "events", GROUP, &self.event, "trigger"]);
        self.client.call(Method::POST, &path, Payload::Text(trigger)).await.map(|_| ())
    }

    /// Returns once the probe cannot be asked any more.
    async fn watch(&self) -> CliError {
        loop {
            sleep(LOOK).await;
            if let Err(error) = self.books().await {
                return error;
            }
        }
    }

    async fn books(&self) -> Result<Books, CliError> {
        let probe = self.client.get(&self.path(&[])).await.map_err(gone)?;
        Ok(serde_json::from_slice(&probe).map_err(ClientError::from)?)
    }

    async fn read(&self) -> Result<Collected, CliError> {
        let answer = self.client.get(&self.path(&["histograms"])).await.map_err(gone)?;
        // Later than the histogram: what was lost before it is among them.
        let books = self.books().await?;
        let mut all: Vec<Value> = serde_json::from_slice(&answer).map_err(ClientError::from)?;
        let mut json = all.pop().ok_or(CliError::ProbeGone)?;
        let histogram = Histogram::deserialize(&json).map_err(ClientError::from)?;
        (json["lost"], json["nmissed"]) = (json!(books.lost), json!(books.nmissed));
        Ok(Collected { histogram, json, books })
    }

    /// Removes it, if it is there.
    async fn remove(&self) -> Result<(), CliError> {
        match self.client.call(Method::DELETE, &self.path(&[]), Payload::Empty).await {
            Err(ClientError::Refused(problem)) if problem.status == NOT_FOUND => Ok(()),
            removed => Ok(removed.map(|_| ())?),
        }
    }
}

fn gone(error: ClientError) -> CliError {
    match error {
        ClientError::Refused(problem) if problem.status == NOT_FOUND => CliError::ProbeGone,
        ClientError::Connect { .. } | ClientError::Broken(_) => CliError::Gone(error),
        other => other.into(),
    }
}

/// The key that has no such modifier, as the service refuses a histogram.
fn not_of_numbers(error: &ClientError, keys: &[String]) -> Option<String> {
    let ClientError::Refused(problem) = error else { return None };
    let is_it = |key: &&String| problem.detail.starts_with(&format!("`{key}`"));
    let key = keys.iter().find(is_it).filter(|_| problem.id.as_deref() == Some(BAD_MODIFIER))?;
    key.strip_suffix(".log2").map(str::to_owned)
}

async fn until(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep_until(Instant::now() + limit).await,
        None => std::future::pending().await,
    }
}
