//! Histograms of events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use exoprobe_probes::Engine;
use exoprobe_probes::trigger::{CountedEntry, HistogramTable};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answers::{NotFound, Problems};
use super::extract::Path;
use super::extract::blocking;
use super::probes::Name;
use super::problem::Problem;
use super::wire::{Histogram, HistogramEntry};

/// Most answers with histograms at a time. Each keeps the entries that it shows, also those that
/// were cleared meanwhile.
const ANSWERS: usize = 8;
/// Entries that are sent at once.
const PART: usize = 256;

/// The room for answers with histograms.
#[derive(Clone)]
pub(crate) struct HistogramAnswers(Arc<Semaphore>);

impl Default for HistogramAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ANSWERS)))
    }
}

impl HistogramAnswers {
    /// Takes the room of one, which is given back with the permit.
    ///
    /// # Errors
    /// EAGAIN while all are taken.
    pub(crate) fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let detail =
                format!("{ANSWERS} answers with histograms are being sent: ask again later");
            Problem::new("EAGAIN", detail)
        })
    }
}

#[derive(Clone)]
pub(crate) struct HistogramsApi {
    pub(crate) engine: Arc<Engine>,
    pub(crate) answers: HistogramAnswers,
}

pub(crate) fn routes(api: HistogramsApi) -> Router {
    Router::new().route("/v1/probes/{group}/{event}/histograms", get(list)).with_state(api)
}

/// The histograms of an event, in the order in which they were set.
///
/// The tracer's triggers `hist` (`/v1/tracefs/events/GROUP/EVENT/trigger`) set them. They have all
/// hits until now. At most 8 answers with histograms are sent at a time: another is refused
/// (EAGAIN).
#[utoipa::path(get, path = "/v1/probes/{group}/{event}/histograms", tag = "probes",
    operation_id = "list_histograms",
    params(Name),
    responses((status = 200, body = Vec<Histogram<'_>>), Problems, NotFound))]
pub(crate) async fn list(
    State(HistogramsApi { engine, answers }): State<HistogramsApi>,
    Path(name): Path<Name>,
) -> Result<Response, Problem> {
    let permit = answers.take()?;
    let tables = blocking(move || engine.histogram_tables(&name.group, &name.event)).await??;
    let parts = stream::unfold((JsonParts::new(tables), permit), |(mut parts, permit)| async {
        Some((Ok::<_, Infallible>(Bytes::from(parts.next()?)), (parts, permit)))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
}

/// An array of histograms as JSON, part by part: all of it may be many times their memory.
struct JsonParts {
    tables: Vec<HistogramTable>,
    /// The histogram and the entry that come next; `None` after the last part.
    next: Option<(usize, usize)>,
}

impl JsonParts {
    fn new(tables: Vec<HistogramTable>) -> Self {
        Self { tables, next: Some((0, 0)) }
    }
}

impl Iterator for JsonParts {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (at, first) = self.next?;
        let mut text = String::new();
        if (at, first) == (0, 0) {
            text.push('[');
        }
        let Some(table) = self.tables.get(at) else {
            self.next = None;
            return Some(text + "]");
        };
        if first == 0 {
            text.push_str(if at > 0 { "," } else { "" });
            text.push_str(begin(&json(&Histogram::from(&table.head()))));
        }
        for (place, entry) in table.entries.iter().enumerate().skip(first).take(PART) {
            text.push_str(if place > 0 { "," } else { "" });
            text.push_str(&entry_json(table, entry));
        }
        self.next = Some((at, first + PART));
        if first + PART >= table.entries.len() {
            text.push_str(END);
            self.next = Some((at + 1, 0));
        }
        Some(text)
    }
}

/// The end of a histogram: its entries are its last member.
const END: &str = "]}";

/// A histogram without entries, up to where they begin.
fn begin(histogram: &str) -> &str {
    histogram.strip_suffix(END).expect("its entries are its last member")
}

fn entry_json(table: &HistogramTable, entry: &CountedEntry) -> String {
    json(&HistogramEntry::from(&table.entry(entry)))
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and texts become JSON")
}

#[cfg(test)]
mod tests {
    use exoprobe_probes::trigger::{self, HistogramKey};

    use super::*;

    fn table(len: u64) -> HistogramTable {
        let entry = |number| CountedEntry {
            keys: [HistogramKey::Number(number), HistogramKey::Text("\"]}".to_owned())].into(),
            hits: 2,
            sums: Vec::new(),
            tracked: None,
        };
        let field = |name: &str| trigger::HistogramField {
            field: trigger::HistField { name: name.to_owned(), modifier: trigger::Modifier::None },
            is_signed: false,
            is_symbol: false,
            is_operation: false,
        };
        HistogramTable {
            trigger: "hist:keys=a,b".to_owned(),
            keys: vec![field("a"), field("b")],
            values: Vec::new(),
            no_hitcount: false,
            hits: 2 * len,
            dropped: 0,
            entries: (0..len).map(entry).collect(),
            handlers: Vec::new(),
            snapshot: None,
            symbols: None,
        }
    }

    #[test]
    fn parts_make_the_whole() {
        let part = PART as u64;
        for lens in [vec![], vec![0], vec![1], vec![part, 0, part + 1], vec![2 * part, 3]] {
            let tables: Vec<HistogramTable> = lens.iter().map(|len| table(*len)).collect();
            let parts: String = JsonParts::new(tables.clone()).collect();
            let whole: Vec<_> = tables.iter().map(trigger::Histogram::from).collect();
            let whole: Vec<_> = whole.iter().map(Histogram::from).collect();
            assert_eq!(parts, json(&whole), "{lens:?}");
        }
    }

    #[test]
    fn so_many_answers_are_sent_at_a_time() {
        let answers = HistogramAnswers::default();
        let mut taken: Vec<_> = (0..ANSWERS).map(|_| answers.take().unwrap()).collect();
        let busy = answers.take().err().unwrap();
        assert_eq!((busy.status, busy.code), (503, "EAGAIN"));
        taken.pop();
        drop(answers.take().unwrap());
    }
}
