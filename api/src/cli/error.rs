//! Errors of commands, and the exit status of each.

use std::io;
use std::path::PathBuf;

use exoprobe_vmm::HostError;

use super::format::{caret, printable, printable_lines};
use crate::client::{ClientError, Problem, Target, TargetError};
use crate::mount::MountError;
use crate::run::RunError;
use crate::runtime_folder::RuntimeFolderError;
use crate::token_file::TokenFileError;

const NO_ANSWER: u8 = 3;
/// HTTP status of a request without the right token.
const UNAUTHORIZED: u16 = 401;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The service could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The service refused a definition.
    #[error("{problem}")]
    Definition {
        /// Its refusal.
        problem: Box<Problem>,
        /// The definition that it is about.
        definition: String,
    },
    /// Some of several probes could not be changed.
    #[error("{} of {of} probes failed", .failed.len())]
    Some {
        /// Their names, each with why.
        failed: Vec<(String, Problem)>,
        /// How many were to be changed.
        of: usize,
    },
    /// A type without a size is asked for in memory.
    #[error("{0} has no value in memory: it is a function, or nothing is known of it but its name")]
    NoValue(String),
    /// No definition was given.
    #[error("no definition: give some as arguments, or a file with -f")]
    NoDefinition,
    /// JSON beside other definitions.
    #[error("JSON definitions stand alone: give one argument, or one file with -f")]
    MixedDefinitions,
    /// Flags beside JSON definitions.
    #[error("JSON definitions say it themselves: --filter and flags for actions go with lines")]
    FlagsWithJson,
    /// A filter in a definition and as a flag.
    #[error("{0}: give a filter either as `if FILTER` or with --filter")]
    TwoFilters(String),
    /// A pattern that stands for no probes.
    #[error("{pattern}: {why}")]
    Pattern {
        /// As given.
        pattern: String,
        /// The fault.
        why: String,
    },
    /// No function that a pattern matches can be probed.
    #[error("no probe was added: all {0} functions were refused")]
    AllRefused(usize),
    /// A temporary probe waits for its place.
    #[error("the probe cannot be placed yet, and was removed: {0}")]
    NotPlaced(String),
    /// A temporary probe went before its time.
    #[error("another client removed the probe: nothing is left of what it counted")]
    ProbeGone,
    /// A second signal came while a temporary probe was still there.
    #[error("ended before the service answered: `exoprobe probe rm {0}` removes the probe")]
    LeftBehind(String),
    /// A key of a histogram is none.
    #[error("{key}: {why}")]
    Key {
        /// As given.
        key: String,
        /// The fault.
        why: String,
    },
    /// Probes were added, and the time to wait for them is over.
    #[error("{count} of {of} probes still pending after {seconds} s, and kept: {reason}")]
    StillPending {
        /// How many wait.
        count: usize,
        /// How many were added.
        of: usize,
        /// How long they were waited for.
        seconds: u64,
        /// Reason that the first is pending.
        reason: String,
    },
    /// The URL is wrong.
    #[error("--url {url}: {source}")]
    Url {
        /// As given.
        url: String,
        /// The fault.
        source: TargetError,
    },
    /// The token's file cannot be used.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A terminal cannot show what is asked for.
    #[error("a Perfetto trace is binary: give --output FILE, or send standard output elsewhere")]
    BinaryToTerminal,
    /// There is no terminal to draw on.
    #[error("standard output is no terminal to draw on: give --once for one table, or --json")]
    NoTerminal,
    /// The service ended while it was looked at.
    #[error("the service went away: {0}")]
    Gone(ClientError),
    /// A path that JSON cannot hold.
    #[error("the path {0:?} is not UTF-8, which the service needs")]
    Path(PathBuf),
    /// The guest answered a command with an error, which is printed already.
    #[error("the guest refused")]
    GuestRefused,
    /// The guest did not answer a command.
    #[error(
        "the guest did not answer within {0} s: does its init take commands with numbers on serial \
         port 1 (guest/README.md), and is it done with earlier ones?"
    )]
    TimedOut(u64),
    /// The guest has stopped, so that it answers nothing.
    #[error("the guest has stopped ({0}); `exoprobe vm reboot` boots it again")]
    Stopped(String),
    /// The service ended the guest's output.
    #[error("the guest's output ended without an answer")]
    Ended,
    /// There is no folder of this user's services.
    #[error("cannot look for services: {0}")]
    Folder(#[from] RuntimeFolderError),
    /// The service could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The service could not be mounted, or unmounted.
    #[error(transparent)]
    Mount(MountError),
    /// This host cannot run guests.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A script ended with this status.
    #[error("the script ended with status {0}")]
    Script(u8),
    /// The service refused a script, with the places of its faults.
    #[error("{}", .0.detail)]
    ScriptRefused(Box<Problem>),
    /// A script is to be read from a file, and given as text.
    #[error("give the script either as a file or with -e")]
    NoScript,
    /// A process in the background ended with this status, and has said why.
    #[error("the process in the background ended with status {0}")]
    Reported(u8),
    /// Standard output or input.
    #[error("standard input or output: {0}")]
    Output(#[from] io::Error),
    /// No event loop.
    #[error("cannot start the event loop: {0}")]
    Runtime(io::Error),
}

impl From<MountError> for CliError {
    fn from(error: MountError) -> Self {
        match error {
            MountError::Service(error) => Self::Client(error),
            other => Self::Mount(other),
        }
    }
}

impl CliError {
    /// Exit status of what was refused or failed.
    pub(super) const FAILED: u8 = 1;
    /// Exit status of wrong usage.
    pub(super) const USAGE: u8 = 2;

    /// Exit status of the process.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Url { .. }
            | Self::NoDefinition
            | Self::NoScript
            | Self::MixedDefinitions
            | Self::FlagsWithJson
            | Self::TwoFilters(_)
            | Self::Key { .. }
            | Self::BinaryToTerminal
            | Self::NoTerminal
            | Self::Path(_) => Self::USAGE,
            Self::Client(
                ClientError::Connect { .. } | ClientError::Broken(_) | ClientError::Ended,
            )
            | Self::Gone(_)
            | Self::Mount(MountError::NoAnswer)
            | Self::TimedOut(_)
            | Self::Stopped(_)
            | Self::StillPending { .. }
            | Self::LeftBehind(_)
            | Self::Ended => NO_ANSWER,
            Self::Reported(status) | Self::Script(status) => *status,
            _ => Self::FAILED,
        }
    }

    /// Returns the message for the user, on lines of its own; none where enough was said.
    pub(super) fn message(&self) -> Option<String> {
        self.text().map(|text| printable_lines(&text).into_owned())
    }

    fn text(&self) -> Option<String> {
        match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Self::GuestRefused | Self::Reported(_) | Self::Script(_) => None,
            Self::Definition { problem, definition } => {
                Some(problem_text(problem, Some(definition)))
            }
            Self::Client(ClientError::Refused(problem)) => Some(problem_text(problem, None)),
            Self::Some { failed, .. } => {
                let line = |(name, problem): &(String, Problem)| {
                    format!("{}: {}\n", printable(name), problem_text(problem, None))
                };
                Some(failed.iter().map(line).collect::<String>() + &format!("error: {self}"))
            }
            _ => match self.hint() {
                Some(hint) => Some(format!("error: {self}\n{hint}")),
                None => Some(format!("error: {self}")),
            },
        }
    }

    /// The remedy, where it is not in the message.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Client(ClientError::Connect { target, .. }) => Some(connect_advice(target)),
            Self::Client(ClientError::Refused(problem)) | Self::Definition { problem, .. } => {
                refusal_advice(problem)
            }
            _ => None,
        }
    }
}

