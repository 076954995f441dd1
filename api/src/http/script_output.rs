//! The route of a script's output: bytes as they are, whole lines of JSON, or server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use exoprobe_script::Format;
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::answers::{NotFound, Problems};
use super::extract::{Path, Query};
use super::problem::Problem;
use super::sse::{self, NDJSON};
use super::stream::{NEXT_OFFSET, OCTETS};
use super::wire::{Lost, ScriptEvent};
use crate::scripts::{Extent, ScriptOutput, Scripts};
use crate::service::Closing;

#[derive(Clone)]
pub(super) struct ScriptOutputs {
    pub(super) scripts: Arc<Scripts>,
    pub(super) closing: Closing,
}

/// Which output to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScriptOutputQuery {
    /// Offset of the first byte; older bytes than the last MiB are gone.
    #[serde(default)]
    from: u64,
    /// Stream what follows, too, until the script has ended. Absent: only as server-sent events.
    follow: Option<bool>,
}

/// A script's output.
///
/// Text as bpftrace writes it; NDJSON of a script with `format` `json`; or server-sent events where
/// `Accept` asks for them (`id`: the offset after the line, `event`: line, `data`: the line, of
/// text as a JSON string; resumable with `Last-Event-ID`). A stream ends with the script. Where a
/// reader was too slow for output that is gone, the stream says how many bytes: as text, or as an
/// object or event `lost`.
#[utoipa::path(get, path = "/v1/scripts/{id}/output", tag = "scripts",
    operation_id = "script_output",
    params(("id" = u32, Path, description = "Its number"), ScriptOutputQuery,
        ("Last-Event-ID" = Option<u64>, Header,
            description = "Resume server-sent events after this offset")),
    responses((status = 200,
        description = "NDJSON: the schema is that of one line. Server-sent events: that of one event",
        content((Vec<u8> = "application/octet-stream"), (Object = "application/x-ndjson"),
            (ScriptEvent = "text/event-stream")),
        headers(("exoprobe-next-offset" = u64,
            description = "Offset to go on from; not of a stream"))),
        Problems, NotFound))]
pub(crate) async fn output(
    State(api): State<ScriptOutputs>,
    Path(id): Path<u32>,
    Query(query): Query<ScriptOutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let script = api.scripts.find(id)?;
    let output = Arc::clone(script.output());
    let as_sse = sse::is_wanted(&headers);
    let is_json = script.format() == Format::Json;
    let kind = (header::CONTENT_TYPE, if is_json { NDJSON } else { OCTETS });
    let resumed = sse::last_event_id(&headers)?.filter(|_| as_sse);
    let offset = resumed.unwrap_or(query.from);
    let follows = query.follow.unwrap_or(as_sse);
    if !follows && !as_sse {
        let (start, bytes) = output.read(offset);
        let next = (start + bytes.len() as u64).to_string();
        let headers = [kind, (HeaderName::from_static(NEXT_OFFSET), next.as_str())];
        return Ok((headers, bytes).into_response());
    }
    let extent = output.extent();
    let follower = Follower { output, extent, closing: api.closing, offset, follows };
    if as_sse {
        let events = lines(follower).map(move |piece| event(&piece, is_json));
        return Ok(sse::response(events));
    }
    let body = match is_json {
        true => Body::from_stream(lines(follower).map(|piece| Ok::<_, Infallible>(line(piece)))),
        false => Body::from_stream(chunks(follower).map(|chunk| Ok::<_, Infallible>(text(chunk)))),
    };
    Ok(([kind], body).into_response())
}

/// A client that follows a script's output.
struct Follower {
    output: Arc<ScriptOutput>,
    extent: watch::Receiver<Extent>,
    closing: Closing,
    offset: u64,
    /// It wants what comes, too.
    follows: bool,
}

/// A part of the output.
struct Chunk {
    /// Bytes before it that are gone.
    gone: u64,
    /// Offset of its first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl Follower {
    /// The next bytes, once there are some; `None` once the script has ended.
    async fn next(&mut self) -> Option<Chunk> {
        loop {
            // Before reading, so that no output after it is missed.
            let extent = *self.extent.borrow_and_update();
            let (start, bytes) = self.output.read(self.offset);
            let gone = start.saturating_sub(self.offset);
            if !bytes.is_empty() {
                self.offset = start + bytes.len() as u64;
                return Some(Chunk { gone, start, bytes });
            }
            if extent.is_complete || !self.follows {
                return None;
            }
            self.closing.or_changed(&mut self.extent).await?;
        }
    }
}

fn chunks(follower: Follower) -> impl Stream<Item = Chunk> + Send + 'static {
    stream::unfold(follower, async |mut follower| Some((follower.next().await?, follower)))
}

fn text(chunk: Chunk) -> Bytes {
    match chunk.gone {
        0 => chunk.bytes.into(),
        gone => {
            let lost = format!("\n[{gone} bytes of output are lost]\n").into_bytes();
            [lost, chunk.bytes].concat().into()
        }
    }
}

