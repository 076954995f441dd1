//! What is written, read by what others published of it.

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::routing::get;
use clap::Parser;
use prost_reflect::prost::Message;
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage};
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::client::testing::{Fake, broken, endless, event_json};

/// Perfetto's own schema: see the script beside it.
const SCHEMA: &str = include_str!("../../../tests/data/perfetto-trace.textproto");
const EVENTS: &str = r#"{"seq":1,"time":1.5,"vcpu":0,"pid":61,"comm":"sh","group":"kprobes","event":"open","symbol_name":"do_open","offset":4,"addr":"0x14","args":{"dfd":-100,"big":18446744073709551615,"flags":"0x8000","name":"/in\u001b","bad":"(fault)"},"stack":[{"addr":"0x14","symbol_name":"do_open","offset":4},{"addr":"0x99","symbol_name":null,"offset":0}]}
{"lost":3,"next":5}
{"seq":5,"time":2.000000001,"vcpu":1,"pid":0,"comm":"swapper/1","group":"g","event":"ret","symbol_name":"f","offset":0,"addr":"0x100","ret_addr":"0x204","args":{}}
{"seq":6,"time":3.0,"vcpu":1,"pid":61,"comm":"sh","group":"kprobes","event":"open","symbol_name":null,"offset":0,"addr":"0x14","args":{}}
{"seq":7,"time":4.0,"vcpu":1,"group":"kprobes","event":"open","symbol_name":null,"offset":0,"addr":"0x14","args":{}}
"#;

/// [`EVENTS`] as far as their third, as a trace.
const TRACE: &str = r#"
    packet { track_descriptor { uuid: 1 name: "Tasks" child_ordering: EXPLICIT } trusted_packet_sequence_id: 1 }
    packet {
        track_descriptor { uuid: 16 name: "sh-61" parent_uuid: 1 sibling_order_rank: 61 }
        trusted_packet_sequence_id: 1
    }
    packet {
        timestamp: 1500000000
        trusted_packet_sequence_id: 1
        track_event {
            type: TYPE_INSTANT track_uuid: 16 categories: "kprobes" name: "open"
            debug_annotations { name: "seq" uint_value: 1 }
            debug_annotations { name: "cpu" uint_value: 0 }
            debug_annotations { name: "pid" uint_value: 61 }
            debug_annotations { name: "comm" string_value: "sh" }
            debug_annotations { name: "group" string_value: "kprobes" }
            debug_annotations { name: "place" string_value: "do_open+0x4" }
            debug_annotations {
                name: "args"
                dict_entries { name: "dfd" int_value: -100 }
                dict_entries { name: "big" uint_value: 18446744073709551615 }
                dict_entries { name: "flags" pointer_value: 0x8000 }
                dict_entries { name: "name" string_value: "/in\033" }
                dict_entries { name: "bad" string_value: "(fault)" }
            }
            callstack { frames { function_name: "0x99" } frames { function_name: "do_open+0x4" } }
        }
    }
    packet { track_descriptor { uuid: 2 name: "lost events" } trusted_packet_sequence_id: 1 }
    packet {
        timestamp: 2000000001
        trusted_packet_sequence_id: 1
        track_event {
            type: TYPE_INSTANT track_uuid: 2 categories: "exoprobe" name: "lost 3 events"
            debug_annotations { name: "lost" uint_value: 3 }
        }
    }
    packet {
        track_descriptor { uuid: 17 name: "idle, CPU 1" parent_uuid: 1 sibling_order_rank: 1 }
        trusted_packet_sequence_id: 1
    }
    packet {
        timestamp: 2000000001
        trusted_packet_sequence_id: 1
        track_event {
            type: TYPE_INSTANT track_uuid: 17 categories: "g" name: "ret"
            debug_annotations { name: "seq" uint_value: 5 }
            debug_annotations { name: "cpu" uint_value: 1 }
            debug_annotations { name: "pid" uint_value: 0 }
            debug_annotations { name: "comm" string_value: "swapper/1" }
            debug_annotations { name: "group" string_value: "g" }
            debug_annotations { name: "place" string_value: "f+0x0" }
            debug_annotations { name: "caller" string_value: "g+0x4" }
        }
    }"#;

#[derive(Parser)]
struct Exporting {
    #[command(flatten)]
    args: ExportArgs,
}

fn parsed(args: &[&str]) -> ExportArgs {
    Exporting::try_parse_from([&["export"], args].concat()).unwrap().args
}

