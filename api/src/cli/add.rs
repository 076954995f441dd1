//! `exoprobe probe add`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use exoprobe_probes::definition::definition_lines;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;

use super::added::{Wish, print_answer};
use super::context::Context;
use super::definitions::{ActionArgs, Line, expand, has_source_line, with_kinds};
use super::error::{CliError, problem_text};
use super::format::printable;
use crate::client::{ApiPath, ClientError, Payload, Problem};
use crate::log::say;

/// Longest part of a refused JSON definition that is shown, in characters.
const EXCERPT: usize = 200;

const EXAMPLES: &str = "\
Examples:
  exoprobe probe add 'p:getpid __x64_sys_getpid %di'
  exoprobe probe add 'p:open do_sys_openat2 dfd filename:string' 'r:ret vfs_read $retval:s64'
  exoprobe probe add vfs_read 'p:cat do_sys_openat2 filename:string if comm == \"cat\"'
  exoprobe probe add --dry-run 'vfs_*'
  exoprobe probe add --count --max 20000 'p:all/* *'
  exoprobe probe add 'p:line kernel/sys.c:950 %di'
  exoprobe probe add --count --return -12 'p:fail do_sys_openat2'
  exoprobe probe add -f probes.txt
  exoprobe probe add '{\"symbol_name\": \"vfs_read\", \"actions\": [{\"return\": \"-5\"}]}'
  exoprobe probe add '{\"symbol_name\": \"ksys_write\", \"args\": [\"n=%dx\"], \"filter\": \"n > 4096 && common_pid != 1\"}'

A definition is a line of kprobe_events:
  p[:[GROUP/]EVENT] SYMBOL[+OFFSET]|0xADDR [[NAME=]VALUE[:TYPE] ...]     a kprobe
  r[MAXACTIVE][:[GROUP/]EVENT] SYMBOL|0xADDR [[NAME=]VALUE[:TYPE] ...]   a return probe
`if FILTER` may follow. A line that begins with a place is a kprobe: `vfs_read` is `p vfs_read`. A SYMBOL with `*` or
`?` stands for all functions that match; those that cannot be probed are left out and listed with the reason. A `*`
in EVENT is the function's name then: `p:vfs/* vfs_*`. All probes of one command are armed together.
SYMBOL may be FILE:LINE where a file tells the kernel's source lines (`run --debug-info`): a probe for each copy of the
line's code, inlined or not.
VALUE is %REG, $stackN, $stack, $retval (return probes), @ADDR, +OFFS(VALUE) or -OFFS(VALUE); at a function's entry
or return also the name of a parameter, where the kernel's types are known (`exoprobe types SYMBOL`).
TYPE is u8 to u64, s8 to s64, x8 to x64 or, of what is in memory, string or ustring; x64 when absent, or what the
parameter is.
JSON says more (filter, actions, return mode): an object or an array as POST /v1/probes takes it (docs/api.md).";

/// Arguments of `probe add`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AddArgs {
    /// Definitions, each one argument; or JSON, one argument
    #[arg(value_name = "DEFINITION", required_unless_present = "file")]
    definitions: Vec<String>,
    /// Read definitions from a file, one a line, or JSON (`-` is standard input)
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to wait for text that is not there yet, as while the kernel boots
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Most functions that one pattern may match, and most copies of a line's code
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max: usize,
    /// Add all that a pattern matches, or none when one is refused
    #[arg(long)]
    all_or_none: bool,
    /// Print the probes that would be added, and which would be refused; add none
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    actions: ActionArgs,
}

