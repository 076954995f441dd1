//! Messages of `exoprobe run` on the terminal.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exoprobe_introspect::printable;
use exoprobe_vmm::{OutputLog, StopReason, StopRecord, VmState};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Service, user_space};
use crate::log::say;

/// Between two looks at a terminal.
const TERMINAL: Duration = Duration::from_secs(1);
/// Between two lines in a log file.
const PLAIN: Duration = Duration::from_secs(5);
/// How soon the console's copier sees that the service closes.
const CONSOLE_POLL: Duration = Duration::from_millis(100);
/// Console bytes looked at for its last line.
const TAIL: u64 = 512;

/// How far a boot is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its kernel begins.
    Kernel,
    /// Its first program was seen once.
    Seen,
    /// Its first program runs. Its workload may speak.
    UserSpace,
}

/// Shows how booting goes until the kernel has started the guest's first program, the guest stops
/// or the service closes; then waits for the guest's workload to speak (on serial port 1). With
/// `beside_console` it says something only while the console does not.
pub(crate) async fn booting(service: &Service, beside_console: bool) {
    let started = Instant::now();
    let vm = service.vm();
    let console = Arc::clone(vm.serial(0).expect("a machine has port 0").log());
    let mut closing = service.closing();
    let mut workload = service.growth(1);
    let (mut phase, mut shown) = (Phase::Kernel, console.end());
    let terminal = std::io::stderr().is_terminal() && !beside_console;
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} booting, {elapsed}: {wide_msg}")
            .expect("a constant template"),
    );
    let mut tick = tokio::time::interval(if terminal { TERMINAL } else { PLAIN });
    // The first tick of an interval is at once.
    tick.tick().await;
    loop {
        tokio::select! {
            () = closing.closed() => return bar.finish_and_clear(),
            ready = workload.wait_for(|bytes| *bytes > 0) => {
                bar.finish_and_clear();
                if ready.is_ok() {
                    say!("the guest is ready after {:.1} s", started.elapsed().as_secs_f64());
                }
                return;
            }
            _ = tick.tick(), if phase != Phase::UserSpace => {}
        }
        if matches!(vm.state(), VmState::Stopped(_)) {
            // Why it stopped is reported elsewhere.
            return bar.finish_and_clear();
        }
        phase = next_phase(service, phase).await;
        let seconds = started.elapsed().as_secs();
        if phase == Phase::UserSpace {
            bar.finish_and_clear();
            say!("the guest's kernel has started its first program, after {seconds} s");
            continue;
        }
        let line = last_line(&console);
        let silent = shown == console.end();
        shown = console.end();
        match (terminal, beside_console) {
            (true, _) => {
                bar.set_message(line);
                bar.tick();
            }
            (false, true) if silent => say!("booting, {seconds} s: nothing new on the console"),
            (false, true) => {}
            (false, false) => say!("booting, {seconds} s: {line}"),
        }
    }
}

async fn next_phase(service: &Service, phase: Phase) -> Phase {
    let vm = Arc::clone(service.vm());
    // A paused guest answers as well; it is where it was.
    let runs = tokio::task::spawn_blocking(move || user_space::runs(&vm)).await;
    match (runs.unwrap_or(false), phase) {
        (false, _) => Phase::Kernel,
        (true, Phase::Kernel) => Phase::Seen,
        (true, Phase::Seen | Phase::UserSpace) => Phase::UserSpace,
    }
}

/// The last line of the guest's console, harmless to print: the guest chooses its bytes.
fn last_line(console: &OutputLog) -> String {
    let bytes = console.read(console.end().saturating_sub(TAIL)).bytes;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    printable(line)
}

/// Copies the guest's console to standard output as it comes, until the service closes.
pub(crate) async fn console(service: &Service) {
    let console = Arc::clone(service.vm().serial(0).expect("a machine has port 0").log());
    let closing = service.closing();
    // A thread of its own: the reader of standard output may be slow.
    let copy = tokio::task::spawn_blocking(move || {
        let mut offset = 0;
        loop {
            // Asked before reading, so that what came last is printed too.
            let closed = closing.is_closed();
            let chunk = console.wait(offset, CONSOLE_POLL);
            offset = chunk.end();
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(&chunk.bytes).and_then(|()| stdout.flush());
            // A closed standard output does not end the guest.
            if closed || written.is_err() {
                return;
            }
        }
    });
    if let Err(error) = copy.await {
        tracing::error!(%error, "copying the console");
    }
}

/// Why a guest stopped, in words.
pub(crate) fn stop_text(record: &StopRecord) -> String {
    let why = match &record.reason {
        StopReason::Reset => "it reset itself".to_owned(),
        StopReason::PoweredOff => "it switched itself off".to_owned(),
        StopReason::Halted => "it halted (a power-off without ACPI)".to_owned(),
        StopReason::Panic { message } => format!("kernel panic: {message}"),
        StopReason::TripleFault => format!("triple fault at rip {:#x}", record.regs.rip),
        StopReason::Failed { message } => format!("failure: {message}"),
        StopReason::ShutDown => "it was shut down".to_owned(),
    };
    let text = format!("the guest stopped after {:.1} s: {why}", record.seconds);
    printable(&text)
}
