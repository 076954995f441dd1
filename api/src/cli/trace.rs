//! `exoprobe trace`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::time::sleep;

use super::context::Context;
use super::error::CliError;
use super::format::{printable, printable_json, printable_lines};
use super::idle;
use super::shell::{self, Shell};
use crate::client::{Client, ClientError, NewScript, Reply, Script, ScriptArming};
use crate::log::say;
use crate::run::Signals;

/// Between two looks for commands of system(), while nothing is written.
const LOOK: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  exoprobe trace -e 'kprobe:vfs_read { @[comm] = count(); }'
  exoprobe trace -e 'kprobe:vfs_write { @start[tid] = nsecs; } kretprobe:vfs_write /@start[tid]/ { @ns = hist(nsecs - @start[tid]); }'
  exoprobe trace --for 10 -e 'tracepoint:syscalls:sys_enter_openat { printf(\"%s %s\\n\", comm, str(args.filename)); }'
  exoprobe trace /usr/sbin/vfscount.bt
  exoprobe trace -e 'kprobe:vfs_read { @ = count(); }' -c 'read /dev/zero 100'
  exoprobe trace -l 'kprobe:vfs_*'
  exoprobe trace -lv 'tracepoint:syscalls:sys_enter_open*'
  exoprobe trace --unsafe -e 'kprobe:__x64_sys_mkdir /uid == 0/ { override(-28); }'
  exoprobe trace --explain -e 'kprobe:vfs_read { @[comm] = hist(arg2); }'

The language is bpftrace's; docs/bpftrace.md lists the parts that are not served. The script runs in the service: a probe
records what its actions read, and the actions run over the records in order of guest time. Ctrl-C ends it: END runs, the
maps are printed, and nothing is left in the guest. Hits that were lost are reported on standard error.";

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// As bpftrace writes it
    Text,
    /// A JSON object a line, as bpftrace -f json
    Json,
}

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TraceArgs {
    /// A file with the script, unless -e gives it, then values of $1, $2 and on; with -l, patterns
    #[arg(value_name = "FILE | PARAM")]
    words: Vec<String>,
    /// The script itself
    #[arg(short = 'e', value_name = "SCRIPT", conflicts_with = "list")]
    script: Option<String>,
    /// The form of the output
    #[arg(short = 'f', long, value_enum)]
    format: Option<Format>,
    /// Write the output to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Send the tiny guest's init a command once the probes are armed, and end after it
    #[arg(short = 'c', value_name = "COMMAND")]
    command: Option<String>,
    /// End after so many seconds [default: until Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS", value_parser = super::collect::seconds)]
    limit: Option<Duration>,
    /// Do not print how many probes there are
    #[arg(short, long)]
    quiet: bool,
    /// List the probes that a pattern stands for, which is in the place of FILE
    #[arg(short = 'l')]
    list: bool,
    /// With -l: list with arguments and types
    #[arg(short = 'v', requires = "list")]
    verbose: bool,
    /// Check the script, and print how each probe is armed and what its hits read; nothing runs
    #[arg(long)]
    explain: bool,
    /// Allow override(), which makes the guest's functions return at once, and system(), whose
    /// commands run here, by sh -c, as this user: they may have text of the guest's
    #[arg(long = "unsafe")]
    allow_unsafe: bool,
}

pub(super) async fn run(context: &mut Context<'_>, args: &TraceArgs) -> Result<(), CliError> {
    if args.list {
        return list(context, args).await;
    }
    let new = args.script(context.json)?;
    if args.explain {
        return explain(context, &new).await;
    }
    // Before the script: none may remain.
    let (signals, impatient) = (Signals::new()?, Signals::new()?);
    let mut file = match &args.output {
        Some(path) => Some(BufWriter::new(create(path)?)),
        None => None,
    };
    let out: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => context.out,
    };
    let script = context.client.start_script(&new).await.map_err(refused)?;
    let id = script.id;
    report_refused(&script);
    let session = Session { client: context.client, id, is_json: new.format == "json", args };
    let work = session.run(out, signals);
    let ended = tokio::select! {
        ended = work => ended?,
        () = twice(impatient) => return Err(CliError::LeftBehind(format!("script_{id}"))),
    };
    match u8::try_from(ended.exit_status) {
        Ok(0) => Ok(()),
        Ok(status) => Err(CliError::Script(status)),
        Err(_) => Err(CliError::Script(CliError::FAILED)),
    }
}

