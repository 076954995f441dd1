//! A guest's serial console, as a user at its keyboard has it.

use std::time::{Duration, Instant};

use exoprobe_tests::harness::keep_console;
use exoprobe_tests::{PATIENCE, Service, http};

const LOOK: Duration = Duration::from_millis(500);

/// The console of a service's guest. Its lines are printed as they come.
pub(crate) struct Terminal<'a> {
    service: &'a Service,
    /// All that the guest has written.
    text: String,
    /// How much of it has been printed.
    printed: usize,
    /// How much of it earlier waits have seen.
    seen: usize,
}

impl<'a> Terminal<'a> {
    pub(crate) fn new(service: &'a Service) -> Self {
        Self { service, text: String::new(), printed: 0, seen: 0 }
    }

    /// Waits until the guest writes `wanted`. Returns all that it wrote before, after the end of
    /// the last wait.
    pub(crate) fn wait_for(&mut self, wanted: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look();
            if let Some(at) = self.text[self.seen..].find(wanted) {
                let before = self.text[self.seen..self.seen + at].to_owned();
                self.seen += at + wanted.len();
                return before;
            }
            if Instant::now() > deadline {
                keep_console(&self.text);
                panic!("the console does not show `{wanted}`");
            }
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn type_line(&self, line: &str) {
        let line = format!("{line}\n");
        let path = "/v1/vm/serial/0";
        let answer = http::ask(self.service.socket(), "POST", path, &[], line.as_bytes());
        assert!((200..300).contains(&answer.status), "{answer:?}");
    }

    /// Has the shell run a command, which must succeed. Returns the command and its output.
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.type_line(&format!("{command}; printf '\\nended: %s.\\n' $?"));
        // After a line's end: where the shell shows the command, that is written `\n`.
        let output = self.wait_for("\nended: ");
        self.wait_for(".");
        assert!(self.text[..self.seen].ends_with("ended: 0."), "{command}: {output}");
        output
    }

    fn look(&mut self) {
        let answer = http::ask(self.service.socket(), "GET", "/v1/vm/serial/0", &[], &[]);
        assert_eq!(answer.status, 200, "{answer:?}");
        self.text = answer.body;
        while let Some(len) = self.text[self.printed..].find('\n') {
            let line = &self.text[self.printed..self.printed + len];
            println!("guest | {}", plain(line));
            self.printed += len + 1;
        }
    }
}

/// A line without what steers a terminal: control characters, and their sequences from `ESC [` to a
/// letter (ECMA-48, 5.4).
fn plain(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()));
    let text = rest.fold(first, |text, part| text + part.get(1..).unwrap_or_default());
    text.chars().filter(|c| !c.is_control()).collect()
}
