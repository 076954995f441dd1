//! Source lines of the kernel's code, against binutils' addr2line.

use std::path::PathBuf;
use std::process::Command;

use exoprobe_guest::Gva;
use exoprobe_introspect::{SourceLines, SourceLocation, SourcePlace, SymbolTable};
use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, exoprobe, finish, guest_file};
use object::{Object as _, ObjectSymbol as _};
use serde_json::{Value, json};

pub(crate) const CASES: &[Case] = cases![
    lines_match_addr2lines_output needs [DebugInfo],
    the_service_returns_lines_of_run_time_addresses needs [Kvm, DebugInfo],
    a_probe_of_a_source_line_counts_its_executions needs [Kvm, DebugInfo],
    lines_have_the_code_that_addr2line_says needs [DebugInfo],
    debug_information_of_another_kernel_is_refused needs [Kvm, DebugInfo],
];

/// Functions that are compared, at three addresses each.
const FUNCTIONS: usize = 200;
const GETPID: &str = "__x64_sys_getpid";

fn debug_info() -> PathBuf {
    guest_file("vmlinux.debug")
}

/// Runs addr2line on addresses: of each the functions, innermost first, with file and line.
fn truth(addresses: &[Gva]) -> Vec<Vec<(String, String)>> {
    let mut command = Command::new("addr2line");
    command.args(["-a", "-i", "-f", "-e"]).arg(debug_info());
    let output = command.args(addresses.iter().map(|at| format!("{:x}", at.0))).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap().split(" (disc").next().unwrap().replace("/./", "/");
        found.last_mut().unwrap().push((line.to_owned(), place));
    }
    assert_eq!(found.len(), addresses.len());
    found
}

/// The same of what exoprobe says.
fn functions_of(location: &SourceLocation) -> Vec<(String, String)> {
    let text = |place: &SourcePlace| format!("{}:{}", place.file, place.line);
    let mut here = text(&location.place);
    let mut frames = Vec::new();
    for call in &location.inlined {
        let caller = call.caller.as_ref().map(text).unwrap_or_default();
        frames.push((
            call.function.clone().unwrap_or_default(),
            std::mem::replace(&mut here, caller),
        ));
    }
    frames.push((location.function.clone().unwrap_or_default(), here));
    frames
}