fn create(path: &PathBuf) -> Result<File, CliError> {
    File::create(path).map_err(|source| CliError::Write { path: path.clone(), source })
}

async fn twice(mut signals: Signals) {
    signals.next().await;
    signals.next().await;
}

impl TraceArgs {
    /// The script that is meant.
    fn script(&self, json: bool) -> Result<NewScript, CliError> {
        let (text, params) = match (&self.script, self.words.split_first()) {
            (Some(text), _) => (text.clone(), self.words.clone()),
            (None, Some((file, params))) => {
                let path = PathBuf::from(file);
                let text = std::fs::read_to_string(&path);
                let text = text.map_err(|source| CliError::File { path, source })?;
                (text, params.to_vec())
            }
            (None, None) => return Err(CliError::NoScript),
        };
        let default = if json { Format::Json } else { Format::Text };
        let format = match self.format.unwrap_or(default) {
            Format::Text => "text",
            Format::Json => "json",
        };
        let (dry_run, allow_unsafe) = (self.explain, self.allow_unsafe);
        Ok(NewScript { text, params, format, dry_run, allow_unsafe })
    }
}

/// A script that runs, from its start to its end.
struct Session<'a> {
    client: &'a Client,
    id: u32,
    is_json: bool,
    args: &'a TraceArgs,
}

impl Session<'_> {
    async fn run(&self, out: &mut dyn Write, mut signals: Signals) -> Result<Script, CliError> {
        let body = self.client.follow_script(self.id).await?;
        let mut show = pin!(self.show(out, body));
        let mut over = Ok(());
        let shown = tokio::select! {
            shown = &mut show => Some(shown),
            () = signals.next() => None,
            result = self.time_is_over() => { over = result; None }
        };
        match shown {
            Some(shown) => shown?,
            None => {
                self.client.end_script(self.id).await?;
                show.await?;
            }
        }
        let script = self.client.script(self.id).await?;
        // It has ended: this forgets it.
        self.client.end_script(self.id).await?;
        report(&script);
        over.map(|()| script)
    }

    /// Returns once the script is to end by the command line, or cannot, with the error.
    async fn time_is_over(&self) -> Result<(), CliError> {
        if let Some(command) = &self.args.command {
            let reply = tokio::select! {
                // An answer that is there counts, also of a guest that stopped thereafter.
                biased;
                reply = self.client.command(command) => reply?,
                stopped = idle::watch(self.client) => return Err(stopped),
            };
            return match reply {
                Reply::Done(_) => Ok(()),
                Reply::Failed(line) => {
                    say!("guest: {}", printable(&line));
                    Ok(())
                }
                Reply::Ended => Err(CliError::Ended),
            };
        }
        match self.args.limit {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
        Ok(())
    }

    /// Prints the output to its end.
    async fn show(&self, out: &mut dyn Write, mut body: Incoming) -> Result<(), CliError> {
        let mut text =
            Text { is_json: self.is_json, skips_first: self.args.quiet, rest: Vec::new() };
        let mut shell = self.args.allow_unsafe.then(|| Shell::new(self.client, self.id));
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sleep(LOOK), if shell.is_some() => {
                    print(&[], &mut text, &mut shell, out).await?;
                    continue;
                }
            };
            let Some(frame) = frame.transpose().map_err(ClientError::from)? else { break };
            if let Some(data) = frame.data_ref() {
                print(data, &mut text, &mut shell, out).await?;
            }
        }
        // Where output was lost, places are not known exactly.
        shell.iter_mut().for_each(Shell::end);
        print(&[], &mut text, &mut shell, out).await
    }
}

/// Prints a part of the output, and runs the commands in it.
async fn print(
    mut data: &[u8],
    text: &mut Text,
    shell: &mut Option<Shell<'_>>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if let Some(commands) = shell {
        commands.look().await?;
        while let Some((before, command)) = commands.take(data.len()) {
            let (first, rest) = data.split_at(before);
            data = rest;
            out.write_all(text.next(first).as_bytes())?;
            out.flush()?;
            let printed = shell::run(command).await;
            out.write_all(text.of_command(&printed).as_bytes())?;
        }
    }
    out.write_all(text.next(data).as_bytes())?;
    Ok(out.flush()?)
}

/// Output as it may go to a terminal: a guest's text has no control sequences there.
struct Text {
    is_json: bool,
    /// The first line is left out.
    skips_first: bool,
    /// Bytes of a character that is not whole yet.
    rest: Vec<u8>,
}

