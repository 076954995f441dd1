//! Perfetto's trace: protobuf.
//!
//! A hit is an instant on the track of its task or vCPU, a call of a return probe a slice on that of its task. Tracks are of no process: events tell their thread alone.

use std::io::{self, Write};

use prost::Message;
use serde_json::Value;

use super::hit::{Hit, TraceFormat};
use super::schema::{
    AnnotationValue, ChildTracksOrdering, DebugAnnotation, EventType, Frame, InlineCallstack,
    Trace, TracePacket, TrackDescriptor, TrackEvent,
};
use super::tracks::{Track, TrackBy, Tracks};
use crate::cli::event_text::number;

/// The only writer of the trace.
const SEQUENCE: u32 = 1;
/// The track that all others stand below.
const HEADING: u64 = 1;
/// The track of what is missing.
const LOST: u64 = 2;
/// The first track of a task or vCPU.
const FIRST: u64 = 16;

/// Writes Perfetto's trace.
pub(super) struct Perfetto {
    by: TrackBy,
    tracks: Tracks,
    has_lost: bool,
}

impl Perfetto {
    pub(super) fn new(by: TrackBy) -> Self {
        Self { by, tracks: Tracks::default(), has_lost: false }
    }

    /// The number of a track, which is told of where it is new.
    fn track(&mut self, track: &Track, out: &mut dyn Write) -> io::Result<u64> {
        let (number, new) = self.tracks.number(track);
        let uuid = FIRST + number;
        if new {
            let described = TrackDescriptor {
                uuid: Some(uuid),
                name: Some(track.name()),
                parent_uuid: Some(HEADING),
                child_ordering: None,
                sibling_order_rank: Some(i32::try_from(track.rank()).unwrap_or(i32::MAX)),
            };
            describe(described, out)?;
        }
        Ok(uuid)
    }
}

impl TraceFormat for Perfetto {
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let heading = TrackDescriptor {
            uuid: Some(HEADING),
            name: Some(self.by.heading().to_owned()),
            child_ordering: Some(ChildTracksOrdering::Explicit.into()),
            ..TrackDescriptor::default()
        };
        describe(heading, out)
    }

    fn hit(&mut self, hit: &Hit<'_>, out: &mut dyn Write) -> io::Result<()> {
        let uuid = self.track(&hit.track, out)?;
        let frames: Vec<Frame> =
            hit.stack().rev().map(|place| Frame { function_name: Some(place) }).collect();
        let event = TrackEvent {
            debug_annotations: hit
                .details()
                .into_iter()
                .map(|(name, value)| annotation(Some(name), value))
                .collect(),
            categories: vec![hit.event.group.clone()],
            callstack: (!frames.is_empty()).then_some(InlineCallstack { frames }),
            ..instant(uuid, hit.event.event.clone())
        };
        if hit.took.is_none() {
            return write_event(event, hit.time, out);
        }
        let event = TrackEvent { r#type: Some(EventType::SliceBegin.into()), ..event };
        write_event(event, hit.begin(), out)?;
        let end = TrackEvent {
            r#type: Some(EventType::SliceEnd.into()),
            track_uuid: Some(uuid),
            ..TrackEvent::default()
        };
        write_event(end, hit.time, out)
    }

    fn lost(&mut self, lost: u64, time: u64, out: &mut dyn Write) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_lost, true) {
            let name = Some("lost events".to_owned());
            describe(
                TrackDescriptor { uuid: Some(LOST), name, ..TrackDescriptor::default() },
                out,
            )?;
        }
        let event = TrackEvent {
            debug_annotations: vec![annotation(Some("lost".to_owned()), lost.into())],
            categories: vec!["exoprobe".to_owned()],
            ..instant(LOST, format!("lost {lost} events"))
        };
        write_event(event, time, out)
    }

    fn end(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

fn instant(track: u64, name: String) -> TrackEvent {
    TrackEvent {
        r#type: Some(EventType::Instant.into()),
        track_uuid: Some(track),
        name: Some(name),
        ..TrackEvent::default()
    }
}

fn describe(track: TrackDescriptor, out: &mut dyn Write) -> io::Result<()> {
    write(TracePacket { track_descriptor: Some(track), ..TracePacket::default() }, out)
}

fn write_event(event: TrackEvent, time: u64, out: &mut dyn Write) -> io::Result<()> {
    let packet =
        TracePacket { timestamp: Some(time), track_event: Some(event), ..TracePacket::default() };
    write(packet, out)
}

/// Traces one behind the other are one trace that has the packets of all.
fn write(packet: TracePacket, out: &mut dyn Write) -> io::Result<()> {
    let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
    out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
}

/// A value, and those in it. Numbers in hexadecimal digits, which JSON has as text, stay numbers.
fn annotation(name: Option<String>, value: Value) -> DebugAnnotation {
    let mut annotation = DebugAnnotation { name, ..DebugAnnotation::default() };
    annotation.value = match value {
        Value::Null => None,
        Value::Bool(value) => Some(AnnotationValue::Bool(value)),
        Value::Number(value) => value
            .as_u64()
            .map(AnnotationValue::Uint)
            .or_else(|| value.as_i64().map(AnnotationValue::Int))
            .or_else(|| value.as_f64().map(AnnotationValue::Double)),
        Value::String(text) => Some(match number(&text) {
            Some(number) => AnnotationValue::Pointer(number),
            None => AnnotationValue::String(text),
        }),
        Value::Array(values) => {
            annotation.array_values =
                values.into_iter().map(|value| self::annotation(None, value)).collect();
            None
        }
        Value::Object(members) => {
            annotation.dict_entries = members
                .into_iter()
                .map(|(name, value)| self::annotation(Some(name), value))
                .collect();
            None
        }
    };
    annotation
}