pub(super) async fn add(context: &mut Context<'_>, args: &AddArgs) -> Result<(), CliError> {
    let definitions = Definitions::collect(args)?;
    let answer = match &definitions {
        Definitions::Lines(text) if !args.actions.is_empty() || has_source_line(text) => {
            send_expanded(context, args, text).await?
        }
        _ => {
            let path = args.path();
            match context.client.call(Method::POST, &path, definitions.payload()).await {
                Ok(answer) => answer,
                Err(ClientError::Refused(problem)) => {
                    return Err(definitions.refused(args, problem));
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let wish = Wish { dry_run: args.dry_run, wait: args.wait };
    print_answer(context, wish, &answer).await
}

/// Sends lines with source lines or flags. Copies of a line's code that the service refuses are
/// left out, and reported.
async fn send_expanded(
    context: &mut Context<'_>,
    args: &AddArgs,
    text: &str,
) -> Result<Bytes, CliError> {
    let mut lines = expand(context.client, text, args.max).await?;
    let count = lines.len();
    while !lines.is_empty() {
        let payload = args.actions.payload(&lines)?;
        let mut problem = match context.client.call(Method::POST, &args.path(), payload).await {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Refused(problem)) => problem,
            Err(error) => return Err(error.into()),
        };
        let Some(index) = problem.index.filter(|index| *index < lines.len()) else {
            return Err(ClientError::Refused(problem).into());
        };
        if let Some(number) = problem.line.take() {
            let detail = problem.detail.strip_prefix(&format!("line {number}: "));
            problem.detail = detail.unwrap_or(&problem.detail).to_owned();
        }
        let Line { text, matched } = lines.remove(index);
        match matched {
            Some(name) if !args.all_or_none => {
                say!("left out: {}: {}", printable(&name), problem_text(&problem, None));
            }
            _ => {
                if !args.actions.is_empty() {
                    // A column of an argument or of the flag, not of the line.
                    problem.position = None;
                }
                return Err(CliError::Definition { problem, definition: text });
            }
        }
    }
    Err(CliError::AllRefused(count))
}

impl AddArgs {
    fn path(&self) -> ApiPath {
        let path = ApiPath::new(&["probes"]).query("max", self.max);
        let path = path.query_if("dry_run", self.dry_run.then_some(true));
        path.query_if("all_or_none", self.all_or_none.then_some(true))
    }
}

/// Definitions as they were given.
enum Definitions {
    /// Lines of kprobe_events.
    Lines(String),
    /// A JSON document, which may be none.
    Json(String),
}

impl Definitions {
    fn collect(args: &AddArgs) -> Result<Self, CliError> {
        let file = args.file.as_deref().map(read_text).transpose()?;
        let mut sources: Vec<String> = args.definitions.clone();
        sources.extend(file);
        if sources.iter().any(|source| source.trim_start().starts_with(['{', '['])) {
            if !args.actions.is_empty() {
                return Err(CliError::FlagsWithJson);
            }
            let alone = <[String; 1]>::try_from(sources);
            return alone.map(|[json]| Self::Json(json)).map_err(|_| CliError::MixedDefinitions);
        }
        let text: String = sources.iter().map(|source| format!("{source}\n")).collect();
        if definition_lines(&text).next().is_none() {
            return Err(CliError::NoDefinition);
        }
        Ok(Self::Lines(with_kinds(&text)))
    }

    fn payload(&self) -> Payload {
        match self {
            Self::Lines(text) => Payload::Text(text.clone()),
            // Not parsed here: the service reports faults best.
            Self::Json(json) => Payload::JsonText(json.clone()),
        }
    }

    /// The refusal, with the definition that it is about.
    fn refused(&self, args: &AddArgs, mut problem: Box<Problem>) -> CliError {
        let definition = match self {
            Self::Lines(text) => refused_line(text, &problem),
            Self::Json(json) => refused_value(json, &problem),
        };
        let Some(definition) = definition else { return ClientError::Refused(problem).into() };
        match self {
            // A number is only of use in a text that the user can count lines in.
            Self::Lines(_) => {
                if let (Some(line), false) = (problem.line, args.definitions.is_empty()) {
                    let detail = problem.detail.strip_prefix(&format!("line {line}: "));
                    problem.detail = detail.unwrap_or(&problem.detail).to_owned();
                }
            }
            // A column of one argument, not of the definition that is shown.
            Self::Json(_) => problem.position = None,
        }
        CliError::Definition { problem, definition }
    }
}

/// The line that a problem is about.
fn refused_line(text: &str, problem: &Problem) -> Option<String> {
    let by_line = problem.line.and_then(|line| text.lines().nth(line.checked_sub(1)?));
    let nth = |index| definition_lines(text).nth(index).map(|(_, line)| line);
    let by_index = || problem.index.and_then(nth);
    by_line.or_else(by_index).map(str::to_owned)
}

/// The element of an array that a problem is about.
fn refused_value(json: &str, problem: &Problem) -> Option<String> {
    let value: Value = serde_json::from_str(json).ok()?;
    let shown = value.get(problem.index?)?.to_string();
    Some(shown.chars().take(EXCERPT).collect())
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: AddArgs,
    }

    fn problem(json: &str) -> Problem {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_refused_definition_is_found_by_line_or_index() {
        let text = "# mine\np:a f\n\n\t# x\n p:b g %di\r\n";
        let find = |json| refused_line(text, &problem(json));
        assert_eq!(find(r#"{"line":5,"index":1}"#).as_deref(), Some(" p:b g %di"));
        assert_eq!(find(r#"{"index":0}"#).as_deref(), Some("p:a f"));
        assert_eq!(find(r#"{"line":0}"#), None);
        assert_eq!(find("{}"), None, "not about a definition");
    }

    #[test]
    fn the_refused_element_of_an_array_is_shown() {
        let json = r#"[{"event": "a"}, {"event": "b"}]"#;
        let find = |problem: &str| refused_value(json, &self::problem(problem));
        assert_eq!(find(r#"{"index":1}"#).as_deref(), Some(r#"{"event":"b"}"#));
        assert_eq!(find(r#"{"index":2}"#), None);
        assert_eq!(find("{}"), None);
        assert_eq!(refused_value("[1", &problem(r#"{"index":0}"#)), None);
    }

    #[test]
    fn json_stands_alone() {
        let collect = |definitions: &[&str]| {
            let args = ["x"].into_iter().chain(definitions.iter().copied());
            Definitions::collect(&Only::try_parse_from(args).unwrap().args)
        };
        assert!(matches!(collect(&[" {\"addr\": 1}"]), Ok(Definitions::Json(_))));
        assert!(
            matches!(collect(&["p:a f", "p g"]), Ok(Definitions::Lines(text)) if text == "p:a f\np g\n")
        );
        for wrong in [&["p:a f", "[]"][..], &["{}", "{}"], &["# none"]] {
            assert_eq!(collect(wrong).err().expect("it is wrong").status(), 2, "{wrong:?}");
        }
    }
}
