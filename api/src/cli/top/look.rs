//! What top shows: two samples of the probes, and what happened between them.

use std::time::Instant;

use exoprobe_probes::Latency;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rates::rates;
use crate::cli::error::CliError;
use crate::cli::format::{Column, table};
use crate::cli::latency::{duration, sparkline};
use crate::cli::show::ProbeRow;
use crate::client::{ApiPath, Client, ClientError};

/// The books of all probes at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) probes: Vec<ProbeRow>,
}

impl Sample {
    pub(super) async fn take(client: &Client) -> Result<Self, ClientError> {
        let probes: Value = serde_json::from_slice(&client.get(&ApiPath::new(&["probes"])).await?)?;
        Ok(Self { at: Instant::now(), probes: Vec::deserialize(probes)? })
    }

    /// As [`Sample::take`], of a service that has answered before.
    pub(super) async fn again(client: &Client) -> Result<Self, CliError> {
        Self::take(client).await.map_err(|error| match error {
            ClientError::Connect { .. } | ClientError::Broken(_) => CliError::Gone(error),
            other => other.into(),
        })
    }
}

/// A probe and its hits per second, where they are known.
pub(super) struct Row<'a> {
    pub(super) probe: &'a ProbeRow,
    pub(super) rate: Option<f64>,
}

/// What happened between two samples.
pub(super) struct Look<'a> {
    /// Of which the rates are; none before the second sample.
    pub(super) seconds: Option<f64>,
    /// The probe that is hit most often first.
    pub(super) rows: Vec<Row<'a>>,
}

impl<'a> Look<'a> {
    pub(super) fn new(before: Option<&Sample>, now: &'a Sample) -> Self {
        let elapsed = before.map(|before| now.at.saturating_duration_since(before.at));
        let rates = match before.zip(elapsed) {
            Some((before, elapsed)) => rates(&before.probes, &now.probes, elapsed),
            None => vec![None; now.probes.len()],
        };
        let mut rows: Vec<_> =
            now.probes.iter().zip(rates).map(|(probe, rate)| Row { probe, rate }).collect();
        let known = |row: &Row<'_>| row.rate.unwrap_or(-1.0);
        rows.sort_by(|a, b| known(b).total_cmp(&known(a)).then(b.probe.hits.cmp(&a.probe.hits)));
        Self { seconds: elapsed.map(|elapsed| elapsed.as_secs_f64()), rows }
    }

    /// Hits per second of all probes, as far as they are known.
    pub(super) fn total(&self) -> f64 {
        // From 0, for the sum of nothing is -0.
        self.rows.iter().filter_map(|row| row.rate).fold(0.0, |sum, rate| sum + rate)
    }

    /// What matters most stands to the left: a narrow window shows no more.
    pub(super) fn table(&self) -> String {
        let mut columns =
            vec![Column::Number("HITS/S"), Column::Text("EVENT"), Column::Number("HITS")];
        let timed = self.rows.iter().any(|row| row.timed().is_some());
        if timed {
            let [half, most] = [Column::Number("P50"), Column::Number("P99")];
            columns.extend([most, Column::Text("LATENCY"), half]);
        }
        columns.extend([
            Column::Number("LOST"),
            Column::Number("NMISSED"),
            Column::Text("HOW"),
            Column::Number("RECORDED"),
            Column::Number("FILTERED"),
            Column::Text("PLACE"),
        ]);
        table(&columns, self.rows.iter().map(|row| row.cells(timed)))
    }

    pub(super) fn json(&self) -> Value {
        let probes: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({"seconds": self.seconds, "hits_per_second": self.total(), "probes": probes})
    }
}

impl Row<'_> {
    /// How long a return probe's calls took, where some were timed.
    pub(super) fn timed(&self) -> Option<&Latency> {
        self.probe.latency.as_ref().filter(|latency| latency.calls > 0)
    }

    /// With three columns about latency where some probe has them.
    pub(super) fn cells(&self, timed: bool) -> Vec<String> {
        let probe = self.probe;
        let mut cells = vec![
            self.rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            probe.name(),
            probe.hits.to_string(),
        ];
        let within = |thousandths| {
            let found = self.timed().and_then(|latency| latency.quantile(thousandths));
            found.map_or_else(String::new, duration)
        };
        if timed {
            let bars = self.timed().map_or_else(String::new, sparkline);
            cells.extend([within(990), bars, within(500)]);
        }
        cells.extend([probe.lost.to_string(), probe.nmissed.to_string(), how(&probe.flags)]);
        cells.extend([probe.recorded.to_string(), probe.filtered.to_string(), probe.place()]);
        cells
    }

    pub(super) fn json(&self) -> Value {
        let probe = self.probe;
        json!({
            "id": probe.id, "kind": probe.kind, "group": probe.group, "event": probe.event,
            "symbol_name": probe.symbol_name, "offset": probe.offset, "addr": probe.addr,
            "hits_per_second": self.rate, "hits": probe.hits, "recorded": probe.recorded,
            "filtered": probe.filtered, "lost": probe.lost, "nmissed": probe.nmissed,
            "flags": probe.flags, "how": how(&probe.flags), "latency": probe.latency,
        })
    }
}

/// How a probe's hits are taken, or why there are none.
pub(super) fn how(flags: &[String]) -> String {
    if flags.is_empty() { "int3".to_owned() } else { flags.join(",").to_lowercase() }
}
