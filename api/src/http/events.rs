//! The route of the events: pages of them, or a stream that goes on.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use exoprobe_probes::{Bounds, EventPage, EventSelection};
use exoprobe_tracer::{KeptEvents, Tracer};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::answers::{NotFound, Problems};
use super::extract::Query;
use super::extract::blocking;
use super::problem::Problem;
use super::sse::{self, KEEP_ALIVE, NDJSON};
use super::wire::{EventLine, Lost, ServerSentEvent};
use crate::service::Closing;

/// Header of the sequence number to ask for next.
const NEXT: HeaderName = HeaderName::from_static("exoprobe-next");
/// Events given at once unless the client says.
const DEFAULT_LIMIT: usize = 1000;
/// Most events of one answer that does not follow.
const MAX_LIMIT: usize = 10_000;
/// Events made into text at once: what waits for a slow client is no more than this,
const PAGE: usize = 256;
/// nor events that take more memory than this and one more event, in bytes.
const PAGE_BYTES: usize = 256 << 10;

#[derive(Clone)]
pub(crate) struct EventsApi {
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) closing: Closing,
}

pub(crate) fn routes(api: EventsApi) -> Router {
    Router::new().route("/v1/events", get(events).delete(clear)).with_state(api)
}

/// Which events.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// First sequence number; the oldest event kept when absent. One in the future means the next
    /// event that happens.
    from: Option<u64>,
    /// Most events to give: 1000 when absent, 10,000 at most; any number when following.
    limit: Option<usize>,
    /// Stream what follows, too, until the client leaves. Absent: only as server-sent events.
    follow: Option<bool>,
    /// Start at the newest so many events of those selected, or at `from` if that is later.
    last: Option<usize>,
    /// Only events from this time on: guest seconds since boot or, negative, seconds before now.
    since: Option<f64>,
    /// Only events of this name, or `GROUP/EVENT`: `*` stands for any run of characters, `?` for
    /// any one.
    #[param(example = "open*")]
    probe: Option<String>,
    /// Only events of the task of this number.
    pid: Option<u32>,
    /// Only events of tasks of this name, with `*` and `?`.
    #[param(example = "sh")]
    comm: Option<String>,
    /// The events of the trace instance of this name: it cannot be removed while they are read.
    /// Absent: those of no instance.
    #[param(example = "opens")]
    instance: Option<String>,
}

/// Whose events to forget.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClearQuery {
    /// The trace instance of this name. Absent: none.
    #[param(example = "opens")]
    instance: Option<String>,
}

impl EventsQuery {
    /// The events that are asked for, and where to start.
    fn selection(&self, of: &KeptEvents) -> Result<(EventSelection, Option<u64>), Problem> {
        let since = match self.since {
            Some(since) if !since.is_finite() => {
                return Err(Problem::malformed("`since` is no number of seconds"));
            }
            Some(ago) if ago.is_sign_negative() => {
                Some(Duration::from_micros(of.engine().micros()).as_secs_f64() + ago)
            }
            since => since,
        };
        let (probe, comm) = (self.probe.clone(), self.comm.clone());
        let selection = EventSelection { probe, pid: self.pid, comm, since };
        let last = self.last.map(|count| of.store().start_of_last(count, &selection));
        Ok((selection, self.from.max(last)))
    }
}

/// Events: hits of probes, in order.
///
/// NDJSON, an event a line (an empty line every 15 s without one shows that the service is there),
/// or server-sent events where `Accept` asks for them (`id`: the sequence number, `event`: hit;
/// resumable with `Last-Event-ID`). Where events were gone before this reader got to them, a line
/// or an event `lost` says how many.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header,
        description = "Resume server-sent events after this sequence number")),
    responses((status = 200,
        description = "NDJSON: each line is an `EventLine`. Server-sent events: each has the fields of a \
            `ServerSentEvent`, and lines that begin with a colon are comments. The schemas are those of one line, and \
            of one event",
        content((EventLine = "application/x-ndjson"), (ServerSentEvent = "text/event-stream")),
        headers(("exoprobe-next" = u64,
            description = "Sequence number to ask for next; not when following"))),
        Problems, NotFound))]