/// A service that has `body` of events, and a caller at 0x204.
fn service(body: impl Fn() -> Body + Clone + Send + Sync + 'static) -> Fake {
    let events = async move |RawQuery(query): RawQuery| match query.as_deref() {
        Some("limit=0") => Body::empty(),
        _ => body(),
    };
    let symbols = async |RawQuery(query): RawQuery| match query.unwrap().as_str() {
        "name=f&limit=100" => r#"[{"name":"f","addr":"0x100"}]"#,
        _ => r#"[{"name":"g","addr":"0x200","offset":4}]"#,
    };
    let router = Router::new().route("/v1/events", get(events)).route("/v1/symbols", get(symbols));
    Fake::serve(router)
}

/// What is in the file, what was printed, and how it ended.
async fn exported(fake: &Fake, args: &[&str]) -> (Vec<u8>, String, Result<(), CliError>) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("trace");
    let (client, mut out) = (fake.client(), Vec::new());
    let mut context = Context { client: &client, json: true, out: &mut out };
    let args = parsed(&[args, &["--output", path.to_str().unwrap()]].concat());
    let result = run(&mut context, &args).await;
    (std::fs::read(path).unwrap(), String::from_utf8(out).unwrap(), result)
}

fn published_trace() -> MessageDescriptor {
    let set = DescriptorPool::global();
    let set = set.get_message_by_name("google.protobuf.FileDescriptorSet").unwrap();
    let set = DynamicMessage::parse_text_format(set, SCHEMA).unwrap().encode_to_vec();
    let published = DescriptorPool::decode(set.as_slice()).unwrap();
    published.get_message_by_name("perfetto.protos.Trace").unwrap()
}

/// A message by names and values. Fields that the schema does not have show as numbers.
fn text(message: &DynamicMessage) -> String {
    let options = FormatOptions::new().pretty(true).skip_unknown_fields(false);
    message.to_text_format_with_options(&options)
}

fn decoded(bytes: &[u8]) -> DynamicMessage {
    DynamicMessage::decode(published_trace(), bytes).unwrap()
}

#[tokio::test]
async fn perfettos_schema_reads_what_was_written() {
    let fake = service(|| Body::from(EVENTS));
    let (bytes, _, result) = exported(&fake, &[]).await;
    result.unwrap();
    let expected = DynamicMessage::parse_text_format(published_trace(), TRACE).unwrap();
    let (written, expected) = (text(&decoded(&bytes)), text(&expected));
    // More packets follow.
    let expected = expected.strip_suffix(']').unwrap();
    assert_eq!(written.get(..expected.len()).unwrap_or(&written), expected);
    let tracks = written.matches("parent_uuid: 1\n").count();
    assert!(tracks == 3 && written.contains("\"unknown task, CPU 1\""), "{written}");
}

