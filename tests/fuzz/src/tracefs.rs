//! The tracer's files, written and read by arbitrary paths and texts over a guest whose kernel has
//! not begun: lines `W PATH TEXT` (as a shell's `>`), `A PATH TEXT` (as its `>>`, with a `;` for a
//! newline), `R PATH`, `M PATH` and `D PATH` (mkdir and rmdir). What is listed in the end can be
//! written again, after all is switched off and deleted, and returns the same listing.

use std::sync::{Arc, LazyLock};

use exoprobe_guest::GuestClock;
use exoprobe_guest::testing::FakeGuest;
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::{Engine, EventLimits, Guest, KernelHints, Limits};
use exoprobe_tracer::Tracer;

const SYMBOLS: &str = "\
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81001000 T work
ffffffff81001100 T vfs_read
ffffffff81001200 t twice
ffffffff81001300 t twice
ffffffff81003000 T _etext
ffffffff81110000 D modules
ffffffff81110100 D jiffies
";
const MIB: u64 = 16;
/// Commands of one input.
const COMMANDS_MAX: usize = 64;

/// A machine that does not run, and its symbols.
static MACHINE: LazyLock<(Arc<FakeGuest>, SymbolTable)> = LazyLock::new(|| {
    let symbols = SymbolTable::from_system_map(SYMBOLS).expect("they are right");
    (Arc::new(FakeGuest::new(MIB)), symbols)
});

/// The files of all folders, by their paths.
fn files(tracer: &Tracer, folder: &str, found: &mut Vec<String>) {
    let entries = tracer.list(folder).expect("it is there").expect("it is a folder");
    for entry in entries {
        let path = format!("{folder}/{}", entry.name);
        match entry.kind {
            exoprobe_tracer::NodeKind::Directory => files(tracer, &path, found),
            exoprobe_tracer::NodeKind::File(mode) if mode & 0o400 == 0 => {}
            exoprobe_tracer::NodeKind::File(_) => found.push(path),
        }
    }
}

fn carry_out(tracer: &Tracer, line: &str) {
    let mut parts = line.splitn(3, ' ');
    let (what, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let text = parts.next().unwrap_or_default().replace(';', "\n");
    let done = match what {
        "W" => tracer.truncate(path).and_then(|()| tracer.write(path, &text)),
        "A" => tracer.write(path, &text),
        "R" => tracer.read(path).map(drop),
        "M" => tracer.make_folder(path),
        "D" => tracer.remove_folder(path),
        _ => tracer.list(path).map(drop),
    };
    if let Err(error) = done {
        assert!(error.errno.starts_with('E') && !error.message.is_empty());
        assert!(error.position.is_none_or(|at| at <= text.len()), "{error:?} in {text:?}");
        assert!(error.line.is_none_or(|line| line <= text.lines().count()), "{error:?}");
    }
}

pub(crate) fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    let (guest, symbols) = &*MACHINE;
    let given = KernelHints { symbols: Some(symbols.clone()), ..KernelHints::default() };
    let guest = Arc::clone(guest) as Arc<dyn Guest>;
    let engine = Arc::new(Engine::new(
        guest,
        GuestClock::default(),
        given,
        Limits { events: EventLimits { count: 16, ..EventLimits::default() }, ..Limits::default() },
    ));
    let tracer = Tracer::new(engine, 1);
    data.lines().take(COMMANDS_MAX).for_each(|line| carry_out(&tracer, line));
    let mut all = Vec::new();
    files(&tracer, "", &mut all);
    // The running kernel decides where no probe may be.
    let is_read = |path: &&String| {
        let raw = tracer.raw_pipe(path).map(|pipe| pipe.take(1));
        raw.is_none() && !path.ends_with("/blacklist")
    };
    for path in all.iter().filter(is_read) {
        tracer.read(path).expect("what is listed can be read");
    }
    let instances = tracer.list("instances").expect("it is there").expect("it is a folder");
    for instance in instances {
        let path = format!("instances/{}", instance.name);
        tracer.remove_folder(&path).expect("nobody reads it");
    }
    let listed = tracer.read("kprobe_events").expect("it is there");
    for (path, text) in [("kprobes/enabled", "1"), ("events/enable", "0")] {
        tracer.write(path, text).expect("it can be switched");
    }
    tracer.truncate("kprobe_events").expect("nothing is enabled");
    assert_eq!(tracer.read("kprobe_events").as_deref(), Ok(""));
    tracer.write("kprobe_events", &listed).expect("what is listed is right");
    assert_eq!(tracer.read("kprobe_events").as_deref(), Ok(&*listed));
}
