//! The guest's first and only program: mounts the usual file systems, then does the work that
//! the host asks for on ttyS1 and answers how much of it was really done.
#![no_std]
#![no_main]

mod runtime;
mod sys;
mod vectors;
mod work;

use core::cell::Cell;
use core::fmt::{self, Write as _};

use exoprobe_guest_init::command::{self, Command, Work};
use exoprobe_guest_init::line::{Line, LineBuffer, MAX_LINE};
use exoprobe_guest_init::text::{Shown, Text};
use sys::{Errno, Fd, Path};
use vectors::Width;
use work::{CallCounters, Counters, Failure, Outcome};

const O_RDWR: usize = 2;
const O_NOCTTY: usize = 0o400;

extern "C" fn main() -> ! {
    if let Err(errno) = run() {
        let mut text = Text::new();
        // Writing to a `Text` cannot fail, and without a console there is nowhere to report to.
        let _ = writeln!(text, "exoprobe guest init: {errno}");
        let _ = open(b"/dev/console\0").and_then(|tty| sys::write_all(tty, text.as_bytes()));
    }
    // The end of process 1 is a kernel panic: what the host expects of a guest gone wrong, and
    // what the command `panic` asks for.
    sys::exit(1)
}

fn open(path: &[u8]) -> sys::Result<Fd> {
    sys::open(Path::new(path).ok_or(Errno(22))?, O_RDWR | O_NOCTTY)
}

/// Returns when the host asked for a panic, or on an error of init itself.
fn run() -> sys::Result<()> {
    for (kind, target) in
        [(&b"devtmpfs\0"[..], &b"/dev\0"[..]), (b"proc\0", b"/proc\0"), (b"sysfs\0", b"/sys\0")]
    {
        let invalid = Errno(22);
        sys::mount(Path::new(kind).ok_or(invalid)?, Path::new(target).ok_or(invalid)?)?;
    }
    let console = open(b"/dev/console\0")?;
    sys::write_all(console, b"exoprobe guest ready\n")?;
    sys::close(console)?;
    let tty = open(b"/dev/ttyS1\0")?;
    sys::make_raw(tty)?;
    let workload = Workload {
        tty,
        counters: Counters::new()?,
        call_counters: CallCounters::default(),
        cpus: sys::cpu_count()?,
        number: Cell::new(None),
    };
    // After this, init does what commands say, and nothing else: calls can be counted.
    sys::write_all(tty, b"ready\n")?;
    workload.serve()
}

/// State of the loop.
struct Workload {
    tty: Fd,
    counters: Counters,
    call_counters: CallCounters,
    cpus: usize,
    /// Number of the command that is being answered, if it has one.
    number: Cell<Option<u32>>,
}

