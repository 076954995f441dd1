//! `exoprobe probe`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use hyper::Method;
use hyper::body::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::Context;
use super::error::{CliError, problem_text};
use super::format::{members, printable};
use super::show::{ProbeRow, probe_table};
use crate::client::{ApiPath, Client, ClientError, Payload, Problem};

/// Between two tries while the guest boots.
const RETRY: Duration = Duration::from_millis(500);

const ADD_EXAMPLES: &str = "\
Examples:
  exoprobe probe add 'p:getpid __x64_sys_getpid %di'
  exoprobe probe add 'p:open do_sys_openat2 dfd=%di' 'p vfs_read'
  exoprobe probe add -f probes.txt

A definition is a line of kprobe_events: p[:[GROUP/]EVENT] SYMBOL[+OFFSET]|0xADDR [[NAME=]%REG ...]";

const LIST_EXAMPLES: &str = "\
Examples:
  exoprobe probe list
  exoprobe probe list --json | jq '.[].hits'";

const REMOVE_EXAMPLES: &str = "\
Examples:
  exoprobe probe rm getpid mygroup/open
  exoprobe probe rm --all";

/// Commands about probes.
#[derive(Debug, Subcommand)]
pub(super) enum ProbeCommand {
    /// Add probes: all of them, or none when one is wrong
    Add(AddArgs),
    /// List all probes
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Print them as the kernel's kprobes/list does
        #[arg(long)]
        kprobes_list: bool,
    },
    /// Show all about one probe
    #[command(after_help = "Example:\n  exoprobe probe show getpid")]
    Show {
        /// EVENT or GROUP/EVENT
        name: ProbeName,
    },
    /// Arm probes
    #[command(after_help = "Example:\n  exoprobe probe enable getpid mygroup/open")]
    Enable(Names),
    /// Disarm probes and keep them
    #[command(after_help = "Example:\n  exoprobe probe disable getpid")]
    Disable(Names),
    /// Remove probes
    #[command(after_help = REMOVE_EXAMPLES)]
    Rm {
        /// EVENT or GROUP/EVENT
        #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
        names: Vec<ProbeName>,
        /// Remove all
        #[arg(long)]
        all: bool,
    },
}

/// Arguments of `probe add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(super) struct AddArgs {
    /// Definitions, each one argument
    #[arg(value_name = "DEFINITION", required_unless_present = "file")]
    definitions: Vec<String>,
    /// Read definitions from a file, one a line (`-` is standard input)
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to wait while the guest's kernel boots; 0 is not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,
}

/// Names of probes.
#[derive(Debug, Args)]
pub(super) struct Names {
    /// EVENT or GROUP/EVENT
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ProbeName>,
}

/// `EVENT` or `GROUP/EVENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeName(String);

impl FromStr for ProbeName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<_> = text.split('/').collect();
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
            return Err("write EVENT or GROUP/EVENT");
        }
        Ok(Self(text.to_owned()))
    }
}

impl ProbeName {
    fn path(&self) -> ApiPath {
        let mut segments = vec!["probes"];
        segments.extend(self.0.split('/'));
        ApiPath::new(&segments)
    }
}

pub(super) async fn run(context: &mut Context<'_>, command: ProbeCommand) -> Result<(), CliError> {
    match command {
        ProbeCommand::Add(args) => add(context, &args).await,
        ProbeCommand::List { kprobes_list: true } => {
            let list = context.client.get(&ApiPath::new(&["kprobes", "list"])).await?;
            Ok(context.out.write_all(&list)?)
        }
        ProbeCommand::List { kprobes_list: false } => {
            let probes = context.client.get(&ApiPath::new(&["probes"])).await?;
            print_table(context, &probes)
        }
        ProbeCommand::Show { name } => show(context, &name).await,
        ProbeCommand::Enable(Names { names }) => set_enabled(context, &names, true).await,
        ProbeCommand::Disable(Names { names }) => set_enabled(context, &names, false).await,
        ProbeCommand::Rm { all: true, .. } => {
            let path = ApiPath::new(&["probes"]);
            context.client.call(Method::DELETE, &path, Payload::Empty).await?;
            Ok(())
        }
        ProbeCommand::Rm { names, .. } => remove(context, &names).await,
    }
}

fn print_raw(context: &mut Context<'_>, json: &[u8]) -> Result<(), CliError> {
    context.out.write_all(json.trim_ascii_end())?;
    Ok(writeln!(context.out)?)
}

fn print_table(context: &mut Context<'_>, probes: &[u8]) -> Result<(), CliError> {
    if context.json {
        return print_raw(context, probes);
    }
    let rows: Vec<ProbeRow> = serde_json::from_slice(probes).map_err(ClientError::from)?;
    Ok(writeln!(context.out, "{}", probe_table(&rows))?)
}

async fn show(context: &mut Context<'_>, name: &ProbeName) -> Result<(), CliError> {
    let probe = context.client.get(&name.path()).await?;
    if context.json {
        return print_raw(context, &probe);
    }
    let probe: Value = serde_json::from_slice(&probe).map_err(ClientError::from)?;
    Ok(write!(context.out, "{}", members(&probe))?)
}

