//! Events as they come, across dropped connections.

use std::time::{Duration, Instant};

use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::{ApiPath, Client, ClientError, Lines, Payload};

/// Events asked for at once by a reader that does not follow.
const PAGE: u64 = 1000;

/// Which events to read.
#[derive(Clone, Debug, Default)]
pub struct EventQuery {
    /// Sequence number of the first; the service's choice when absent.
    pub from: Option<u64>,
    /// At most so many.
    pub limit: Option<u64>,
    /// Wait for more instead of ending.
    pub follow: bool,
    /// Begin at the newest so many, where there is no `from`.
    pub last: Option<u64>,
    /// Guest seconds of the first; negative: so long ago.
    pub since: Option<f64>,
    /// Only events of this name, with wildcards.
    pub probe: Option<String>,
    /// Only those of the task of this number.
    pub pid: Option<u32>,
    /// Only those of tasks of this name, with wildcards.
    pub comm: Option<String>,
    /// Those of the trace instance of this name.
    pub instance: Option<String>,
}

/// An event, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct EventRecord {
    /// Sequence number.
    pub seq: u64,
    /// Guest seconds since boot.
    pub time: f64,
    /// vCPU that hit.
    pub vcpu: u32,
    /// Number of the thread that was current.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Group of the probe's event.
    #[serde(default)]
    pub group: String,
    /// Name of the probe's event.
    pub event: String,
    /// Function probed.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    #[serde(default)]
    pub offset: u64,
    /// Probed address.
    pub addr: String,
    /// Where the function returned to, of a return probe.
    pub ret_addr: Option<String>,
    /// How long the call took, of a return probe, in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Values by name.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Back-trace; empty unless the probe asks for it.
    #[serde(default)]
    pub stack: Vec<StackFrame>,
}

/// A place of a back-trace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StackFrame {
    /// Its address.
    pub addr: String,
    /// Function it is in.
    pub symbol_name: Option<String>,
    /// Bytes from the function's start.
    #[serde(default)]
    pub offset: u64,
}

/// A line of the stream.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum EventLine {
    /// An event.
    Event(Box<EventRecord>),
    /// Events that this reader was too slow for.
    Lost {
        /// How many.
        lost: u64,
        /// Sequence number of the next one.
        next: u64,
    },
}

/// A line of the stream, read and as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct EventItem {
    /// As it came.
    pub raw: String,
    /// Read.
    pub line: EventLine,
}

/// How long to try again after a connection dropped.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In all.
    pub total: Duration,
    /// Before the first try; doubled for each further one.
    pub first: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { total: Duration::from_secs(10), first: Duration::from_millis(100) }
    }
}

/// An answer that is being read.
struct Stream {
    lines: Lines,
    since: Instant,
    /// Events it may still hold; `None` is any number.
    left: Option<u64>,
}

/// Tries since the last sign of life.
struct Trouble {
    since: Instant,
    next_wait: Duration,
}

/// Reads events: all there are, page by page, or with `follow` also those to come. A follower goes
/// on where it was when the connection drops.
pub struct EventReader<'c> {
    client: &'c Client,
    query: EventQuery,
    patience: Patience,
    stream: Option<Stream>,
    trouble: Option<Trouble>,
}

impl<'c> EventReader<'c> {
    /// A reader of `client`'s events.
    #[must_use]
    pub fn new(client: &'c Client, query: EventQuery, patience: Patience) -> Self {
        Self { client, query, patience, stream: None, trouble: None }
    }

    /// The lines that came next, at least one; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError`]; for a follower, only when trying again did not help.
    pub async fn next(&mut self) -> Result<Option<Vec<EventItem>>, ClientError> {
        while self.query.limit != Some(0) {
            match self.next_of_stream().await {
                Ok(None) if self.page_was_full() => self.stream = None,
                // A follower asked for no end.
                Ok(None) if self.query.follow => return Err(ClientError::Ended),
                Ok(None) => return Ok(None),
                Ok(Some(lines)) => {
                    let items = self.take(lines)?;
                    if !items.is_empty() {
                        self.trouble = None;
                        return Ok(Some(items));
                    }
                }
                Err(error @ (ClientError::Connect { .. } | ClientError::Broken(_))) => {
                    self.recover(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn next_of_stream(&mut self) -> Result<Option<Vec<String>>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let (path, left) = self.request();
                let response = self.client.send(Method::GET, &path, Payload::Empty).await?;
                let lines = Lines::new(response.into_body());
                self.stream.insert(Stream { lines, since: Instant::now(), left })
            }
        };
        Ok(stream.lines.next().await?)
    }

    /// The next query, and its largest number of events.
    fn request(&self) -> (ApiPath, Option<u64>) {
        let EventQuery { from, limit, follow, last, since, probe, pid, comm, instance } =
            &self.query;
        let limit = if *follow { *limit } else { Some(limit.unwrap_or(PAGE).min(PAGE)) };
        // Once an event was read, it is known where to go on.
        let last = last.filter(|_| from.is_none());
        let path = ApiPath::new(&["events"]).query_if("from", *from).query_if("last", last);
        let path = path.query_if("limit", limit).query_if("since", *since);
        let path = path.query_if("probe", probe.as_ref()).query_if("pid", *pid);
        let path = path.query_if("comm", comm.as_ref()).query_if("instance", instance.as_ref());
        (path.query_if("follow", follow.then_some(true)), limit)
    }

    /// Then there may be more after it.
    fn page_was_full(&self) -> bool {
        !self.query.follow && self.stream.as_ref().is_some_and(|stream| stream.left == Some(0))
    }

    fn take(&mut self, lines: Vec<String>) -> Result<Vec<EventItem>, ClientError> {
        let mut items = Vec::with_capacity(lines.len());
        for raw in lines {
            if self.query.limit == Some(0) {
                break;
            }
            if raw.trim().is_empty() {
                continue;
            }
            let line: EventLine = serde_json::from_str(&raw)?;
            match &line {
                EventLine::Event(event) => {
                    self.query.from = Some(event.seq + 1);
                    self.query.limit = self.query.limit.map(|limit| limit - 1);
                    if let Some(left) = self.stream.as_mut().and_then(|s| s.left.as_mut()) {
                        *left = left.saturating_sub(1);
                    }
                }
                EventLine::Lost { next, .. } => self.query.from = Some(*next),
            }
            items.push(EventItem { raw, line });
        }
        Ok(items)
    }

    /// Waits before the next try, or gives up.
    async fn recover(&mut self, error: ClientError) -> Result<(), ClientError> {
        let lived = self.stream.take().map(|stream| stream.since.elapsed());
        // A service that was never there is not worth waiting for.
        if !self.query.follow || (lived.is_none() && self.trouble.is_none()) {
            return Err(error);
        }
        if lived.is_some_and(|lived| lived >= self.patience.total) {
            self.trouble = None;
        }
        let fresh = Trouble { since: Instant::now(), next_wait: self.patience.first };
        let trouble = self.trouble.get_or_insert(fresh);
        if trouble.since.elapsed() + trouble.next_wait > self.patience.total {
            return Err(error);
        }
        sleep(trouble.next_wait).await;
        trouble.next_wait *= 2;
        Ok(())
    }
}
