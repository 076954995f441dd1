//! Server-sent events, and lines of JSON: what streams have in common.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};

use super::extract::accepts;
use super::problem::Problem;

pub(super) const NDJSON: &str = "application/x-ndjson";
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// Between two comments of a stream without events.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
const LAST_EVENT_ID: &str = "last-event-id";

/// Does the client ask for server-sent events?
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    accepts(headers, EVENT_STREAM)
}

/// The `id` of the last event that a client has had, if it says so.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| Problem::malformed("Last-Event-ID is no number of an event"))
}

/// Answers with events.
pub(super) fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = events.map(Ok::<_, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_events_has_comments() {
        let begun = Instant::now();
        let mut body = response(stream::pending()).into_body().into_data_stream();
        for count in 1..4 {
            let part = timeout(2 * KEEP_ALIVE, body.next()).await.expect("it is alive");
            let part = part.expect("it goes on").expect("it is whole");
            assert!(part.starts_with(b":") && part.ends_with(b"\n\n"), "{part:?}");
            assert!(begun.elapsed() >= count * KEEP_ALIVE, "{:?}", begun.elapsed());
        }
    }
}
