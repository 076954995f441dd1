//! Errors for programs (`--json`): one line of JSON, with the members of problem documents.

use std::error::Error;
use std::ffi::OsString;
use std::io;

use nix::errno::Errno;
use serde_json::{Value, json};

use super::error::CliError;
use super::format::printable_json;
use crate::client::{ClientError, Problem};

/// Whether the arguments ask for JSON. For those that cannot be parsed.
pub(super) fn is_wanted(args: impl Iterator<Item = OsString>) -> bool {
    args.skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Wrong arguments.
pub(super) fn of_usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let (detail, hint) = text.split_once("\n\n").unwrap_or((&text, ""));
    let detail = detail.strip_prefix("error: ").unwrap_or(detail);
    let problem = Problem {
        title: title(CliError::USAGE).to_owned(),
        detail: detail.trim().to_owned(),
        code: "EINVAL".to_owned(),
        ..Problem::default()
    };
    line(document(&problem), Some(hint.trim()))
}

/// A command's error; `None` if it has no text.
pub(super) fn of(error: &CliError) -> Option<String> {
    let document = match error {
        CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return None,
        // The process in the background has written its own.
        CliError::Reported(_) => return None,
        CliError::Client(ClientError::Refused(problem)) | CliError::ScriptRefused(problem) => {
            document(problem)
        }
        CliError::Definition { problem, definition } => {
            let mut document = document(problem);
            document["definition"] = json!(definition.trim());
            document
        }
        CliError::Some { failed, .. } => {
            let each = failed.iter().map(|(name, problem)| {
                let mut document = document(problem);
                document["probe"] = json!(name);
                document
            });
            let errors: Value = each.collect();
            let mut document = document(&own(error));
            document["errors"] = errors;
            document
        }
        _ => document(&own(error)),
    };
    Some(line(document, error.hint()))
}

/// An error that is no service's refusal.
fn own(error: &CliError) -> Problem {
    Problem {
        title: title(error.status()).to_owned(),
        detail: error.to_string(),
        code: code(error),
        ..Problem::default()
    }
}

fn title(status: u8) -> &'static str {
    match status {
        CliError::USAGE => "Wrong usage",
        CliError::FAILED => "Failed",
        _ => "No answer",
    }
}

/// Name of an errno: that of the host's error if there is one.
fn code(error: &CliError) -> String {
    if error.status() == CliError::USAGE {
        return "EINVAL".to_owned();
    }
    let name = match error {
        CliError::TimedOut(_) | CliError::LeftBehind(_) => "ETIMEDOUT",
        CliError::StillPending { .. } | CliError::NotPlaced(_) => "EAGAIN",
        CliError::Stopped(_) => "ESHUTDOWN",
        CliError::Gone(_) | CliError::Ended | CliError::Client(ClientError::Ended) => "ECONNRESET",
        CliError::Client(ClientError::ForeignPeer { .. }) => "EPERM",
        CliError::ProbeGone | CliError::Pattern { .. } => "ENOENT",
        CliError::Some { failed, .. } => {
            return failed
                .first()
                .map_or_else(|| "EIO".to_owned(), |(_, problem)| problem.code.clone());
        }
        _ => {
            let own = if matches!(error, CliError::Host(_)) { "ENODEV" } else { "EIO" };
            return errno(error).map_or_else(|| own.to_owned(), |errno| format!("{errno:?}"));
        }
    };
    name.to_owned()
}

/// The host's errno among an error and what caused it.
fn errno(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(raw) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(Errno::from_raw(raw));
        }
        at = error.source();
    }
    None
}

fn document(problem: &Problem) -> Value {
    let mut document = json!({ "type": "about:blank" });
    if let (Value::Object(all), Ok(Value::Object(members))) =
        (&mut document, serde_json::to_value(problem))
    {
        all.extend(members);
    }
    document
}

fn line(mut document: Value, hint: Option<&str>) -> String {
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        document["hint"] = json!(hint);
    }
    printable_json(&document.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::client::Target;

    fn read(line: &str) -> Value {
        assert!(!line.contains('\n'), "{line}");
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn wrong_usage_is_a_document_with_what_to_do() {
        let error = Cli::try_parse_from(["exoprobe", "--json", "probe", "lst"]).unwrap_err();
        let document = read(&of_usage(&error));
        assert_eq!(
            (&document["code"], &document["title"]),
            (&"EINVAL".into(), &"Wrong usage".into())
        );
        assert!(document["detail"].as_str().unwrap().contains("'lst'"), "{document}");
        let hint = document["hint"].as_str().unwrap();
        assert!(hint.contains("'list'") && hint.contains("Usage: "), "{hint}");
        assert!(document["status"].is_null(), "no service has refused it");
        let wanted = |args: &[&str]| is_wanted(args.iter().map(OsString::from));
        assert!(wanted(&["exoprobe", "probe", "lst", "--json"]));
        assert!(!wanted(&["exoprobe", "probe", "lst", "--", "--json"]) && !wanted(&["--json"]));
    }

    #[test]
    fn a_refusal_has_the_members_that_the_service_gave() {
        let problem = r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"no \u009b","code":"ENOENT",
            "position":4,"near":["b"]}"#;
        let problem: Problem = serde_json::from_str(problem).unwrap();
        let refused = CliError::Client(ClientError::Refused(Box::new(problem.clone())));
        let text = of(&refused).unwrap();
        assert!(text.contains(r"\u009b"), "{text}");
        let expected = json!({"type": "about:blank", "status": 404, "title": "Not Found", "detail": "no \u{9b}",
            "code": "ENOENT", "position": 4, "near": ["b"]});
        assert_eq!(read(&text), expected);
        let definition = "p f".to_owned();
        let error = CliError::Definition { problem: Box::new(problem.clone()), definition };
        assert_eq!(read(&of(&error).unwrap())["definition"], "p f");
        let error = CliError::Some { failed: vec![("g/e".to_owned(), problem)], of: 2 };
        let document = read(&of(&error).unwrap());
        assert_eq!(
            (&document["code"], &document["detail"]),
            (&"ENOENT".into(), &"1 of 2 probes failed".into())
        );
        assert_eq!(
            (&document["errors"][0]["probe"], &document["errors"][0]["status"]),
            (&"g/e".into(), &404.into())
        );
    }

    #[test]
    fn errors_of_the_host_have_its_errno_and_others_their_own() {
        let connect = |source| {
            CliError::Client(ClientError::Connect {
                target: Target::Unix(PathBuf::from("/s")),
                source,
            })
        };
        let document =
            read(&of(&connect(io::Error::from_raw_os_error(libc::ECONNREFUSED))).unwrap());
        assert_eq!(
            (&document["code"], &document["title"]),
            (&"ECONNREFUSED".into(), &"No answer".into())
        );
        assert!(document["hint"].as_str().unwrap().contains("exoprobe run"), "{document}");
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let file = CliError::File { path: PathBuf::from("/f"), source };
        assert_eq!(read(&of(&file).unwrap())["code"], "EACCES");
        for (error, code) in [
            (CliError::TimedOut(5), "ETIMEDOUT"),
            (CliError::NoDefinition, "EINVAL"),
            (CliError::GuestRefused, "EIO"),
            (CliError::Gone(ClientError::Ended), "ECONNRESET"),
        ] {
            assert_eq!(read(&of(&error).unwrap())["code"], code, "{error}");
        }
        assert_eq!(of(&CliError::from(io::Error::from(io::ErrorKind::BrokenPipe))), None);
        assert_eq!(of(&CliError::Reported(1)), None);
    }
}
