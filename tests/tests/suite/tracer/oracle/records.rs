//! Answers of a kernel, kept in the repository: QEMU without KVM takes minutes to give them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::session::Answers;

/// Which sessions the kernel is asked, and whether its answers are recorded: `EXOPROBE_ORACLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// Not set: those without a record. Nothing is recorded.
    Missing,
    /// `record`: the same, and they are recorded. All are asked if the kernel is another one.
    Record,
    /// `anew`: all, and they are recorded.
    Anew,
}

impl Asking {
    /// # Panics
    /// When the variable has another value.
    pub(super) fn from_environment() -> Self {
        match std::env::var("EXOPROBE_ORACLE").as_deref() {
            Err(_) => Self::Missing,
            Ok("record") => Self::Record,
            Ok("anew") => Self::Anew,
            Ok(other) => panic!("EXOPROBE_ORACLE is `record` or `anew`, not `{other}`"),
        }
    }
}

/// The answers of one kernel, by the commands that they answer.
#[derive(Default)]
pub(super) struct Records {
    /// Its `/proc/version`; empty if there are no records.
    pub(super) kernel: String,
    answers: BTreeMap<String, Answers>,
}

/// The first line of a file of records.
#[derive(Serialize, Deserialize)]
struct Header {
    kernel: String,
    /// The shell's functions that all commands use.
    functions: String,
}

/// Each other line.
#[derive(Serialize, Deserialize)]
struct Record {
    commands: String,
    #[serde(flatten)]
    answers: Answers,
}

impl Records {
    pub(super) fn new(
        kernel: String,
        answers: impl IntoIterator<Item = (String, Answers)>,
    ) -> Self {
        Self { kernel, answers: answers.into_iter().collect() }
    }

    /// Reads the records of the kernel `name`. There are none if they were made with other
    /// functions.
    ///
    /// # Panics
    /// When a file is there that is none of records.
    pub(super) fn read(name: &str, functions: &str) -> Self {
        let path = file_of(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, functions).unwrap_or_else(|error| {
                panic!("{}: {error}; `make oracle ANEW=1` makes it anew", path.display())
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    fn parse(text: &str, functions: &str) -> Result<Self, serde_json::Error> {
        let mut lines = text.lines();
        let header: Header = serde_json::from_str(lines.next().unwrap_or_default())?;
        if header.functions != functions {
            return Ok(Self::default());
        }
        let mut answers = BTreeMap::new();
        for line in lines {
            let record: Record = serde_json::from_str(line)?;
            answers.insert(record.commands, record.answers);
        }
        Ok(Self { kernel: header.kernel, answers })
    }

    pub(super) fn of(&self, commands: &str) -> Option<&Answers> {
        self.answers.get(commands)
    }

    /// Adds answers, in place of those to the same commands. They may be of another kernel: it is
    /// the one of the records only if there were none.
    pub(super) fn extend(&mut self, others: Self) {
        if self.answers.is_empty() {
            self.kernel = others.kernel;
        }
        self.answers.extend(others.answers);
    }

    /// Writes the records of these commands, in their order. Others are dropped.
    ///
    /// # Panics
    /// When one has no record, or the file cannot be written.
    pub(super) fn write(&self, name: &str, functions: &str, commands: &[String]) {
        let path = file_of(name);
        let written = std::fs::write(&path, self.text(functions, commands));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!("{}: {} answers of {}", path.display(), commands.len(), self.kernel);
    }

    fn text(&self, functions: &str, commands: &[String]) -> String {
        let header = Header { kernel: self.kernel.clone(), functions: functions.to_owned() };
        let mut text = serde_json::to_string(&header).expect("two texts");
        for commands in commands {
            let answers = self.answers[commands].clone();
            let record = Record { commands: commands.clone(), answers };
            let record = serde_json::to_string(&record).expect("texts");
            write!(text, "\n{record}").expect("a String takes everything");
        }
        text + "\n"
    }
}

fn file_of(name: &str) -> PathBuf {
    let folder = "tests/suite/tracer/oracle/records";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{name}.jsonl"))
}