/// Whether to read on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Workload {
    fn serve(&self) -> sys::Result<()> {
        let mut buffer = LineBuffer::new();
        let mut input = [0_u8; MAX_LINE + 1];
        loop {
            let count = sys::read(self.tty, &mut input)?;
            for &byte in input.get(..count).unwrap_or_default() {
                let Some(line) = buffer.push(byte) else { continue };
                if self.line(&line)? == Next::Stop {
                    return Ok(());
                }
            }
        }
    }

    fn line(&self, line: &Line<'_>) -> sys::Result<Next> {
        let (Line::Text(bytes) | Line::TooLong(bytes)) = line;
        let (number, text) = command::split_number(bytes);
        self.number.set(number);
        match line {
            Line::TooLong(_) => {
                self.answer(format_args!("error line: longer than {MAX_LINE} bytes"))?;
            }
            Line::Text(_) => match command::parse(text) {
                Ok(None) if number.is_some() => {
                    self.answer(format_args!("error line: no command"))?;
                }
                Ok(None) => {}
                Ok(Some(command)) => return self.execute(&command),
                Err(error) => {
                    let name = Shown(error.command);
                    self.answer(format_args!("error {name}: {}", error.reason))?;
                }
            },
        }
        Ok(Next::Continue)
    }

    fn execute(&self, command: &Command<'_>) -> sys::Result<Next> {
        match command {
            Command::Work(work) => self.report(work.name(), &work::here(&self.counters, work))?,
            Command::Spawn { cpu, work } => {
                let outcome = work::in_children(&self.counters, work, 1, |_child| *cpu);
                self.report("spawn", &outcome)?;
            }
            Command::Par { children, work } => {
                let outcome = work::in_children(&self.counters, work, *children, |child| {
                    child.checked_rem(self.cpus).unwrap_or(0)
                });
                self.report("par", &outcome)?;
            }
            Command::Toggle { path, times, work } => {
                let toggle = || work::toggle(path, *times);
                self.report("toggle", &self.in_a_child_while(work, toggle))?;
            }
            Command::Reattach { end, function, times, work } => {
                let reattach = || work::reattach(*end, *function, *times);
                self.report("reattach", &self.in_a_child_while(work, reattach))?;
            }
            Command::Cpu(cpu) => match sys::pin(*cpu) {
                Ok(()) => self.answer(format_args!("done cpu {cpu}"))?,
                Err(errno) => self.answer(format_args!("error cpu: sched_setaffinity: {errno}"))?,
            },
            Command::Insmod(module) => self.report("insmod", &work::load_module(module))?,
            Command::Rmmod(module) => self.report("rmmod", &work::unload_module(module))?,
            Command::Mount { kind, target } => self.report("mount", &work::mount(kind, target))?,
            Command::Put { path, line } => self.report("put", &work::put(path, line))?,
            Command::Crowd(count) => self.report("crowd", &work::crowd(*count))?,
            Command::Number { path, word } => self.report("number", &work::number(path, word))?,
            Command::Echo { path, count } => self.report("echo", &work::echo(path, *count))?,
            Command::Winsize { path, columns } => {
                self.report("winsize", &work::winsize(path, *columns))?;
            }
            Command::Attach { end, function } => {
                self.report("attach", &self.call_counters.attach(*end, *function))?;
            }
            Command::Calls(end) => self.report("calls", &self.call_counters.calls(*end))?,
            Command::Detach(end) => self.report("detach", &self.call_counters.detach(*end))?,
            Command::Width => {
                self.answer(format_args!("done width {}", Width::of_user_mode().bytes()))?;
            }
            Command::Ping => self.answer(format_args!("done ping 1"))?,
            Command::Counters => self.totals()?,
            Command::Poweroff => {
                sys::sync();
                self.reset("poweroff")?;
            }
            Command::Reboot => self.reset("reboot")?,
            Command::Panic => {
                self.last_answer("panic")?;
                return Ok(Next::Stop);
            }
        }
        Ok(Next::Continue)
    }

    /// Does the work in a child on the last CPU, and something else here.
    fn in_a_child_while(
        &self,
        work: &Work<'_>,
        meanwhile: impl FnOnce() -> Result<(), Failure>,
    ) -> Outcome {
        let last = self.cpus.saturating_sub(1);
        work::in_children_while(&self.counters, work, 1, |_child| last, meanwhile)
    }

    /// Resets the machine. Without ACPI it cannot be switched off: a reset is its clean end,
    /// and the answer before it shows the host that init was asked for it.
    fn reset(&self, name: &str) -> sys::Result<()> {
        self.last_answer(name)?;
        let errno = sys::restart();
        self.answer(format_args!("error {name}: reboot: {errno}"))
    }

    /// An answer that must reach the host before the machine ends.
    fn last_answer(&self, name: &str) -> sys::Result<()> {
        self.answer(format_args!("done {name} 1"))?;
        sys::drain(self.tty)
    }

    fn totals(&self) -> sys::Result<()> {
        let mut text = self.begin_answer();
        let sum: u64 = self.counters.totals().map(|(_name, total)| total).sum();
        // Writing to a `Text` cannot fail.
        let _ = write!(text, "done counters {sum}");
        for (name, total) in self.counters.totals() {
            let _ = write!(text, " {name}={total}");
        }
        let _ = writeln!(text);
        sys::write_all(self.tty, text.as_bytes())
    }

    fn report(&self, name: &str, outcome: &Outcome) -> sys::Result<()> {
        let done = outcome.done;
        match &outcome.failure {
            None => self.answer(format_args!("done {name} {done}")),
            Some(failure) => self.answer(format_args!("error {name}: {failure} ({done} done)")),
        }
    }

    /// An answer's first word, where its command has a number.
    fn begin_answer(&self) -> Text {
        let mut text = Text::new();
        if let Some(number) = self.number.get() {
            // Writing to a `Text` cannot fail.
            let _ = write!(text, "#{number} ");
        }
        text
    }

    fn answer(&self, line: fmt::Arguments<'_>) -> sys::Result<()> {
        let mut text = self.begin_answer();
        // Writing to a `Text` cannot fail.
        let _ = writeln!(text, "{line}");
        sys::write_all(self.tty, text.as_bytes())
    }
}