async fn set_enabled(
    context: &mut Context<'_>,
    names: &[ProbeName],
    enabled: bool,
) -> Result<(), CliError> {
    let mut changed = Vec::new();
    let mut failures = Failures::default();
    for name in names {
        let payload = Payload::Json(json!({ "enabled": enabled }));
        let answer = context.client.call(Method::PATCH, &name.path(), payload).await;
        if let Some(probe) = failures.check(name, answer)? {
            changed.push(serde_json::from_slice::<Value>(&probe).map_err(ClientError::from)?);
        }
    }
    if !changed.is_empty() {
        print_table(context, Value::Array(changed).to_string().as_bytes())?;
    }
    failures.result(names.len())
}

async fn remove(context: &mut Context<'_>, names: &[ProbeName]) -> Result<(), CliError> {
    let mut failures = Failures::default();
    for name in names {
        let answer = context.client.call(Method::DELETE, &name.path(), Payload::Empty).await;
        failures.check(name, answer)?;
    }
    failures.result(names.len())
}

/// Refusals among several requests: the others are still made.
#[derive(Default)]
struct Failures(usize);

impl Failures {
    fn check(
        &mut self,
        name: &ProbeName,
        answer: Result<Bytes, ClientError>,
    ) -> Result<Option<Bytes>, CliError> {
        match answer {
            Ok(body) => Ok(Some(body)),
            Err(ClientError::Refused(problem)) => {
                eprintln!("{}: {}", printable(&name.0), problem_text(&problem, None));
                self.0 += 1;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn result(&self, of: usize) -> Result<(), CliError> {
        if self.0 == 0 { Ok(()) } else { Err(CliError::Some(self.0, of)) }
    }
}

async fn add(context: &mut Context<'_>, args: &AddArgs) -> Result<(), CliError> {
    let mut text: String = args.definitions.iter().map(|line| format!("{line}\n")).collect();
    if let Some(path) = &args.file {
        text.push_str(&read_text(path)?);
    }
    if definition_lines(&text).next().is_none() {
        return Err(CliError::NoDefinition);
    }
    match post_when_booted(context.client, &text, Duration::from_secs(args.wait)).await {
        Ok(added) => print_table(context, &added),
        Err(ClientError::Refused(mut problem)) => {
            let Some(definition) = refused_definition(&text, &problem) else {
                return Err(ClientError::Refused(problem).into());
            };
            // A number is only of use in a text that the user can count lines in.
            if let (Some(line), false) = (problem.line, args.definitions.is_empty()) {
                let detail = problem.detail.strip_prefix(&format!("line {line}: "));
                problem.detail = detail.unwrap_or(&problem.detail).to_owned();
            }
            Err(CliError::Definition { problem, definition })
        }
        Err(error) => Err(error.into()),
    }
}

/// The definition that a problem is about.
fn refused_definition(text: &str, problem: &Problem) -> Option<String> {
    let by_line = problem.line.and_then(|line| text.lines().nth(line.checked_sub(1)?));
    let by_index = || problem.index.and_then(|index| definition_lines(text).nth(index));
    by_line.or_else(by_index).map(str::to_owned)
}

/// The lines that the service takes for definitions: those with something on them.
fn definition_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    })
}

fn read_text(path: &Path) -> Result<String, CliError> {
    let failed = |source| CliError::File { path: path.to_owned(), source };
    if path != Path::new("-") {
        return std::fs::read_to_string(path).map_err(failed);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// POSTs definitions, again and again while the guest's kernel boots.
async fn post_when_booted(
    client: &Client,
    text: &str,
    limit: Duration,
) -> Result<Bytes, ClientError> {
    let started = Instant::now();
    let mut progress = None;
    loop {
        let payload = Payload::Text(text.to_owned());
        match client.call(Method::POST, &ApiPath::new(&["probes"]), payload).await {
            Err(ClientError::Refused(problem)) if problem.is_booting() => {
                let left = limit.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Err(ClientError::Refused(problem));
                }
                progress.get_or_insert_with(|| BootProgress::start(limit));
                tokio::time::sleep(RETRY.min(left)).await;
            }
            other => return other,
        }
    }
}

/// A line on standard error that goes away when the wait ends.
struct BootProgress(ProgressBar);

impl BootProgress {
    fn start(limit: Duration) -> Self {
        let message =
            format!("waiting for the guest's kernel to boot (at most {} s)", limit.as_secs());
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            eprintln!("{message}");
        }
        let bar = ProgressBar::with_draw_target(None, target).with_message(message);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }
}

impl Drop for BootProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        let path = |name: &str| name.parse::<ProbeName>().map(|n| n.path().as_str().to_owned());
        assert_eq!(path("getpid").unwrap(), "/v1/probes/getpid");
        assert_eq!(path("g/e?").unwrap(), "/v1/probes/g/e%3F");
        for wrong in ["", "/e", "g/", "a/b/c"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_refused_definition_is_found_by_line_or_index() {
        let text = "# mine\np:a f\n\n\t# x\n p:b g %di\r\n";
        let find = |json| refused_definition(text, &serde_json::from_str(json).unwrap());
        assert_eq!(find(r#"{"line":5,"index":1}"#).as_deref(), Some(" p:b g %di"));
        assert_eq!(find(r#"{"index":0}"#).as_deref(), Some("p:a f"));
        assert_eq!(find(r#"{"line":0}"#), None);
        assert_eq!(find("{}"), None, "not about a definition");
    }
}
