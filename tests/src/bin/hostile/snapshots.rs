//! Snapshots that a hostile hand has made, with checksums that are right or wrong, and files that
//! are none.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use exoprobe_tests::{Dice, Running, exoprobe, finish, http};
use serde_json::Value;

use crate::attack::{Ground, Tally};
use crate::parts::{PAGE, Parts};

/// Longest start, and longest end.
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(60);
/// Between two looks at a service that starts.
const LOOK: Duration = Duration::from_millis(10);
/// Files that are kept, of snapshots that a service did not survive.
const KEPT_MAX: usize = 3;
/// The status of a Rust program that panicked.
const PANICKED: i32 = 101;

/// Requests to a guest that is whatever the snapshot says.
const QUESTIONS: [(&str, &str, &str); 8] = [
    ("GET", "/v1/vm", ""),
    ("GET", "/v1/vm/registers/0", ""),
    ("GET", "/v1/vcpus/0/stack", ""),
    ("GET", "/v1/tasks", ""),
    ("GET", "/v1/modules", ""),
    ("GET", "/v1/symbols?name=vfs_*&limit=3", ""),
    ("POST", "/v1/probes", "p:hostile vfs_read"),
    ("DELETE", "/v1/probes", ""),
];

/// Changes some member of the metadata to something that it should not be.
fn spoil(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let at = dice.below(members.len());
            let (name, member) = members.iter_mut().nth(at).expect("below their number");
            let name = name.clone();
            if dice.one_in(30) {
                members.remove(&name);
            } else {
                spoil(member, dice);
            }
        }
        Value::Array(items) if !items.is_empty() => match dice.below(8) {
            0 => items.truncate(items.len() / 2),
            1 => items.extend_from_within(..items.len().min(100)),
            _ => {
                let at = dice.below(items.len());
                spoil(&mut items[at], dice);
            }
        },
        Value::Number(_) => {
            let number =
                [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX];
            *value = match dice.below(4) {
                0 => Value::from(dice.roll() % 256),
                1 => Value::from(dice.roll()),
                2 => Value::from(-1),
                _ => Value::from(*dice.pick(&number)),
            };
        }
        other => *other = Value::from(["", "/etc/passwd", "../../x"][dice.below(3)]),
    }
}

/// Kinds of snapshots that [`write_one`] makes; those beyond are of the last one.
const KINDS: usize = 6;

fn write_one(parts: &mut Parts, path: &str, kind: usize, dice: &mut Dice) {
    let mut meta = parts.meta.clone();
    let written = || File::options().write(true).open(path).expect("it is there");
    match kind {
        0 => {
            parts.write(path, &meta, |_| ());
            let file = written();
            let len = file.metadata().expect("a file").len();
            file.set_len(dice.roll() % len).expect("shorter");
        }
        1 => parts.write(path, &meta, |header| {
            let at = *dice.pick(&[8, 16, 24, 32, 40, 44]);
            let number = [0, 1, u64::MAX, dice.roll()][dice.below(4)];
            header[at..at + 4].copy_from_slice(&number.to_le_bytes()[..4]);
        }),
        2 => {
            // What the guest's kernel has in its memory is anything.
            let page = dice.below(parts.memory.len() / PAGE) * PAGE;
            let kept = parts.memory[page..page + PAGE].to_vec();
            let noise = (0..PAGE / 8).flat_map(|_| dice.roll().to_le_bytes());
            parts.memory.splice(page..page + PAGE, noise);
            parts.write(path, &meta, |_| ());
            parts.memory.splice(page..page + PAGE, kept);
        }
        3 | 4 => {
            // Memory does not match its checksum: some bytes changed, or are gone.
            parts.write(path, &meta, |_| ());
            let file = written();
            let start = file.metadata().expect("a file").len() - parts.memory.len() as u64;
            let at = start + (dice.below(parts.memory.len() / PAGE) * PAGE) as u64;
            let bytes = if kind == 3 { dice.roll().to_le_bytes().repeat(2) } else { vec![0; PAGE] };
            file.write_all_at(&bytes, at).expect("room");
        }
        _ => {
            for _ in 0..=dice.below(3) {
                spoil(&mut meta, dice);
            }
            parts.write(path, &meta, |_| ());
        }
    }
}

