use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(colored: bool, log: impl FnOnce()) -> String {
    let kept = Kept::default();
    let limiter: &'static Limiter = Box::leak(Box::new(Limiter::new()));
    let writer = kept.clone();
    let made = subscriber(EnvFilter::new("warn"), colored, limiter, move || writer.clone());
    tracing::subscriber::with_default(made, log);
    let bytes = kept.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_flood_of_one_message_is_a_few_lines_and_others_still_come() {
    let text = logged(false, || {
        for time in 0..10_000 {
            tracing::warn!(time, "cannot set a breakpoint of the engine");
        }
        tracing::warn!("another");
    });
    let (floods, others): (Vec<_>, Vec<_>) =
        text.lines().partition(|line| line.contains("cannot set a breakpoint of the engine"));
    assert_eq!(floods.len(), limiter::BURST as usize, "{text}");
    assert_eq!(others.len(), 1, "{text}");
}

#[test]
fn a_log_is_in_colour_only_where_asked_for() {
    assert!(!logged(false, || tracing::warn!("plain")).contains('\x1b'));
    assert!(logged(true, || tracing::warn!("coloured")).contains('\x1b'));
}

/// A full disk, or a pipe that is closed.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_write_that_fails_is_no_error() {
    let mut lossy = Lossy(Full);
    assert!(lossy.write_all(b"text").is_ok() && lossy.flush().is_ok());
}

#[test]
fn text_of_a_guest_steers_no_terminal() {
    let hostile = "a\u{1b}[2J\u{9b}2Jb\u{202e}c\u{200b}d\r";
    for colored in [false, true] {
        let text = logged(colored, || {
            tracing::warn!(hostile, "told: {hostile}");
            tracing::warn!(shown = %hostile, "again");
        });
        assert!(text.contains("told: a") && text.lines().count() == 2, "{text:?}");
        let steers = |c: char| "\u{9b}\u{202e}\u{200b}\r".contains(c);
        assert!(!text.contains(steers) && !text.contains("\u{1b}[2J"), "{text:?}");
        assert!(colored || !text.contains('\u{1b}'), "{text:?}");
    }
}