pub(crate) async fn events(
    State(api): State<EventsApi>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let as_sse = sse::is_wanted(&headers);
    let resumed =
        sse::last_event_id(&headers)?.filter(|_| as_sse).map(|last| last.saturating_add(1));
    let (tracer, wanted) = (api.tracer, query.clone());
    let selected = blocking(move || {
        let of = tracer.events(wanted.instance.as_deref())?;
        // Hits of before are events before the next one, or the newest, is looked for.
        of.engine().drain();
        let selected = wanted.selection(&of)?;
        Ok::<_, Problem>((of, selected))
    });
    let (of, (selection, from)) = selected.await??;
    let from = resumed.or(from);
    if query.follow.unwrap_or(as_sse) {
        let pages = follow(of, api.closing, from, query.limit, selection);
        return Ok(if as_sse { sse_response(pages) } else { ndjson_response(pages, KEEP_ALIVE) });
    }
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let pages = Pages::new(of, from, limit, selection);
    let next = HeaderValue::from(pages.end);
    let pages = stream::unfold(pages, Pages::next);
    let mut response =
        if as_sse { sse_response(pages) } else { ndjson_response(pages, KEEP_ALIVE) };
    response.headers_mut().insert(NEXT, next);
    Ok(response)
}

/// Forget all events, those in the tracer's `trace` too; with `instance`, those of that instance.
///
/// Sequence numbers go on. Readers do not see these as lost.
#[utoipa::path(delete, path = "/v1/events", tag = "events", operation_id = "clear_events",
    params(ClearQuery), responses((status = 204, description = "Forgotten"), Problems, NotFound))]
pub(crate) async fn clear(
    State(api): State<EventsApi>,
    Query(query): Query<ClearQuery>,
) -> Result<StatusCode, Problem> {
    let cleared = blocking(move || {
        let of = api.tracer.events(query.instance.as_deref())?;
        // Hits of before are moved into the store first, so that they go as well.
        of.engine().drain();
        of.store().clear();
        Ok::<_, Problem>(StatusCode::NO_CONTENT)
    });
    cleared.await?
}

/// A page; a reader that does not say where to start has lost nothing.
fn read(
    of: &KeptEvents,
    from: Option<u64>,
    bounds: Bounds,
    selection: &EventSelection,
) -> EventPage {
    let page = of.store().read_part(from.unwrap_or(0), bounds, selection);
    EventPage { lost: if from.is_some() { page.lost } else { 0 }, ..page }
}

/// The events that there were when a client asked, part by part.
struct Pages {
    of: KeptEvents,
    /// Where to go on; `None` before the first page of a reader that did not say.
    from: Option<u64>,
    /// Sequence number to end before.
    end: u64,
    /// Most events that are left.
    left: usize,
    selection: EventSelection,
}

impl Pages {
    fn new(of: KeptEvents, from: Option<u64>, left: usize, selection: EventSelection) -> Self {
        let end = of.store().end_of(from.unwrap_or(0), left, &selection);
        Self { of, from, end, left, selection }
    }

    /// The next page that holds something.
    async fn next(mut self) -> Option<(EventPage, Self)> {
        while self.left > 0 && self.from.is_none_or(|from| from < self.end) {
            let bounds = Bounds { events: self.left.min(PAGE), bytes: PAGE_BYTES, end: self.end };
            let page = read(&self.of, self.from, bounds, &self.selection);
            self.from = Some(page.next);
            self.left -= page.events.len();
            if !page.events.is_empty() || page.lost > 0 {
                return Some((page, self));
            }
        }
        None
    }
}

fn follow(
    of: KeptEvents,
    closing: Closing,
    from: Option<u64>,
    limit: Option<usize>,
    selection: EventSelection,
) -> impl Stream<Item = EventPage> + Send + 'static {
    let latest = of.store().latest();
    let follower = Follower { of, latest, closing, from, left: limit, selection };
    stream::unfold(follower, Follower::next)
}

/// A client that follows the events.
struct Follower {
    of: KeptEvents,
    latest: watch::Receiver<u64>,
    closing: Closing,
    /// Where to go on; `None` before the first page of a reader without `from`.
    from: Option<u64>,
    /// Events it still wants; `None` is any number.
    left: Option<usize>,
    selection: EventSelection,
}

