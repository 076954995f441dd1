//! Files of the tracer, over HTTP.

use exoprobe_tests::Service;
use exoprobe_tests::http::{self, Answer};

pub(crate) fn ask(service: &Service, method: &str, path: &str, text: &str) -> Answer {
    let path = format!("/v1/tracefs/{path}");
    http::ask(service.socket(), method, &path, &["content-type: text/plain"], text.as_bytes())
}

pub(crate) fn cat(service: &Service, path: &str) -> String {
    let answer = ask(service, "GET", path, "");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

/// `echo text > path`
pub(crate) fn replace(service: &Service, path: &str, text: &str) {
    let answer = ask(service, "PUT", path, &format!("{text}\n"));
    assert_eq!(answer.status, 204, "{text} > {path}: {answer:?}");
}

/// `echo text >> path`
pub(crate) fn append(service: &Service, path: &str, text: &str) {
    let answer = ask(service, "POST", path, &format!("{text}\n"));
    assert_eq!(answer.status, 204, "{text} >> {path}: {answer:?}");
}

/// The errno of a write that fails.
pub(crate) fn refused(service: &Service, path: &str, text: &str) -> String {
    let answer = ask(service, "POST", path, text);
    assert!(answer.status >= 400, "{text} >> {path}: {answer:?}");
    answer.json()["code"].as_str().unwrap().to_owned()
}

pub(crate) fn work(service: &Service, command: &str) {
    let answer = service.work(command);
    assert!(answer.starts_with("done "), "{answer}");
}

/// The events in a text of `trace` or `trace_pipe`.
pub(crate) fn events(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}
