//! What `top` shows of a fake service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::routing::get;
use clap::Parser;
use exoprobe_probes::Latency;
use serde_json::{Value, json};

use super::look::how;
use super::screen::Size;
use super::*;
use crate::cli::color::Palette;
use crate::cli::show::ProbeRow;
use crate::client::testing::Fake;

fn json_of(id: u32, event: &str, hits: u64) -> Value {
    json!({"id": id, "kind": "k", "group": "kprobes", "event": event, "symbol_name": "f", "offset": 0,
        "addr": "0x10", "state": "armed", "flags": [], "reason": null, "hits": hits, "nmissed": 1, "recorded": 2,
        "filtered": 3, "lost": 0, "displaced": "boost"})
}

/// A probe with so many hits.
pub(super) fn probe(id: u32, event: &str, hits: u64) -> ProbeRow {
    serde_json::from_value(json_of(id, event, hits)).unwrap()
}

fn sample(at: Instant, probes: Vec<ProbeRow>) -> Sample {
    Sample { at, probes }
}

/// A service whose probe `a` gets 100 hits between two looks, beside one that comes with the second; and the looks.
fn service() -> (Fake, Arc<AtomicU64>) {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let list = async move || {
        let look = counted.fetch_add(1, Ordering::Relaxed);
        let mut probes = vec![json_of(1, "idle", 5), json_of(2, "a", look * 100)];
        if look > 0 {
            let mut optimized = json_of(3, "new", 0);
            optimized["flags"] = json!(["OPTIMIZED"]);
            probes.push(optimized);
        }
        Value::Array(probes).to_string()
    };
    (Fake::serve(Router::new().route("/v1/probes", get(list))), looks)
}

#[derive(Parser)]
struct Topping {
    #[command(flatten)]
    args: TopArgs,
}

fn args(args: &[&str]) -> TopArgs {
    Topping::try_parse_from([&["top"], args].concat()).unwrap().args
}

#[tokio::test]
async fn once_prints_one_table_of_an_interval() {
    let (fake, _) = service();
    let (client, mut out) = (fake.client(), Vec::new());
    let mut context = Context { client: &client, json: false, out: &mut out };
    run(&mut context, &args(&["--once", "--interval", "0.2"])).await.unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["HITS/S", "EVENT", "HITS", "LOST", "NMISSED", "HOW", "RECORDED", "FILTERED", "PLACE"]
    );
    let rate: f64 = lines[1][0].parse().unwrap();
    assert!(rate > 0.0 && rate <= 500.0, "100 hits in 0.2 s at least: {out}");
    assert_eq!(lines[1][1..], ["a", "100", "0", "1", "int3", "2", "3", "f"]);
    assert_eq!(lines[2][..3], ["0.0", "idle", "5"], "then the one with more hits");
    assert_eq!((lines[3][1], lines[3][5]), ("new", "optimized"));
    assert!(!out.contains('\u{1b}'));
}