fn refusal_advice(problem: &Problem) -> Option<&'static str> {
    let advice = "Give the service's token with --token-file FILE or EXOPROBE_TOKEN.";
    (problem.status == UNAUTHORIZED).then_some(advice)
}

fn connect_advice(target: &Target) -> &'static str {
    match target {
        Target::Unix(_) => {
            "Is `exoprobe run` running? For another socket, give --socket PATH or EXOPROBE_SOCKET."
        }
        Target::Tcp { .. } => "Is `exoprobe run --listen` running there?",
    }
}

/// A refusal, with the definition it is about and a caret under the fault.
pub(super) fn problem_text(problem: &Problem, definition: Option<&str>) -> String {
    let mut text = format!("error: {}", printable(&problem.to_string()));
    match (definition, problem.position) {
        (Some(definition), Some(position)) => {
            text.push('\n');
            text.push_str(&caret(definition, position));
        }
        (Some(definition), None) => text.push_str(&format!("\n  {}", definition.trim())),
        (None, _) => {}
    }
    if let Some(advice) = refusal_advice(problem) {
        text.push_str(&format!("\n{advice}"));
    }
    // Some details name them already.
    let missing: Vec<_> =
        problem.near.iter().filter(|name| !problem.detail.contains(name.as_str())).collect();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|name| printable(name)).collect();
        text.push_str(&format!("\nsimilar names: {}", names.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> Problem {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_refused_definition_is_shown_with_a_caret() {
        let problem = problem(r#"{"detail":"`%dx2` is no register","code":"EINVAL","position":4}"#);
        assert_eq!(
            problem_text(&problem, Some("p f %dx2")),
            "error: `%dx2` is no register (EINVAL)\n  p f %dx2\n      ^"
        );
        assert_eq!(problem_text(&problem, None), "error: `%dx2` is no register (EINVAL)");
        let nowhere = Problem { position: None, ..problem };
        let text = problem_text(&nowhere, Some(" p f"));
        assert_eq!(text, "error: `%dx2` is no register (EINVAL)\n  p f");
    }

    #[test]
    fn a_missing_token_says_how_to_give_it() {
        let refused = problem(r#"{"detail":"no token","code":"EACCES","status":401}"#);
        assert!(problem_text(&refused, None).contains("--token-file"));
    }

    #[test]
    fn similar_names_are_shown_once() {
        let near = problem(r#"{"detail":"no symbol","code":"ENOENT","near":["a1","a2"]}"#);
        assert_eq!(problem_text(&near, None), "error: no symbol (ENOENT)\nsimilar names: a1, a2");
        let said = problem(r#"{"detail":"no symbol (did you mean a1?)","near":["a1"]}"#);
        assert_eq!(problem_text(&said, None), "error: no symbol (did you mean a1?)");
    }

    #[test]
    fn no_connection_says_what_was_tried() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let target = Target::Unix(PathBuf::from("/run/x.sock"));
        let error = CliError::from(ClientError::Connect { target, source });
        let message = error.message().unwrap();
        assert!(message.contains("/run/x.sock") && message.contains("`exoprobe run` running?"));
        assert_eq!(error.status(), 3);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((error.status(), error.message()), (0, None));
    }
}
