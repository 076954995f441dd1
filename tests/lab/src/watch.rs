//! Following a run: its two serial ports, what they say of its progress, and the watchdog.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::error::{LabError, at};
use crate::machine::{CONSOLE, RESULTS};
use crate::outcome::Outcome;

const POLL: Duration = Duration::from_millis(100);
/// Console lines shown when a run ends badly.
const LAST_LINES: usize = 30;

/// When to give a run up.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Without a byte from the lab.
    pub(crate) silence: Duration,
    /// In all.
    pub(crate) total: Duration,
}

/// The process that is watched; dropping it ends it.
pub(crate) trait Emulator {
    /// Its exit status, once it has ended.
    fn ended(&mut self) -> std::io::Result<Option<ExitStatus>>;
}

/// A file that grows, read line by line.
struct Follower {
    file: File,
    partial: Vec<u8>,
}

impl Follower {
    fn open(path: &Path) -> Result<Self, LabError> {
        // Bochs would create it, but later than we look.
        File::create(path).map_err(at(path))?;
        Ok(Self { file: File::open(path).map_err(at(path))?, partial: Vec::new() })
    }

    /// Bytes that came since, as whole lines; and whether any came.
    fn lines(&mut self) -> std::io::Result<(bool, Vec<String>)> {
        let before = self.partial.len();
        self.file.read_to_end(&mut self.partial)?;
        let grown = self.partial.len() > before;
        let whole = self.partial.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let rest = self.partial.split_off(whole);
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial = rest;
        // The lab's programs choose these bytes; none may steer the user's terminal.
        let clean = |line: &str| line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        Ok((grown, text.lines().map(clean).collect()))
    }
}

/// A run that is watched.
struct Watch<'a> {
    /// Stands before each line.
    name: &'a str,
    console: Follower,
    results: Follower,
    outcome: Outcome,
    last: VecDeque<String>,
    begun: Instant,
    heard: Instant,
}

impl<'a> Watch<'a> {
    fn new(name: &'a str, dir: &Path) -> Result<Self, LabError> {
        Ok(Self {
            name,
            console: Follower::open(&dir.join(CONSOLE))?,
            results: Follower::open(&dir.join(RESULTS))?,
            outcome: Outcome::default(),
            last: VecDeque::new(),
            begun: Instant::now(),
            heard: Instant::now(),
        })
    }

    /// Takes in, and shows, what has come on both ports.
    fn read(&mut self) -> Result<(), LabError> {
        let (spoke, lines) = self.console.lines().map_err(at(CONSOLE))?;
        let (reported, results) = self.results.lines().map_err(at(RESULTS))?;
        lines.iter().for_each(|line| self.outcome.on_console_line(line));
        let shown = results.iter().filter_map(|line| self.outcome.on_result_line(line));
        for line in lines.into_iter().chain(shown) {
            println!("{}{:5.0} s | {line}", self.name, self.begun.elapsed().as_secs_f64());
            self.last.push_back(line);
            if self.last.len() > LAST_LINES {
                self.last.pop_front();
            }
        }
        if spoke || reported {
            self.heard = Instant::now();
        }
        Ok(())
    }

    /// Whether a run that goes on has gone on for too long.
    fn overdue(&self, limits: Limits) -> Result<(), LabError> {
        let step = || self.outcome.running();
        if self.heard.elapsed() > limits.silence {
            return Err(LabError::Silence { silence: limits.silence, step: step() });
        }
        if self.begun.elapsed() > limits.total {
            return Err(LabError::TooLong { limit: limits.total, step: step() });
        }
        Ok(())
    }

    fn until_end(&mut self, emulator: &mut impl Emulator, limits: Limits) -> Result<(), LabError> {
        loop {
            // Asked before reading, so that what it wrote last is read.
            let ended = emulator.ended().map_err(at("bochs"))?;
            self.read()?;
            if let Some(status) = ended {
                if self.outcome.done {
                    return Ok(());
                }
                let step = self.outcome.running();
                return Err(LabError::Unfinished { how: status.to_string(), step });
            }
            self.overdue(limits)?;
            std::thread::sleep(POLL);
        }
    }
}

/// Follows an emulator to its end, and shows its output. Returns the results until then, and how it
/// ended; a bad end has shown the last lines.
///
/// # Errors
/// When it cannot be started or its ports cannot be followed.
pub(crate) fn follow<E: Emulator>(
    name: &str,
    dir: &Path,
    limits: Limits,
    start: impl FnOnce() -> Result<E, LabError>,
) -> Result<(Outcome, Result<(), LabError>), LabError> {
    let mut watch = Watch::new(name, dir)?;
    let ended = watch.until_end(&mut start()?, limits);
    if ended.is_err() {
        eprintln!("{name}: the last lines from the lab (all: {}):", dir.join(CONSOLE).display());
        for line in &watch.last {
            eprintln!("    {line}");
        }
    }
    Ok((watch.outcome, ended))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A shell in place of Bochs.
    struct Shell(Child);

    impl Emulator for Shell {
        fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
            self.0.try_wait()
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    const DONE: &str = r#"echo '{"lab":"done"}' >> results.txt"#;

    fn run(script: &str, silence: u64, total: u64) -> (Outcome, Result<(), LabError>) {
        let dir = tempfile::tempdir().unwrap();
        let limits =
            Limits { silence: Duration::from_millis(silence), total: Duration::from_millis(total) };
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(dir.path());
            Ok(Shell(command.spawn().unwrap()))
        };
        follow("test", dir.path(), limits, start).unwrap()
    }

    #[test]
    fn a_run_is_whole_only_when_the_lab_says_so() {
        let (outcome, ended) = run(&format!("echo hello >> console.txt; {DONE}"), 60_000, 60_000);
        assert!(ended.is_ok() && outcome.done);
        let (_, ended) = run("exit 3", 60_000, 60_000);
        let Err(LabError::Unfinished { how, step: None }) = ended else { panic!("{ended:?}") };
        assert!(how.contains('3'), "{how}");
    }

    #[test]
    fn silence_and_length_end_a_run_and_name_what_hung() {
        let begin = r#"echo '{"lab":"begin","step":"tests"}' >> results.txt;
            echo 'begin a::b' >> console.txt"#;
        let (_, ended) = run(&format!("{begin}; exec sleep 1000"), 700, 60_000);
        let Err(LabError::Silence { step: Some(step), .. }) = ended else { panic!("{ended:?}") };
        assert_eq!(step, "tests: a::b");
        let noise = "while true; do echo x >> console.txt; sleep 0.1; done";
        let (_, ended) = run(noise, 60_000, 700);
        assert!(matches!(ended, Err(LabError::TooLong { .. })), "{ended:?}");
    }

    #[test]
    fn lines_come_whole_and_clean() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut follower = Follower::open(&path).unwrap();
        assert_eq!(follower.lines().unwrap(), (false, vec![]));
        std::fs::write(&path, b"one\r\ntw").unwrap();
        assert_eq!(follower.lines().unwrap(), (true, vec!["one".to_owned()]));
        std::fs::write(&path, b"one\r\ntwo\x1b[31m\n").unwrap();
        assert_eq!(follower.lines().unwrap(), (true, vec!["two[31m".to_owned()]));
    }
}