#[test]
fn the_schema_would_show_a_wrong_number() {
    // Field 200 of a packet, and field 11 as a number in place of a message.
    let packet = |bytes: &[u8]| [&[0x0a, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let unknown = decoded(&packet(&[0xc0, 0x0c, 0x07]));
    assert!(text(&unknown).contains("200: 7"), "{}", text(&unknown));
    let wrong = packet(&[0x58, 0x07]);
    assert!(DynamicMessage::decode(published_trace(), wrong.as_slice()).is_err());
    assert_eq!(decoded(&[]).descriptor().full_name(), "perfetto.protos.Trace");
}

#[tokio::test]
async fn vcpus_may_be_the_tracks() {
    let fake = service(|| Body::from(EVENTS));
    let written = text(&decoded(&exported(&fake, &["--tracks", "cpu"]).await.0));
    for part in ["\"CPUs\"", "\"CPU 0\"", "\"CPU 1\"", "sibling_order_rank: 1"] {
        assert_eq!(written.matches(part).count(), 1, "{part}: {written}");
    }
    assert!(!written.contains("sh-61"));
}

/// Checks what "Trace Event Format" asks of each event.
fn check_chrome(trace: &Value) -> &Vec<Value> {
    assert!(matches!(trace["displayTimeUnit"].as_str(), Some("ms" | "ns")));
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        let is_metadata = event["ph"] == "M";
        assert!(event["name"].is_string() && event["args"].is_object(), "{event}");
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        if is_metadata {
            let key = match event["name"].as_str().unwrap() {
                "process_name" | "thread_name" => event["args"]["name"].is_string(),
                "process_sort_index" | "thread_sort_index" => event["args"]["sort_index"].is_u64(),
                _ => false,
            };
            assert!(key, "{event}");
        } else {
            assert!(event["ts"].is_f64() && event["cat"].is_string(), "{event}");
            let kind = match event["ph"].as_str() {
                Some("i") => matches!(event["s"].as_str(), Some("g" | "p" | "t")),
                Some("X") => event["dur"].is_f64() && event.get("s").is_none(),
                _ => false,
            };
            assert!(kind, "{event}");
        }
    }
    events
}

#[tokio::test]
async fn chromes_format_has_the_documented_fields() {
    let fake = service(|| Body::from(EVENTS));
    let (bytes, told, result) = exported(&fake, &["--format", "chrome"]).await;
    result.unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["events"], &told["lost"], &told["format"]),
        (&json!(4), &json!(3), &json!("chrome"))
    );
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    let events = check_chrome(&trace);
    let hits: Vec<&Value> = events.iter().filter(|event| event["ph"] == "i").collect();
    assert_eq!(
        *hits[0],
        json!({"name": "open", "cat": "kprobes", "ph": "i", "ts": 1_500_000.0, "pid": 61, "tid": 61, "s": "t",
            "args": {"seq": 1, "cpu": 0, "pid": 61, "comm": "sh", "group": "kprobes", "place": "do_open+0x4",
                "args": {"dfd": -100, "big": "18446744073709551615", "flags": "0x8000", "name": "/in\u{1b}",
                    "bad": "(fault)"},
                "stack": ["do_open+0x4", "0x99"]}})
    );
    assert_eq!((&hits[1]["name"], &hits[1]["s"]), (&json!("lost 3 events"), &json!("g")));
    assert_eq!(hits[1]["ts"], hits[2]["ts"], "where the next event is");
    assert_eq!(
        (&hits[2]["ts"], &hits[2]["args"]["caller"]),
        (&json!(2_000_000.001), &json!("g+0x4"))
    );
    let named = |tid: u64| {
        let is = |event: &&Value| event["name"] == "thread_name" && event["tid"] == tid;
        events
            .iter()
            .filter(is)
            .map(|event| event["args"]["name"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(named(61), ["sh-61"], "once");
    let others: Vec<u64> = hits[2..].iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(named(others[0]), ["idle, CPU 1"]);
    assert_eq!(named(others[2]), ["unknown task, CPU 1"]);
    assert!(others[0] > 1 << 22 && others[2] > 1 << 22, "no task of Linux has them: {others:?}");
    let raw = String::from_utf8(bytes).unwrap();
    assert!(!raw.contains('\u{1b}'), "harmless on a terminal, too");
}

#[tokio::test]
async fn calls_are_slices_on_the_tracks_of_their_tasks() {
    let line = |seq: u64, pid: u32| {
        format!(
            r#"{{"seq":{seq},"time":3.0,"vcpu":0,"pid":{pid},"comm":"sh","group":"g","event":"ret","symbol_name":"f","offset":0,"addr":"0x100","ret_addr":"0x204","duration_ns":1500,"args":{{}}}}"#
        ) + "\n"
    };
    let fake = service(move || Body::from(line(1, 61) + &line(2, 0)));
    let (bytes, _, result) = exported(&fake, &["--format", "chrome"]).await;
    result.unwrap();
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    let calls: Vec<&Value> = check_chrome(&trace).iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(calls.len(), 2);
    assert_eq!((&calls[0]["ts"], &calls[0]["dur"]), (&json!(2_999_998.5), &json!(1.5)));
    let written = text(&decoded(&exported(&fake, &[]).await.0));
    for part in ["timestamp: 2999998500", "type: TYPE_SLICE_BEGIN", "type: TYPE_SLICE_END"] {
        assert_eq!(written.matches(part).count(), 2, "{part}: {written}");
    }
    // Calls on one vCPU are of several tasks, and begin and end as they like.
    let by_cpu = text(&decoded(&exported(&fake, &["--tracks", "cpu"]).await.0));
    assert_eq!(by_cpu.matches("type: TYPE_INSTANT").count(), 2);
    assert_eq!(by_cpu.matches("name: \"duration_ns\"").count(), 2);
}

#[tokio::test]
async fn all_pages_are_written() {
    let events = async |RawQuery(query): RawQuery| {
        let (from, count) = match query.as_deref() {
            Some("limit=1000") => (1, 1000),
            Some("from=1001&limit=1000") => (1001, 3),
            _ => (0, 0),
        };
        (from..from + count).map(|seq| event_json(seq) + "\n").collect::<String>()
    };
    let fake = Fake::serve(Router::new().route("/v1/events", get(events)));
    let (bytes, told, result) = exported(&fake, &[]).await;
    result.unwrap();
    assert!(told.contains(r#""events":1003"#), "{told}");
    assert_eq!(text(&decoded(&bytes)).matches("track_event {").count(), 1003);
}

#[tokio::test]
async fn what_comes_is_written_and_from_where_it_is_told() {
    let events = async |RawQuery(query): RawQuery| match query.as_deref() {
        Some("limit=0") => Body::empty(),
        Some("from=18446744073709551615&follow=true") => Body::from(event_json(9)),
        Some("from=5&follow=true") => Body::from(event_json(5)),
        other => panic!("{other:?}"),
    };
    let fake = Fake::serve(Router::new().route("/v1/events", get(events)));
    for (args, seq) in
        [(&["--follow"][..], 9), (&["--seconds", "600"], 9), (&["--follow", "--from", "5"], 5)]
    {
        let (bytes, _, result) = exported(&fake, &[args, &["--format", "chrome"]].concat()).await;
        result.unwrap();
        let trace: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(check_chrome(&trace).last().unwrap()["args"]["seq"], seq);
    }
}

#[tokio::test]
async fn a_trace_ends_when_its_time_is_over() {
    let fake = service(|| endless(String::new()));
    let (bytes, told, result) = exported(&fake, &["--format", "chrome", "--seconds", "1"]).await;
    result.unwrap();
    assert!(check_chrome(&serde_json::from_slice(&bytes).unwrap()).is_empty());
    assert!(told.contains(r#""events":0"#), "{told}");
}

#[tokio::test]
async fn a_trace_is_whole_where_reading_breaks_off() {
    let fake = service(|| broken(format!("{}\n{{\"lost\":2,\"next\":4}}\n", event_json(1))));
    let (bytes, told, result) = exported(&fake, &["--format", "chrome"]).await;
    assert_eq!(result.unwrap_err().status(), 3);
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(check_chrome(&trace).last().unwrap()["args"]["lost"], 2);
    assert!(told.contains(r#""events":1,"lost":2"#), "{told}");
}

#[tokio::test]
async fn a_file_is_left_alone_where_nobody_answers() {
    let fake = service(Body::empty);
    let client = fake.client();
    fake.stop();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("old");
    std::fs::write(&path, "precious").unwrap();
    let mut context = Context { client: &client, json: false, out: &mut io::sink() };
    let error = run(&mut context, &parsed(&["-o", path.to_str().unwrap()])).await.unwrap_err();
    assert_eq!((error.status(), std::fs::read_to_string(&path).unwrap().as_str()), (3, "precious"));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_named() {
    let fake = service(Body::empty);
    let client = fake.client();
    let mut context = Context { client: &client, json: false, out: &mut io::sink() };
    for path in ["/nonexistent/trace", "/dev/full"] {
        let error = run(&mut context, &parsed(&["-o", path])).await.unwrap_err();
        let message = error.message().unwrap();
        assert!(message.starts_with(&format!("error: cannot write {path}: ")), "{message}");
        assert_eq!(error.status(), 1);
    }
}

#[tokio::test]
async fn standard_output_takes_a_trace_but_no_terminal_a_binary_one() {
    let fake = service(|| Body::from(event_json(1)));
    let (client, mut out) = (fake.client(), Vec::new());
    let mut context = Context { client: &client, json: false, out: &mut out };
    run(&mut context, &parsed(&["--format", "chrome"])).await.unwrap();
    check_chrome(&serde_json::from_slice(&out).unwrap());
    let error = parsed(&[]).check(true).unwrap_err();
    assert!(error.message().unwrap().contains("--output") && error.status() == 2);
    assert!(parsed(&[]).check(false).is_ok() && parsed(&["-o", "x"]).check(true).is_ok());
    assert!(parsed(&["--format", "chrome"]).check(true).is_ok());
}

#[test]
fn what_is_no_time_is_none() {
    for (seconds, time) in [(0.1, 100_000_000), (-1.0, 0), (f64::NAN, 0), (1e300, 0)] {
        assert_eq!(nanoseconds(seconds), time, "{seconds}");
    }
}
