//! Events.

use exoprobe_probes::Event;
use serde::Serialize;
use utoipa::ToSchema;

/// A line of events: a hit, or a gap before the hit that follows.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EventLine {
    /// A hit.
    Hit(Box<Event>),
    /// Events that this reader cannot have any more.
    Lost(Lost),
}

/// A server-sent event, by its fields.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "only its schema is used: the fields are text of a stream")]
pub struct ServerSentEvent {
    /// Sequence number of a hit, for `Last-Event-ID`; absent of a gap.
    pub id: Option<u64>,
    /// Kind of `data`.
    pub event: EventName,
    /// As JSON text, in one line.
    pub data: EventLine,
}

/// Name of a server-sent event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventName {
    /// `data` is an `Event`.
    Hit,
    /// `data` is a `Lost`.
    Lost,
}

/// In a stream of events: some were gone before this reader asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    /// How many.
    pub lost: u64,
    /// Sequence number of the event that follows the gap.
    pub next: u64,
}