/// Ours is from the folder of the build; addr2line's is whole.
fn is_same(whole: &str, ours: &str) -> bool {
    whole.strip_suffix(ours).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Addresses and sizes of functions as the file has them: without the padding after them.
fn functions_of_file(symbols: &SymbolTable) -> Vec<(Gva, u64)> {
    let bytes = std::fs::read(debug_info()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let all = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    let all = all.map(|symbol| (Gva(symbol.address()), symbol.size()));
    let mut all: Vec<_> =
        all.filter(|(at, size)| *size >= 16 && symbols.text_contains(*at)).collect();
    all.sort_unstable();
    all
}

fn lines_match_addr2lines_output() {
    let symbols = SymbolTable::load(&debug_info()).unwrap();
    let functions = functions_of_file(&symbols);
    let some = functions.iter().step_by(functions.len() / FUNCTIONS).take(FUNCTIONS);
    let inside =
        |(start, size): &(Gva, u64)| [0, size / 2, size - 1].map(|o| start.wrapping_add(o));
    let mut addresses: Vec<Gva> = some.flat_map(inside).collect();
    addresses.push(symbols.lookup_function(GETPID).unwrap().address);

    let lines = SourceLines::open(&debug_info()).unwrap();
    let (mut with_lines, mut as_deep, mut inlined) = (0, 0, 0);
    for (at, truth) in addresses.iter().zip(truth(&addresses)) {
        let (_, place) = &truth[0];
        let has_line = !place.starts_with("??") && !place.ends_with(":?") && !place.ends_with(":0");
        let Some(location) = lines.lookup(*at, 0).unwrap() else {
            assert!(!has_line, "{at}: {truth:?}");
            continue;
        };
        let functions = functions_of(&location);
        assert!(is_same(place, &functions[0].1), "{at}: {truth:?} {functions:?}");
        let same = |(truth, ours): (&(String, String), &(String, String))| {
            truth.0 == ours.0 && is_same(&truth.1, &ours.1)
        };
        with_lines += 1;
        as_deep +=
            u32::from(truth.len() == functions.len() && truth.iter().zip(&functions).all(same));
        inlined += u32::from(functions.len() > 1);
    }
    // Assembly has no functions; and where an inlined call's ranges are not within its caller's,
    // addr2line sees it still.
    assert!(with_lines > 500 && as_deep * 20 > with_lines * 19, "{as_deep} of {with_lines}");
    assert!(inlined > 50, "{inlined}");
    let getpid = lines.lookup(addresses[addresses.len() - 1], 0).unwrap().unwrap();
    assert_eq!(getpid.place.file, "kernel/sys.c");
}

/// From lines to addresses and back.
fn lines_have_the_code_that_addr2line_says() {
    let symbols = SymbolTable::load(&debug_info()).unwrap();
    let lines = SourceLines::open(&debug_info()).unwrap();
    let getpid = symbols.lookup_function(GETPID).unwrap();
    // A function's own line, and one of a function that is inlined in many.
    let own = lines.lookup(getpid.address, 0).unwrap().unwrap().place;
    // `current`.
    let inline = ("arch/x86/include/asm/current.h", 15);
    let mut counts = Vec::new();
    for (file, line) in [(own.file.as_str(), own.line), inline] {
        let found = lines.code(file, line, 0).unwrap();
        let step = found.len().div_ceil(FUNCTIONS);
        let some: Vec<Gva> = found.iter().copied().step_by(step).collect();
        for truth in truth(&some) {
            assert!(is_same(&truth[0].1, &format!("{file}:{line}")), "{truth:?} {file}:{line}");
        }
        counts.push(found.len());
    }
    println!("copies: {counts:?}");
    assert!(counts[0] == 1 && counts[1] > 500, "{counts:?}");
}

fn a_probe_of_a_source_line_counts_its_executions() {
    let service = service(debug_info().to_str().unwrap());
    let symbol = &get(&service, &format!("/v1/symbols?name={GETPID}"))[0];
    let at = symbol["addr"].as_str().unwrap();
    let source = get(&service, &format!("/v1/symbols?at={at}"))[0]["source"].clone();
    let line = format!("sys.c:{}", source["line"]);
    let client = |args: &[&str]| service.client(args);
    let shown = String::from_utf8(client(&["symbols", &line]).stdout).unwrap();
    assert!(shown.contains(GETPID), "{shown}");
    let added = client(&["probe", "add", &format!("p:line kernel/{line}"), GETPID]);
    assert!(added.status.success(), "{added:?}");
    let sent = client(&["vm", "send", "getpid 100"]);
    assert!(sent.status.success(), "{sent:?}");
    let probes = get(&service, "/v1/probes");
    let hits: Vec<&Value> = probes.as_array().unwrap().iter().map(|probe| &probe["hits"]).collect();
    assert_eq!(hits, [&json!(100), &json!(100)], "{probes}");
    let refused = client(&["probe", "add", "sys.c:1"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("has no code of its own"), "{said}");
}

fn service(debug_info: &str) -> Service {
    let snapshot = TestGuest::snapshot(1);
    Service::start(&["--restore", snapshot.to_str().unwrap(), "--debug-info", debug_info])
}

fn get(service: &Service, path: &str) -> Value {
    http::ask(service.socket(), "GET", path, &[], b"").json()
}

fn the_service_returns_lines_of_run_time_addresses() {
    let service = service(debug_info().to_str().unwrap());
    let at = get(&service, &format!("/v1/symbols?name={GETPID}"))[0]["addr"].clone();
    let at = at.as_str().unwrap();
    let linked = SymbolTable::load(&debug_info()).unwrap().lookup_function(GETPID).unwrap().address;
    let truth = truth(&[linked]).remove(0);
    let found = get(&service, &format!("/v1/symbols?at={at}"));
    let source = &found[0]["source"];
    assert_eq!((&found[0]["name"], &source["file"]), (&json!(GETPID), &json!("kernel/sys.c")));
    let place = format!("kernel/sys.c:{}", source["line"]);
    assert!(is_same(&truth[0].1, &place), "{truth:?} {found}");

    let code = get(&service, &format!("/v1/disassembly?at={GETPID}"));
    let code = code.as_array().unwrap();
    assert_eq!(code[0]["source"], json!(place));
    assert!(code.iter().any(|line| line.get("source").is_none()), "some are of the same line");
    let client = |args: &[&str]| String::from_utf8(service.client(args).stdout).unwrap();
    let shown = client(&["symbols", at]);
    assert!(shown.lines().any(|line| line.starts_with(&place)), "{shown}");
    let shown = client(&["disas", GETPID]);
    assert!(shown.lines().any(|line| line == format!("; {place}")), "{shown}");
}

fn debug_information_of_another_kernel_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("System.map");
    // As if one function had become longer.
    let text = std::fs::read_to_string(guest_file("System.map")).unwrap();
    let moved = text.lines().map(|line| {
        let (address, rest) = line.split_once(' ').unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        format!("{:016x} {rest}\n", if address % 3 == 0 { address + 16 } else { address })
    });
    std::fs::write(&map, moved.collect::<String>()).unwrap();
    let mut command = exoprobe();
    command.arg("run").arg("--kernel").arg(guest_file("bzImage")).arg("--symbols").arg(&map);
    command.arg("--socket").arg(folder.path().join("api.sock"));
    let ended = finish(command.arg("--debug-info").arg(debug_info()), PATIENCE);
    assert!(!ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("another kernel"), "{ended:?}");
}