impl Text {
    fn next(&mut self, data: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(data);
        if self.skips_first {
            match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    bytes.drain(..=end);
                    self.skips_first = false;
                }
                None => {
                    self.rest = bytes;
                    return String::new();
                }
            }
        }
        if let Err(error) = str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            self.rest = bytes.split_off(error.valid_up_to());
        }
        self.shown(&String::from_utf8_lossy(&bytes))
    }

    /// The output of a command of system(), as bpftrace shows it.
    fn of_command(&self, printed: &[u8]) -> String {
        let text = String::from_utf8_lossy(printed);
        match self.is_json {
            true => self.shown(&format!("{{\"type\": \"syscall\", \"data\": {}}}\n", json!(text))),
            false => self.shown(&text),
        }
    }

    fn shown(&self, text: &str) -> String {
        match self.is_json {
            true => printable_json(text).into_owned(),
            false => printable_lines(text).into_owned(),
        }
    }
}

/// A refusal of a script has lines of its own, with marks below them.
fn refused(error: ClientError) -> CliError {
    match error {
        ClientError::Refused(problem) if problem.line.is_some() => CliError::ScriptRefused(problem),
        other => other.into(),
    }
}

fn report_refused(script: &Script) {
    if let Some(first) = script.refused.first() {
        let count = script.refused.len();
        say!("warning: {count} functions cannot be probed; the first: {}", printable(first));
    }
}

/// Reports hits that are missing from the output.
fn report(script: &Script) {
    for warning in &script.warnings {
        say!("warning: {}", printable(warning));
    }
    let counts = [
        (script.more_warnings, "more warnings"),
        (script.limited, "actions ended at a limit"),
        (script.lost, "hits lost: their records had no room"),
        (script.nmissed, "calls not followed to their return"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        say!("warning: {count} {what}");
    }
    let Script { run, filtered, limited, late, lost, .. } = script;
    if *lost > 0 {
        let hits = run + filtered + limited + late + lost;
        say!(
            "hits: {hits} = {run} run + {filtered} filtered + {limited} limited + {late} late + {lost} lost"
        );
    }
}

async fn list(context: &mut Context<'_>, args: &TraceArgs) -> Result<(), CliError> {
    if args.words.is_empty() {
        return Err(CliError::NoScript);
    }
    let text = format!("{} {{ }}", args.words.join(", "));
    let new = NewScript { text, format: "text", dry_run: true, ..NewScript::default() };
    let script = context.client.start_script(&new).await.map_err(refused)?;
    for probe in &script.explained {
        writeln!(context.out, "{}", printable(&probe.probe))?;
        for argument in probe.arguments.iter().filter(|_| args.verbose) {
            writeln!(context.out, "    {}", printable(argument))?;
        }
    }
    Ok(())
}

async fn explain(context: &mut Context<'_>, new: &NewScript) -> Result<(), CliError> {
    let script = context.client.start_script(new).await.map_err(refused)?;
    for probe in &script.explained {
        let how = match &probe.exit {
            Some(why) => format!("takes an exit: {why}"),
            None => "no exit for its action".to_owned(),
        };
        writeln!(context.out, "{}: {}", printable(&probe.probe), printable(&how))?;
        for arming in &probe.armed {
            writeln!(context.out, "  {}", printable(&armed(arming)))?;
        }
        for read in &probe.reads {
            writeln!(context.out, "    {}", printable(read))?;
        }
    }
    Ok(())
}

/// How places of a probe would be armed, and what reads their values.
fn armed(arming: &ScriptArming) -> String {
    let ScriptArming { by, reason, places } = arming;
    let how = match by.as_str() {
        "jmp" => "armed by a jmp: its detour in the guest reads the values, without an exit",
        "int3" => "armed by an int3: at each hit, an exit, the VMM reads the values",
        "pending" => "not armed yet",
        _ => "left out",
    };
    let places = if *places == 1 { String::new() } else { format!("{places} places ") };
    let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{places}{how}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_text_has_no_control_sequences_and_characters_stay_whole() {
        let mut text = Text { is_json: false, skips_first: true, rest: Vec::new() };
        let parts: [&[u8]; 4] = [b"Attach", b"ing 1 probe...\nb\xc3", b"\xa4r \x1b[2J\n", b"\xff"];
        let shown: String = parts.iter().map(|part| text.next(part)).collect();
        assert!(shown.starts_with("b\u{e4}r ") && !shown.contains('\x1b'), "{shown:?}");
        assert!(shown.contains('\n') && shown.ends_with('\u{fffd}'), "{shown:?}");
    }
}
