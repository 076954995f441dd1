//! The service answers as its OpenAPI document says.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::http;
use exoprobe_tests::{
    PATIENCE, Service, TestGuest, cases, finish, guest_file, python_environment, python_file,
};
use serde_json::Value;

pub(crate) const CASES: &[Case] = cases![
    generated_requests_are_answered_as_the_document_says needs [Kvm, Loopback, Python],
    what_is_not_generated_is_as_the_document_says needs [Kvm, Repeat],
    to_empty_a_file_by_accident_is_refused needs [Kvm, Repeat],
];

const TOKEN: &str = "schemathesis-knows-this-token";
/// Requests a route in each of the two modes, valid and invalid; besides those at the bounds of its
/// schemas.
const EXAMPLES: &str = "15";
/// Chooses the requests: the same one, the same requests.
const SEED_ENV: &str = "EXOPROBE_OPENAPI_SEED";
const JSON: &str = "content-type: application/json";
const TEXT: &str = "content-type: text/plain";

fn generated_requests_are_answered_as_the_document_says() {
    let environment = python_environment("schemathesis");
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let snapshot = TestGuest::snapshot(1);
    let types = guest_file("vmlinux.btf");
    let [kernel, kernel_file, initramfs, initramfs_file] = &Service::boot_files();
    let service = Service::start(&[
        "--restore",
        snapshot.to_str().unwrap(),
        kernel,
        kernel_file,
        initramfs,
        initramfs_file,
        "--btf",
        types.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        token.to_str().unwrap(),
    ]);
    // A probe and an event for what asks for one.
    drop(service.ok(&["probe", "add", "p:getpid __x64_sys_getpid"]));
    drop(service.work("getpid 3"));
    let seed = std::env::var(SEED_ENV).unwrap_or_else(|_| "1".to_owned());
    let mut generator = Command::new(environment.join("bin/python"));
    generator.arg(environment.join("bin/schemathesis")).current_dir(dir.path());
    generator.arg("--config-file").arg(python_file("schemathesis.toml"));
    generator.arg("run").arg(format!("http://{}/v1/openapi.json", service.tcp_address()));
    generator.args(["--header", &format!("Authorization: Bearer {TOKEN}"), "--seed", &seed]);
    generator.args(["--max-examples", EXAMPLES, "--generation-database", "none", "--no-color"]);
    let output = finish(&mut generator, PATIENCE);
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{SEED_ENV}={seed}\n{found}\n{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        service.log()
    );
    let status = http::ask(service.socket(), "GET", "/v1/vm", &[], b"").json();
    assert_eq!(status["stopped"], Value::Null, "{status}");
}

/// Asks, and checks that the status is one that the document has for this.
fn ask(service: &Service, method: &str, path: &str, headers: &[&str], body: &str) -> u16 {
    let document = http::ask(service.socket(), "GET", "/v1/openapi.json", &[], b"").json();
    let answer = http::ask(service.socket(), method, path, headers, body.as_bytes());
    let documented = &document["paths"][path][method.to_lowercase()]["responses"];
    let status = answer.status.to_string();
    assert!(documented.get(&status).is_some(), "{method} {path}: {answer:?}, not {documented}");
    answer.status
}

/// All that `tests/python/schemathesis.toml` turns off.
fn what_is_not_generated_is_as_the_document_says() {
    let service = Service::restored(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let snapshot =
        |headers: &[&str], body: &str| ask(&service, "POST", "/v1/vm/snapshot", headers, body);
    let to = |path: &str| serde_json::json!({ "path": path }).to_string();
    assert_eq!(snapshot(&[], ""), 415);
    assert_eq!(snapshot(&[TEXT], &to("/tmp/x")), 415);
    for wrong in ["", "[]", "{}", r#"{"path":7}"#, r#"{"path":"/tmp/x","more":1}"#] {
        assert_eq!(snapshot(&[JSON], wrong), 400, "{wrong}");
    }
    assert_eq!(snapshot(&[JSON], &to("relative")), 422);
    assert_eq!(snapshot(&[JSON], &to("/nonexistent/x")), 422);
    let large = to(&"x".repeat(1 << 20));
    assert_eq!(snapshot(&[JSON], &large), 413);
    assert_eq!(snapshot(&[JSON], &to(path.to_str().unwrap())), 200);
    drop(service.ok(&["probe", "add", "p:getpid __x64_sys_getpid"]));
    assert_eq!(snapshot(&[JSON], &to(path.to_str().unwrap())), 409);
    assert_dumps_are_as_the_document_says(&service, dir.path());
    assert_eq!(ask(&service, "POST", "/v1/vm/reboot", &[], ""), 200);
    assert_eq!(ask(&service, "POST", "/v1/vm/shutdown", &[], ""), 200);
    assert_eq!(ask(&service, "POST", "/v1/vm/shutdown", &[], ""), 200);
    assert_eq!(ask(&service, "POST", "/v1/vm/pause", &[], ""), 409);
}

fn assert_dumps_are_as_the_document_says(service: &Service, dir: &Path) {
    let dump = |headers: &[&str], body: &str| ask(service, "POST", "/v1/vm/dump", headers, body);
    let path = dir.join("core");
    let path = path.to_str().unwrap();
    let to = |path: &str| serde_json::json!({ "path": path }).to_string();
    assert_eq!(dump(&[TEXT], &to(path)), 415);
    for wrong in ["", "{}", r#"{"path":7}"#, r#"{"path":"/tmp/x","force":1}"#] {
        assert_eq!(dump(&[JSON], wrong), 400, "{wrong}");
    }
    for cannot_be in ["relative", "/nonexistent/x", "/dev/null/x", "/tmp/\0", &"/x".repeat(3000)] {
        assert_eq!(dump(&[JSON], &to(cannot_be)), 422, "{cannot_be:?}");
    }
    assert_eq!(dump(&[JSON], &to(&"x".repeat(1 << 20))), 413);
    assert_eq!(dump(&[JSON], &to(path)), 200);
    assert_eq!(dump(&[JSON], &to(path)), 409);
    let forced = serde_json::json!({ "path": path, "force": true }).to_string();
    assert_eq!(dump(&[JSON], &forced), 200);
}

/// `curl -X PUT` has no body; `> kprobe_events` removes all events.
fn to_empty_a_file_by_accident_is_refused() {
    let service = Service::restored(1);
    drop(service.ok(&["probe", "add", "p:getpid __x64_sys_getpid"]));
    let probes = || http::ask(service.socket(), "GET", "/v1/probes", &[], b"").json();
    drop(service.ok(&["probe", "disable", "getpid"]));
    let put = |headers: &[&str]| {
        let path = "/v1/tracefs/kprobe_events";
        http::ask(service.socket(), "PUT", path, headers, b"").status
    };
    assert_eq!(put(&[]), 400);
    assert_eq!(probes().as_array().unwrap().len(), 1);
    assert_eq!(put(&[TEXT]), 204);
    assert_eq!(probes().as_array().unwrap().len(), 0);
}
