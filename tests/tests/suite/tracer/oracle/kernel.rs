//! The kernels' own tracers: Debian's Linux 6.12 and 6.1 in QEMU, all sessions in one boot. Their
//! answers are recorded.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::faults;
use super::records::{Asking, Records};
use super::session::{Answers, Operation, Session};

/// A kernel that has its own tracer.
pub(super) struct Kernel {
    /// That of its records.
    name: &'static str,
    package: &'static str,
    /// Texts of sessions and of their answers, and those that stand for them in this kernel.
    stand_ins: &'static [(&'static str, &'static str)],
}

pub(super) const LINUX_6_12: Kernel =
    Kernel { name: "6.12", package: "linux-image-6.12-cloud-amd64", stand_ins: &[] };
/// It has no type `char`, which is that of a field of many sessions' events, and one message of
/// the same fault is another.
pub(super) const LINUX_6_1: Kernel = Kernel {
    name: "6.1",
    package: "linux-image-cloud-amd64",
    stand_ins: &[
        (" c=%di:char", " c=%di:u8"),
        (" c1=%di:char", " c1=%di:u8"),
        (" c='%c'", " c=%u"),
        (" c1='%c'", " c1=%u"),
        ("Maxactive is only for function exit", "Maxactive is not for kprobe"),
    ],
};

/// Marks in the output of [`FUNCTIONS`]: a session begins. The others mark a write's outcome, a
/// file's text, and the end of either.
const SESSION: char = '\u{1}';
const WRITE: char = '\u{2}';
const READ: char = '\u{3}';
const END: char = '\u{4}';