/// A line of the output, or a gap.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// Without its end.
    Line {
        /// Offset after its end.
        end: u64,
        bytes: Vec<u8>,
    },
    Lost(Lost),
}

/// Cuts output into whole lines.
#[derive(Default)]
struct Cutter {
    /// Bytes of a line that is not whole yet.
    rest: Vec<u8>,
    /// The beginning of a line is gone; the number of bytes that are.
    gone: Option<u64>,
}

impl Cutter {
    fn cut(&mut self, chunk: Chunk) -> Vec<Piece> {
        let Chunk { gone, start, bytes } = chunk;
        if gone > 0 {
            let rest = std::mem::take(&mut self.rest).len() as u64;
            self.gone = Some(self.gone.unwrap_or(0) + rest + gone);
        }
        let (mut pieces, mut at) = (Vec::new(), start);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let length = part.len() as u64;
            at += length;
            match (self.gone, part.strip_suffix(b"\n")) {
                (Some(gone), None) => self.gone = Some(gone + length),
                (Some(gone), Some(_)) => {
                    self.gone = None;
                    pieces.push(Piece::Lost(Lost { lost: gone + length, next: at }));
                }
                (None, None) => self.rest.extend_from_slice(part),
                (None, Some(line)) => {
                    let bytes = [std::mem::take(&mut self.rest).as_slice(), line].concat();
                    pieces.push(Piece::Line { end: at, bytes });
                }
            }
        }
        pieces
    }

    /// The last line, if the output ends without a line's end.
    fn finish(&mut self, end: u64) -> Option<Piece> {
        let bytes = std::mem::take(&mut self.rest);
        (!bytes.is_empty()).then_some(Piece::Line { end, bytes })
    }
}

fn lines(follower: Follower) -> impl Stream<Item = Piece> + Send + 'static {
    let start = (follower, Cutter::default(), false);
    let parts = stream::unfold(start, async |(mut follower, mut cutter, has_ended)| {
        if has_ended {
            return None;
        }
        let (pieces, ends) = match follower.next().await {
            Some(chunk) => (cutter.cut(chunk), false),
            None => (cutter.finish(follower.offset).into_iter().collect(), true),
        };
        Some((stream::iter(pieces), (follower, cutter, ends)))
    });
    parts.flatten()
}

fn line(piece: Piece) -> Bytes {
    let mut bytes = match piece {
        Piece::Line { bytes, .. } => bytes,
        Piece::Lost(lost) => json(&lost).into_bytes(),
    };
    bytes.push(b'\n');
    bytes.into()
}

fn event(piece: &Piece, is_json: bool) -> Event {
    match piece {
        Piece::Line { end, bytes } => {
            let text = String::from_utf8_lossy(bytes);
            let data = match is_json {
                // A carriage return would end the event's line. In JSON it is only a blank.
                true => text.replace('\r', " "),
                false => json(&text),
            };
            Event::default().id(end.to_string()).event("line").data(data)
        }
        Piece::Lost(lost) => Event::default().event("lost").data(json(lost)),
    }
}

/// Numbers and text have no failure.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(gone: u64, start: u64, bytes: &[u8]) -> Chunk {
        Chunk { gone, start, bytes: bytes.to_vec() }
    }

    fn whole(end: u64, text: &str) -> Piece {
        Piece::Line { end, bytes: text.into() }
    }

    #[test]
    fn lines_are_whole_over_chunks_and_gaps() {
        let mut cutter = Cutter::default();
        assert_eq!(cutter.cut(chunk(0, 0, b"one\ntw")), [whole(4, "one")]);
        assert_eq!(cutter.cut(chunk(0, 6, b"o\nthr")), [whole(8, "two")]);
        assert_eq!(cutter.cut(chunk(100, 111, b"no line")), []);
        let lost = Piece::Lost(Lost { lost: 113, next: 121 });
        assert_eq!(cutter.cut(chunk(0, 118, b"no\nfour\nfive")), [lost, whole(126, "four")]);
        assert_eq!(cutter.finish(130), Some(whole(130, "five")));
        assert_eq!(cutter.finish(130), None);
    }

    #[tokio::test]
    async fn events_hold_what_a_guest_writes() {
        let events = stream::iter([
            event(&whole(9, "a\r\u{1b}b"), false),
            event(&whole(20, "{\"type\":\r1}"), true),
            event(&Piece::Lost(Lost { lost: 3, next: 9 }), false),
        ]);
        let body = axum::body::to_bytes(sse::response(events).into_body(), 1 << 16).await.unwrap();
        let expected = "id: 9\nevent: line\ndata: \"a\\r\\u001bb\"\n\n\
            id: 20\nevent: line\ndata: {\"type\": 1}\n\n\
            event: lost\ndata: {\"lost\":3,\"next\":9}\n\n";
        assert_eq!(str::from_utf8(&body).unwrap(), expected);
    }
}
