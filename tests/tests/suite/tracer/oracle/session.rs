//! Sessions with a tracer: what is written to its files, and which files are read then.

use serde::{Deserialize, Serialize};

/// What is done with a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// A shell's `>>`.
    Append,
    /// A shell's `>`.
    Replace,
    MakeFolder,
    RemoveFolder,
}

/// One write to a file of the tracing folder, or a folder that is made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) file: String,
    pub(super) operation: Operation,
    pub(super) text: String,
    /// It prepares a session, and is not in its title.
    is_preparation: bool,
}

impl Write {
    /// Returns true if it writes a file, which has to be there.
    pub(super) fn is_of_file(&self) -> bool {
        matches!(self.operation, Operation::Append | Operation::Replace)
    }
}

/// Writes, and the files to read after them: also folders, whose paths end with a `/`. Each begins
/// without events and instances, and with an empty error_log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<String>,
}

/// The answers to a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answers {
    /// Of each write the errno's name, or `ok`.
    pub(super) writes: Vec<String>,
    /// The texts of the files, [`ABSENT`] of those that are not there.
    pub(super) reads: Vec<String>,
}

/// Stands for the text of a file that is not there, and for the errno of a write to it.
pub(super) const ABSENT: &str = "absent";

/// An event with fields of all kinds, which no shell hits.
const EVENT: &str = "p:e __x64_sys_sethostname a=%di s=+0(%si):string i=%di:s32 u=%di:u8 c=%di:char y=%ip:symbol \
    r=+0(%si):u8[4] b=%di:b4@2/32";

impl Session {
    /// A session with the event [`EVENT`].
    pub(super) fn of_event() -> Self {
        Self { writes: Vec::new(), reads: Vec::new() }.prepare("kprobe_events", EVENT)
    }

    /// A session that appends definitions to kprobe_events, of event `e` as a rule.
    pub(super) fn of_definitions(lines: &[&str]) -> Self {
        let none = Self { writes: Vec::new(), reads: Vec::new() };
        none.append_each("kprobe_events", lines)
            .read("kprobe_events")
            .read("error_log")
            .read("events/kprobes/e/format")
    }

    pub(super) fn append(self, file: &str, text: &str) -> Self {
        self.write(file, Operation::Append, text)
    }

    /// Appends each text to a file, one after the other.
    pub(super) fn append_each<T: AsRef<str>>(
        self,
        file: &str,
        texts: impl IntoIterator<Item = T>,
    ) -> Self {
        texts.into_iter().fold(self, |session, text| session.append(file, text.as_ref()))
    }

    pub(super) fn replace(self, file: &str, text: &str) -> Self {
        self.write(file, Operation::Replace, text)
    }

    pub(super) fn make_folder(self, path: &str) -> Self {
        self.write(path, Operation::MakeFolder, "")
    }

    pub(super) fn remove_folder(self, path: &str) -> Self {
        self.write(path, Operation::RemoveFolder, "")
    }

    /// Appends a text that the title lacks.
    pub(super) fn prepare(mut self, file: &str, text: &str) -> Self {
        self = self.write(file, Operation::Append, text);
        self.writes.last_mut().expect("that one").is_preparation = true;
        self
    }

    pub(super) fn write(mut self, file: &str, operation: Operation, text: &str) -> Self {
        let (file, text) = (file.to_owned(), text.to_owned());
        self.writes.push(Write { file, operation, text, is_preparation: false });
        self
    }

    pub(super) fn read(mut self, file: &str) -> Self {
        self.reads.push(file.to_owned());
        self
    }

    /// Its writes on one line, without those that prepare it; no other session has the same.
    pub(super) fn title(&self) -> String {
        let write = |write: &Write| {
            let text = write.text.replace('\n', "\\n").replace('\t', "\\t");
            match write.operation {
                Operation::Append => format!("{} >> {text}", write.file),
                Operation::Replace => format!("{} > {text}", write.file),
                Operation::MakeFolder => format!("mkdir {}", write.file),
                Operation::RemoveFolder => format!("rmdir {}", write.file),
            }
        };
        let writes = self.writes.iter().filter(|write| !write.is_preparation);
        writes.map(write).collect::<Vec<_>>().join(" ; ").trim_end().to_owned()
    }
}
