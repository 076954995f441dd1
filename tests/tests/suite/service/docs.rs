//! The documentation's shell blocks, pasted into one shell in the order in which a reader meets
//! them.

mod markdown;

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Running, Service, TestGuest, cases, exoprobe, guest_file};
use serde_json::{Value, json};

use markdown::{Block, Kind};

pub(crate) const CASES: &[Case] = cases![
    blocks_are_read_as_they_are_marked,
    every_shell_block_runs_as_it_stands needs [Kvm, Fuse, Namespaces, TraceCmd, Perf, Shell],
    event_lines_are_of_the_schema needs [Kvm, Repeat],
];

/// As a reader goes through them.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/api.md", "docs/tracer.md"];
/// Most blocks that may be marked as not run.
const NOT_RUN_MAX: usize = 2;
/// Begins a line of the output that says which block comes next.
const MARK: &str = "\u{1e}block ";

/// A folder that is all that the blocks see of this host: `/tmp` in them, and their working
/// directory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("target/release")).unwrap();
        let program = exoprobe().get_program().to_owned();
        symlink(program, dir.path().join("target/release/exoprobe")).unwrap();
        let guest = guest_file("..").canonicalize().unwrap();
        symlink(guest, dir.path().join("guest")).unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
        symlink(scripts.canonicalize().unwrap(), dir.path().join("scripts")).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A script of all blocks that run.
    fn script(&self, blocks: &[(&str, Block)]) -> PathBuf {
        let dir = self.path().to_str().unwrap();
        let mut script = format!(
            "cd {dir}\nexport PATH={dir}/target/release:$PATH\n\
            trap 'jobs=$(jobs -p); cd {dir}; [ -z \"$jobs\" ] || kill $jobs; wait' EXIT\nset -e\n"
        );
        for (at, (_, block)) in blocks.iter().enumerate() {
            if block.kind == Kind::Shell {
                let text = block.text.replace("/tmp/", &format!("{dir}/"));
                writeln!(script, "printf '\\n{MARK}{at}\\n'\n{text}").unwrap();
            }
        }
        writeln!(script, "printf '\\n{MARK}end\\n'").unwrap();
        let path = self.path().join("script");
        std::fs::write(&path, script).unwrap();
        path
    }
}

/// A mount that a failed run has left.
impl Drop for Place {
    fn drop(&mut self) {
        let tracing = self.path().join("tracing");
        let _ = exoprobe().args(["mount", "--unmount"]).arg(tracing).output();
    }
}

fn blocks() -> Vec<(&'static str, Block)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let of = |name: &'static str| {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        let blocks = markdown::blocks(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        blocks.into_iter().map(move |block| (name, block))
    };
    DOCUMENTS.into_iter().flat_map(of).collect()
}

fn every_shell_block_runs_as_it_stands() {
    let blocks = blocks();
    let skipped: Vec<String> =
        blocks.iter().filter_map(|(name, block)| not_run(name, block)).collect();
    println!("not run:\n{}", skipped.join("\n"));
    assert!(skipped.len() <= NOT_RUN_MAX, "blocks that nothing tests are to be rare: {skipped:?}");
    let place = Place::new();
    let mut shell = Command::new("bash");
    shell.arg(place.script(&blocks)).env_remove("EXOPROBE_SOCKET").env_remove("EXOPROBE_TOKEN");
    let output = Running::spawn(shell.process_group(0)).finish(PATIENCE);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let mark = format!("\n{MARK}");
    let mut outputs = text.split(&mark).skip(1).map(|output| {
        let (mark, output) = output.split_once('\n').unwrap();
        (mark.to_owned(), output.to_owned())
    });
    let (mut last, mut shown) = (String::new(), String::new());
    for (at, (name, block)) in blocks.iter().enumerate() {
        let line = block.line;
        match &block.kind {
            Kind::Shell => match outputs.next() {
                Some((mark, output)) if mark == at.to_string() => (last, shown) = (mark, output),
                _ => break,
            },
            Kind::Output => assert_eq!(
                comparable(&shown, place.path()),
                comparable(&block.text, place.path()),
                "{name}:{line}: shows another output than there is:\n{shown}"
            ),
            Kind::NotRun(_) | Kind::Other => {}
        }
    }
    let at = last.parse().ok().and_then(|at: usize| blocks.get(at));
    let at =
        at.map_or(String::new(), |(name, block)| format!("{name}:{}:\n{}", block.line, block.text));
    assert!(output.status.success(), "{at}\nits output:\n{shown}\nall errors:\n{errors}");
}

/// The validator of a component of the service's OpenAPI document.
fn schema(service: &Service, component: &str) -> jsonschema::Validator {
    let mut document = get(service, "/v1/openapi.json", &[]).json();
    document["$ref"] = format!("#/components/schemas/{component}").into();
    jsonschema::validator_for(&document).unwrap()
}

fn get(service: &Service, path: &str, headers: &[&str]) -> Answer {
    let answer = http::ask(service.socket(), "GET", path, headers, b"");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer
}

/// The fields of each server-sent event of a text.
fn server_sent(text: &str) -> Vec<Value> {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        let is_json = name != "event";
        let value = if is_json { serde_json::from_str(value).unwrap() } else { value.into() };
        (name.to_owned(), value)
    };
    let event = |event: &str| Value::Object(event.lines().map(field).collect());
    text.split("\n\n").filter(|event| !event.is_empty()).map(event).collect()
}