#[tokio::test]
async fn json_is_an_object_for_each_interval_until_the_service_goes() {
    let (fake, looks) = service();
    let (client, mut out) = (fake.client(), Vec::new());
    let mut context = Context { client: &client, json: true, out: &mut out };
    let (args, stop) = (args(&["--interval", "0.1"]), async {
        while looks.load(Ordering::Relaxed) < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fake.stop();
    });
    let (result, ()) = tokio::join!(run(&mut context, &args), stop);
    let error = result.unwrap_err();
    assert_eq!(error.status(), 3);
    let message = error.message().unwrap();
    assert!(message.starts_with("error: the service went away: "), "{message}");
    let looks: Vec<Value> =
        out.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert!(looks.len() >= 2, "{looks:?}");
    let look = &looks[0];
    assert!(look["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(look["probes"].as_array().unwrap().len(), 3);
    let first = &look["probes"][0];
    assert_eq!(
        (&first["event"], &first["hits"], &first["how"]),
        (&json!("a"), &json!(100), &json!("int3"))
    );
    assert!(first["hits_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(look["hits_per_second"], first["hits_per_second"]);
    assert_eq!(looks[1]["probes"][0]["hits"], 200);
}

#[tokio::test]
async fn a_service_that_was_never_there_did_not_go_away() {
    let (fake, _) = service();
    let client = fake.client();
    fake.stop();
    let mut context = Context { client: &client, json: true, out: &mut io::sink() };
    let message = run(&mut context, &args(&["--once"])).await.unwrap_err().message().unwrap();
    assert!(message.starts_with("error: cannot connect to "), "{message}");
}

#[test]
fn intervals_are_bounded() {
    assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
    for wrong in ["0", "0.05", "-1", "3601", "NaN", "inf", "1s", ""] {
        assert!(interval(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_screen_is_never_overfull() {
    let mut probes: Vec<ProbeRow> = (0..10).map(|id| probe(id, "some_event", id.into())).collect();
    probes[9].symbol_name = Some("長い名前".repeat(30));
    let before = sample(Instant::now(), Vec::new());
    let now = sample(before.at + Duration::from_secs(1), probes);
    let look = Look::new(Some(&before), &now);
    for (columns, rows) in [(80, 24), (80, 12), (80, 11), (41, 3), (7, 2), (1, 1), (0, 0)] {
        let lines = frame(&look, Size { columns, rows }, &Palette::PLAIN);
        assert!(lines.len() <= rows, "{columns}x{rows}: {lines:?}");
        let width = |line: &String| unicode_width::UnicodeWidthStr::width(line.as_str());
        assert!(lines.iter().all(|line| width(line) <= columns), "{columns}x{rows}: {lines:?}");
    }
    let lines = |rows| frame(&look, Size { columns: 80, rows }, &Palette::PLAIN);
    assert_eq!(lines(12).len(), 12);
    assert!(lines(12)[0].starts_with("45.0 hits/s, 10 probes"), "{:?}", lines(12));
    assert!(lines(12)[11].contains("some_event"), "all of them fit");
    assert_eq!(lines(11)[10], "... and 2 more: make the window higher");
    let plain = frame(&look, Size { columns: 80, rows: 24 }, &Palette::PLAIN);
    assert_eq!(plain.len(), 12);
}

#[test]
fn rows_that_lost_events_stand_out() {
    let mut probes = vec![probe(1, "a", 5), probe(2, "b", 4)];
    probes[1].lost = 1;
    let now = sample(Instant::now(), probes);
    let look = Look::new(None, &now);
    assert!(look.seconds.is_none() && look.table().contains("     -"), "no rates yet");
    let lines = frame(&look, Size { columns: 80, rows: 24 }, &Palette::COLORED);
    let lost = Palette::COLORED.lost.to_string();
    assert_eq!(
        lines.iter().map(|line| line.starts_with(&lost)).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    assert!(lines[0].starts_with("0.0 hits/s, 2 probes"), "{lines:?}");
}

#[test]
fn return_probes_show_how_long_their_calls_took() {
    let mut probes = vec![probe(1, "a", 5), probe(2, "b", 4)];
    let buckets = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 1];
    probes[1].latency = Some(Latency { calls: 10, total_ns: 0, max_ns: 2_100, buckets });
    let now = sample(Instant::now(), probes);
    let table = Look::new(None, &now).table();
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0][2..8], ["HITS", "P99", "LATENCY", "P50", "LOST", "NMISSED"]);
    assert_eq!(lines[1][3..], ["0", "1", "int3", "2", "3", "f"]);
    let timed = ["2.10us", "1.02us", "█▁", "4.10us", "2.05us", "0", "1", "int3", "2", "3", "f"];
    assert_eq!(lines[2][3..], timed);
    let narrow = frame(&Look::new(None, &now), Size { columns: 80, rows: 24 }, &Palette::PLAIN);
    assert!(narrow[1].contains("P99") && narrow[3].contains("4.10us"), "at 80 columns: {narrow:?}");
}

#[test]
fn flags_say_how_hits_are_taken() {
    let how = |flags: &[&str]| how(&flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
    assert_eq!(how(&[]), "int3");
    assert_eq!(how(&["OPTIMIZED"]), "optimized");
    assert_eq!(how(&["DISABLED", "CLOBBERED"]), "disabled,clobbered");
}