/// Functions of busybox's shell.
const FUNCTIONS: &str = r#"
S=$(printf '\001'); W=$(printf '\002'); R=$(printf '\003'); E=$(printf '\004')
report() { read -r x < /err || x=ok; echo "$W${x##*: }$E"; : > /err; }
append() { if [ -e "$1" ]; then { echo -n "$2" >> "$1"; } 2> /err; report; else echo "${W}absent$E"; fi; }
replace() { if [ -e "$1" ]; then { echo -n "$2" > "$1"; } 2> /err; report; else echo "${W}absent$E"; fi; }
make() { /bin/busybox mkdir "$1" 2> /err; report; }
remove() { /bin/busybox rmdir "$1" 2> /err; report; }
show() {
    echo -n "$R"
    if [ -d "$1" ]; then /bin/busybox ls -1 "$1"; elif [ -e "$1" ]; then /bin/busybox cat "$1"; else echo absent; fi
    echo "$E"
}
clear() {
    for t in events/kprobes/*/trigger events/g/*/trigger events/synthetic/*/trigger instances/*/events/*/*/trigger; do
        [ -e $t ] || continue
        while read -r line; do
            case "$line" in '#'*) continue;; hist:*) line="${line% \[*}";; enable_*|disable_*) line="${line% if *}"; line="${line%:*}";; *) line="${line%%:*}";; esac
            echo "!$line" > $t
        done < $t
    done 2> /dev/null
}
rmdir_all() { for i in instances/*; do [ ! -d "$i" ] || /bin/busybox rmdir "$i" 2> /dev/null || return 1; done; }
begin() {
    echo 0 > events/enable
    clear
    # An instance stays as long as one of its histograms has variables.
    n=0
    until rmdir_all || [ $n = 3 ]; do clear; n=$((n + 1)); done
    # Histograms whose variables others refer to go after those.
    n=0
    until { echo > kprobe_events && echo > synthetic_events; } 2> /dev/null || [ $n = 3 ]; do clear; n=$((n + 1)); done
    echo > error_log
    echo > trace
    : > /err
    echo "$S"
}
"#;

/// Prints which kernel answers.
const VERSION: &str = "/bin/busybox cat /proc/version\n";

/// Texts of errors, as busybox prints them, and their names.
const ERRORS: [(&str, &str); 18] = [
    ("Invalid argument", "EINVAL"),
    ("No such file or directory", "ENOENT"),
    ("nonexistent directory", "ENOENT"),
    ("No such process", "ESRCH"),
    ("Operation not permitted", "EPERM"),
    ("Permission denied", "EACCES"),
    ("Bad file descriptor", "EBADF"),
    ("File exists", "EEXIST"),
    ("Device or resource busy", "EBUSY"),
    ("Not a directory", "ENOTDIR"),
    ("Numerical result out of range", "ERANGE"),
    ("Numerical argument out of domain", "EDOM"),
    ("Argument list too long", "E2BIG"),
    ("Invalid or incomplete multibyte or wide character", "EILSEQ"),
    ("Cannot allocate memory", "ENOMEM"),
    ("No space left on device", "ENOSPC"),
    ("Operation not supported", "EOPNOTSUPP"),
    ("Cannot assign requested address", "EADDRNOTAVAIL"),
];

impl Kernel {
    /// The kernel's answers to all sessions, in order: those that are recorded, and of the others
    /// those that it gives in QEMU.
    ///
    /// # Panics
    /// When the kernel does not boot, or its answers are not whole.
    pub(super) fn answers(&self, sessions: &[Session]) -> Vec<Answers> {
        let asking = Asking::from_environment();
        let mut records = match asking {
            Asking::Missing | Asking::Record => Records::read(self.name, FUNCTIONS),
            Asking::Anew => Records::default(),
        };
        let commands: Vec<String> = sessions.iter().map(|session| self.commands(session)).collect();
        let has_none = |(_, commands): &(_, &String)| records.of(commands).is_none();
        let missing = sessions.iter().zip(&commands).filter(has_none);
        let missing: Vec<&Session> = missing.map(|(session, _)| session).collect();
        if !missing.is_empty() {
            let answered = self.ask(&missing);
            let is_other = answered.kernel != records.kernel && !records.kernel.is_empty();
            if asking == Asking::Record && is_other {
                records = self.ask(&sessions.iter().collect::<Vec<_>>());
            } else {
                records.extend(answered);
            }
        }
        if asking != Asking::Missing {
            records.write(self.name, FUNCTIONS, &commands);
        }
        commands.iter().map(|commands| self.compared(&records, commands)).collect()
    }

    /// Boots the kernel in QEMU. Returns its answers to these sessions.
    fn ask(&self, sessions: &[&Session]) -> Records {
        println!("{} sessions are asked in QEMU; `make oracle` records them", sessions.len());
        let commands: Vec<String> = sessions.iter().map(|session| self.commands(session)).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (script, results) = (folder.path().join("commands"), folder.path().join("results"));
        let text = format!("{FUNCTIONS}{VERSION}{}", commands.concat());
        std::fs::write(&script, text).expect("there is room");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let mut oracle = Command::new(root.join("scripts/tracer-oracle.sh"));
        let status = oracle.arg(self.package).args([&script, &results]).status();
        let status = status.expect("there is bash");
        assert!(status.success(), "tracer-oracle.sh: {status}");
        let text = std::fs::read(&results).expect("it wrote them");
        let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
        let mut parts = text.split(SESSION);
        let kernel = parts.next().unwrap_or_default().trim().to_owned();
        let answers: Vec<Answers> = parts.map(answers_of).collect();
        assert_eq!(answers.len(), commands.len(), "they are not whole: {text}");
        let answers = answers.into_iter().zip(sessions);
        let answers = answers.map(|(answers, session)| of_probes(answers, session));
        Records::new(kernel, commands.into_iter().zip(answers))
    }

    /// Recorded answers as those of other kernels: with the common texts, and with identifiers of
    /// faults.
    fn compared(&self, records: &Records, commands: &str) -> Answers {
        let Answers { writes, reads } = records.of(commands).expect("it was asked").clone();
        let common = |text: String| {
            let stand_ins = self.stand_ins.iter();
            stand_ins.fold(text, |text, (common, own)| text.replace(own, common))
        };
        let reads = reads.into_iter().map(|text| faults::of_kernel(&common(text)));
        Answers { writes, reads: reads.collect() }
    }

    /// A session's commands, of [`FUNCTIONS`].
    fn commands(&self, session: &Session) -> String {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let mut commands = "begin\n".to_owned();
        for write in &session.writes {
            let function = match write.operation {
                Operation::Append => "append",
                Operation::Replace => "replace",
                Operation::MakeFolder => "make",
                Operation::RemoveFolder => "remove",
            };
            let stand_ins = self.stand_ins.iter();
            let text =
                stand_ins.fold(write.text.clone(), |text, (common, own)| text.replace(common, own));
            writeln!(commands, "{function} {} {}", quoted(&write.file), quoted(&text))
                .expect("a String takes everything");
        }
        for read in &session.reads {
            writeln!(commands, "show {}", quoted(read)).expect("a String takes everything");
        }
        commands
    }
}

fn answers_of(text: &str) -> Answers {
    let mut answers = Answers { writes: Vec::new(), reads: Vec::new() };
    for part in text.split(END) {
        let part = part.trim_start_matches('\n');
        if let Some(error) = part.strip_prefix(WRITE) {
            let name = ERRORS.iter().find(|(text, _)| *text == error).map(|(_, name)| *name);
            answers.writes.push(name.unwrap_or(error).to_owned());
        } else if let Some(text) = part.strip_prefix(READ) {
            answers.reads.push(text.to_owned());
        }
    }
    answers
}

/// The answers without the events that the kernel has of itself.
fn of_probes(mut answers: Answers, session: &Session) -> Answers {
    for (file, text) in session.reads.iter().zip(&mut answers.reads) {
        if file == "available_events" {
            let is_ours = |line: &&str| {
                ["kprobes:", "g:", "synthetic:"].iter().any(|group| line.starts_with(group))
            };
            *text = text.lines().filter(is_ours).collect::<Vec<_>>().join("\n");
        }
    }
    answers
}