impl Follower {
    /// The next page that holds something; `None` when it has all, or the service ends.
    async fn next(mut self) -> Option<(EventPage, Self)> {
        loop {
            let max = self.left.map_or(PAGE, |left| left.min(PAGE));
            if max == 0 {
                return None;
            }
            // Before reading, so that no event after it is missed.
            self.latest.mark_unchanged();
            let bounds = Bounds { events: max, bytes: PAGE_BYTES, ..Bounds::default() };
            let page = read(&self.of, self.from, bounds, &self.selection);
            self.from = Some(page.next);
            if !page.events.is_empty() || page.lost > 0 {
                self.left = self.left.map(|left| left - page.events.len());
                return Some((page, self));
            }
            self.closing.or_changed(&mut self.latest).await?;
        }
    }
}

fn lost(page: &EventPage) -> Option<Lost> {
    (page.lost > 0).then_some(Lost { lost: page.lost, next: page.start })
}

/// Lines of JSON. While no page comes, a line with nothing in it shows every `keep_alive` that the
/// service is there.
fn ndjson_response(
    pages: impl Stream<Item = EventPage> + Send + 'static,
    keep_alive: Duration,
) -> Response {
    let pages = Box::pin(pages);
    let body = stream::unfold(pages, move |mut pages| async move {
        let text = match tokio::time::timeout(keep_alive, pages.next()).await {
            Ok(page) => ndjson(&page?).map(Bytes::from),
            Err(_) => Ok(Bytes::from_static(b"\n")),
        };
        Some((text, pages))
    });
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(body)).into_response()
}

fn ndjson(page: &EventPage) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(lost) = lost(page) {
        serde_json::to_writer(&mut text, &lost)?;
        text.push(b'\n');
    }
    for event in &page.events {
        serde_json::to_writer(&mut text, &**event)?;
        text.push(b'\n');
    }
    Ok(text)
}

fn sse_response(pages: impl Stream<Item = EventPage> + Send + 'static) -> Response {
    sse::response(pages.flat_map(|page| stream::iter(sse_events(&page))))
}

/// Without a line of JSON, which no event of the engine is.
fn sse_events(page: &EventPage) -> Vec<Event> {
    let json = |data: serde_json::Result<String>| data.unwrap_or_default();
    let gap = lost(page)
        .map(|lost| Event::default().event("lost").data(json(serde_json::to_string(&lost))));
    let hits = page.events.iter().map(|event| {
        let data = json(serde_json::to_string(&**event));
        Event::default().id(event.seq.to_string()).event("hit").data(data)
    });
    gap.into_iter().chain(hits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(lost: u64) -> EventPage {
        let event = |seq| {
            Arc::new(exoprobe_probes::Event {
                seq,
                time: 0.5,
                vcpu: 0,
                pid: None,
                comm: None,
                group: "kprobes".into(),
                event: "e".into(),
                symbol_name: None,
                offset: 0,
                addr: "0x0".into(),
                ret_addr: None,
                duration_ns: None,
                args: serde_json::Map::new(),
                stack: None,
            })
        };
        EventPage { events: vec![event(7), event(8)], start: 7, next: 9, lost }
    }

    #[test]
    fn a_gap_is_told_before_what_follows_it() {
        let text = String::from_utf8(ndjson(&page(6)).unwrap()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"lost":6,"next":7}"#);
        assert!(lines[1].starts_with(r#"{"seq":7,"#), "{}", lines[1]);
        assert_eq!(lines.len(), 3);
        assert_eq!(ndjson(&page(0)).unwrap().iter().filter(|b| **b == b'\n').count(), 2);
    }

    #[tokio::test]
    async fn lines_without_events_keep_the_connection_alive() {
        let pages = stream::iter([page(0)]).chain(stream::pending());
        let response = ndjson_response(pages, Duration::from_millis(1));
        let mut body = response.into_body().into_data_stream();
        assert!(body.next().await.unwrap().unwrap().starts_with(b"{"));
        for _ in 0..3 {
            assert_eq!(body.next().await.unwrap().unwrap(), "\n");
        }
    }

    #[tokio::test]
    async fn server_sent_events_carry_the_sequence_number() {
        let response = sse_response(stream::iter([page(6)]));
        assert_eq!(response.headers()[header::CONTENT_TYPE], sse::EVENT_STREAM);
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let text = str::from_utf8(&body).unwrap();
        assert!(
            text.starts_with("event: lost\ndata: {\"lost\":6,\"next\":7}\n\nid: 7\nevent: hit\n")
        );
    }
}
