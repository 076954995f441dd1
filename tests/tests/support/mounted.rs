//! A service whose tracer is mounted, and lines of its events as programs show them.

use std::path::PathBuf;
use std::process::Command;

use exoprobe_tests::{PATIENCE, Service, exoprobe, finish, guest_file};

/// A mounted service.
pub(crate) struct Mounted<'a> {
    service: &'a Service,
    folder: tempfile::TempDir,
}

impl<'a> Mounted<'a> {
    pub(crate) fn new(service: &'a Service) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Self { service, folder };
        std::fs::create_dir(mounted.point()).unwrap();
        let point = mounted.point();
        let _ = service.ok(&["mount", "--background", point.to_str().unwrap()]);
        mounted
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.file("tracing")
    }

    /// A file that [`Self::run`] has made.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a script of a shell whose /sys/kernel/tracing is the guest's, in the temporary folder.
    pub(crate) fn run(&self, script: &str) -> String {
        let with = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest-tracefs.sh");
        let mut command = Command::new(with);
        command.arg("--kallsyms").arg(guest_file("System.map")).arg(self.point());
        command.args(["bash", "-euo", "pipefail", "-c", script]);
        command.env("EXOPROBE", exoprobe().get_program());
        command.env("EXOPROBE_SOCKET", self.service.socket()).current_dir(self.folder.path());
        let output = finish(&mut command, PATIENCE);
        let [text, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{script}: {text}{errors}");
        text
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = exoprobe().args(["mount", "--unmount"]).arg(self.point()).output();
    }
}

/// A line of an event: the task, the vCPU, the microseconds; the event's name; its arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line(pub(crate) String, pub(crate) String, pub(crate) String);

impl Line {
    /// A line of `TASK [CPU] SECONDS.MICROSECONDS`. Leaves out how trace-cmd's and KernelShark's
    /// differ from the tracer's.
    pub(crate) fn new(context: &str, event: &str, rest: &str) -> Self {
        let rest = rest.trim();
        // They have another name for the task of number 0, and show the event of a mark.
        let context = context.replace("<idle>", "<...>");
        let (event, rest) = match (event, rest.split_once(": ")) {
            ("print", Some((mark, text))) => (mark, text),
            _ => (event, rest),
        };
        // The place is a symbol in one, and an address in the other.
        let args = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        let args = args.map_or(rest, |(_, args)| args).trim();
        Self(context, event.to_owned(), args.replace("=(fault)", "=\"(fault)\""))
    }
}

/// Reads `TASK [CPU] FLAGS TIME: EVENT: REST`, flags and nanoseconds or not; `None` of other lines.
pub(crate) fn line(text: &str) -> Option<Line> {
    let (context, shown) = text.split_once(": ")?;
    let words: Vec<&str> = context.split_whitespace().collect();
    let (task, cpu, time) = (words.first()?, words.get(1)?, words.last()?);
    let (seconds, part) = time.split_once('.')?;
    let (event, rest) = shown.split_once(':')?;
    let context = format!("{task} {cpu} {seconds}.{}", &part[..6]);
    Some(Line::new(&context, event, rest))
}

pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = text.lines().filter_map(line).collect();
    lines.sort();
    lines
}