/// A service that restores a file: it must say why not, or serve, and end when asked to.
fn restore(file: &str, socket: &str) -> Result<bool, String> {
    let mut command = exoprobe();
    let mut running = Running::spawn(command.args(["run", "--restore", file, "--socket", socket]));
    let deadline = Instant::now() + START;
    loop {
        if let Some(status) = running.ended() {
            let output = running.finish(END);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let refused = is_refusal(status) && said.contains("error");
            return if refused { Ok(false) } else { Err(format!("{status}: {said}")) };
        }
        if UnixStream::connect(socket).is_ok() && running.stderr().contains("listening on") {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("it neither ends nor serves: {running}"));
        }
        std::thread::sleep(LOOK);
    }
    let mut odd = None;
    for (method, path, body) in QUESTIONS {
        let kind = ["content-type: text/plain"];
        let answer = http::ask(Path::new(socket), method, path, &kind, body.as_bytes());
        if answer.status >= 500 && ![503, 507].contains(&answer.status) {
            odd = Some(format!("{method} {path}: {answer:?}"));
        }
    }
    running.signal(libc::SIGTERM);
    let status = running.wait(END);
    let said = running.stderr();
    if status.code().is_none_or(|code| code == PANICKED) || said.contains("panicked") {
        return Err(format!("{status}: {said}"));
    }
    odd.map_or(Ok(true), Err)
}

fn is_refusal(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| code != 0 && code != PANICKED)
}

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    let mut parts = Parts::read(&ground.snapshot);
    let (file, socket) = (ground.path("hostile"), ground.path("s"));
    let mut served = 0;
    // Each kind once at least.
    for number in 0.. {
        if number >= KINDS && !ground.goes_on(tally) {
            break;
        }
        let seed = ground.dice.roll();
        let mut dice = Dice(seed);
        let kind = if number < KINDS { number } else { dice.below(2 * KINDS) };
        write_one(&mut parts, &file, kind, &mut dice);
        match restore(&file, &socket) {
            Ok(is_served) => served += u64::from(is_served),
            Err(finding) if tally.findings.len() < KEPT_MAX => {
                let kept = std::env::temp_dir().join(format!("exoprobe-hostile-{seed:x}"));
                drop(std::fs::copy(&file, &kept));
                tally.found(format!("{finding} ({})", kept.display()));
            }
            Err(finding) => tally.found(finding),
        }
        tally.times += 1;
    }
    println!("hostile: {served} of {} hostile snapshots were served", tally.times);
}

/// FIFOs, sockets, devices, folders, and files of other sizes.
pub(crate) fn no_files(ground: &mut Ground, tally: &mut Tally) {
    let names = ["socket", "folder", "empty", "sparse", "zeros", "link", "fifo"];
    let paths = names.map(|name| ground.path(name));
    let [listener, folder, empty, sparse, zeros, link, fifo] = &paths;
    let _listener = UnixListener::bind(listener).expect("a socket");
    std::fs::create_dir(folder).expect("a folder");
    File::create(empty).expect("a file");
    File::create(sparse).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    std::fs::write(zeros, vec![0; 1 << 20]).expect("room");
    std::os::unix::fs::symlink(link, link).expect("a link to itself");
    let made = finish(Command::new("mkfifo").arg(fifo), END);
    tally.check(made.status.success(), || format!("{made:?}"));
    let socket = ground.path("s");
    let others = ["/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem", "/nonexistent"];
    let refused = [listener, folder, empty, sparse, zeros, link].map(String::as_str);
    while ground.goes_on(tally) {
        for path in refused.iter().chain(&others) {
            match restore(path, &socket) {
                Ok(is_served) => tally.check(!is_served, || format!("{path} was restored")),
                Err(finding) => tally.found(format!("{path}: {finding}")),
            }
            tally.times += 1;
        }
        tally.times += 1;
        waits_and_ends(fifo, &socket, tally);
    }
}

/// A service that waits for a FIFO ends when asked to.
fn waits_and_ends(fifo: &str, socket: &str, tally: &mut Tally) {
    let mut command = exoprobe();
    let mut running = Running::spawn(command.args(["run", "--restore", fifo, "--socket", socket]));
    std::thread::sleep(Duration::from_millis(300));
    running.signal(libc::SIGTERM);
    // It may not have had its handler yet.
    let status = running.wait(END);
    let ended = status.success()
        || std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGTERM);
    tally.check(ended, || format!("{fifo}: {status}: {}", running.stderr()));
}