fn event_lines_are_of_the_schema() {
    const KEPT: &str = "12";
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().unwrap(), "--events", KEPT]);
    let probes = json!([
        {"event": "plain", "symbol_name": "__x64_sys_getpid"},
        {"event": "open", "symbol_name": "do_sys_openat2", "args": ["dfd", "filename:string", "w=+0(%si):x8[2]", "f=+0(%di)"]},
        {"kind": "r", "event": "opened", "symbol_name": "do_sys_openat2", "args": ["$retval:s32"], "actions": ["stack"]},
    ]);
    let _ = service.ok(&["probe", "add", &probes.to_string()]);
    for work in ["open /init 20", "getpid 3"] {
        assert!(service.work(work).starts_with("done "));
    }
    let (line, event) = (schema(&service, "EventLine"), schema(&service, "ServerSentEvent"));
    let check = |schema: &jsonschema::Validator, value: &Value| {
        let faults: Vec<String> =
            schema.iter_errors(value).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{value}: {faults:?}");
    };
    let text = get(&service, "/v1/events?from=1", &[]).body;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 13, "{text}");
    assert!(lines[0].get("lost").is_some() && lines.iter().any(|line| line.get("stack").is_some()));
    lines.iter().for_each(|value| check(&line, value));
    let path = "/v1/events?from=1&follow=false";
    let sent = server_sent(&get(&service, path, &["accept: text/event-stream"]).body);
    assert_eq!(
        sent.iter().map(|sent| &sent["data"]).collect::<Vec<_>>(),
        lines.iter().collect::<Vec<_>>()
    );
    sent.iter().for_each(|value| check(&event, value));
    // Neither would take anything.
    for change in ["seq", "offset", "addr", "args"] {
        let mut other = lines[1].clone();
        other.as_object_mut().unwrap().remove(change);
        assert!(!line.is_valid(&other), "without {change}");
    }
    let mut more = lines[1].clone();
    more["more"] = 1.into();
    assert!(!line.is_valid(&more) && !line.is_valid(&json!({"lost": -1, "next": 1})));
}

fn not_run(name: &str, block: &Block) -> Option<String> {
    match &block.kind {
        Kind::NotRun(reason) => Some(format!("{name}:{}: {reason}", block.line)),
        _ => None,
    }
}

/// Keys whose values differ from run to run.
const VARYING: [&str; 6] =
    ["\"seq\":", "\"time\":", "\"duration_ns\":", "\"offset\":", "\"next\":", "id: "];

/// Output without what differs from run to run: addresses, times, numbers of events, the folder.
fn comparable(text: &str, dir: &Path) -> String {
    let mut text = text.trim().replace(dir.to_str().unwrap(), "/tmp");
    let is_hex = |c: char| c.is_ascii_hexdigit();
    text = without(&text, "0x", is_hex);
    for key in VARYING {
        text = without(&text, key, |c| c.is_ascii_digit() || c == '.');
    }
    text
}

/// A text with `#` in place of the characters that follow each `key` and are `value`'s.
fn without(text: &str, key: &str, value: impl Fn(char) -> bool) -> String {
    let mut parts = text.split(key);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(&value);
        let cut = if rest.len() < part.len() { "#" } else { "" };
        text + key + cut + rest
    })
}

fn blocks_are_read_as_they_are_marked() {
    let text = "```sh\na\n```\n\n<!-- output -->\n```json\n1\n```\n<!-- not run: slow -->\n\n```sh\nb\n```\n```text\nc\n```\n";
    let kinds: Vec<Kind> =
        markdown::blocks(text).unwrap().into_iter().map(|block| block.kind).collect();
    assert_eq!(kinds, [Kind::Shell, Kind::Output, Kind::NotRun("slow".to_owned()), Kind::Other]);
    for wrong in [
        "```\na\n```\n",
        "```sh\na\n",
        "text\n\n    indented\n",
        "<!-- output -->\n```json\n1\n```\n",
        "<!-- not run: -->\n```sh\na\n```\n",
        "<!-- not run: slow -->\ntext\n",
    ] {
        assert!(markdown::blocks(wrong).is_err(), "{wrong}");
    }
    let dir = Path::new("/tmp/x");
    assert_eq!(
        comparable("{\"time\":1.5,\"a\":\"0xff\"} /tmp/x/y\n", dir),
        "{\"time\":#,\"a\":\"0x#\"} /tmp/y"
    );
    assert_ne!(comparable("{\"pid\":1}", dir), comparable("{\"pid\":2}", dir));
}
