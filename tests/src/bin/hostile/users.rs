//! Another user of the host: holds locks, takes names first, and listens at our socket's path.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use exoprobe_tests::harness::Need;
use exoprobe_tests::{Running, exoprobe, finish};

use crate::attack::{Ground, Tally, holds_soon};

/// The user and group `nobody`.
const OTHER: u32 = 65534;
/// Longest start of a service, or of the other user's program.
const START: Duration = Duration::from_secs(30);

/// Ways to take the name of our folder: each is carried out by the other user in a folder that all
/// may write to, as /tmp is.
const SQUATS: [&str; 5] = [
    "mkdir -m 777 exoprobe",
    "mkdir -m 700 exoprobe",
    "ln -s /etc exoprobe",
    "mkfifo exoprobe",
    "echo > exoprobe",
];

/// Listens at a path, and writes what it is sent.
const IMPOSTOR: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind('exoprobe.sock'); s.listen()
import os; os.chmod('exoprobe.sock', 0o777)
print('listens', flush=True)
while True:
    c = s.accept()[0]
    print('sent:', c.recv(4096), flush=True)";

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    if let Some(lack) = Need::Root.lack() {
        println!("hostile: another user: skipped: {lack:?}");
        tally.times = 1;
        return;
    }
    while ground.goes_on(tally) {
        for squat in SQUATS {
            squatted(ground, squat, tally);
        }
        locked(ground, tally);
        impersonated(ground, tally);
        tally.times += 1;
    }
}

/// A folder that all may write to, and that the other user reaches.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(&folder, Permissions::from_mode(0o1777)).expect("it is ours");
    folder
}

/// A program of the other user's, in a folder.
fn other(folder: &Path, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).uid(OTHER).gid(OTHER);
    command
}

fn run(ground: &Ground, runtime: &Path, socket: &str) -> Running {
    let mut command = exoprobe();
    command.env("XDG_RUNTIME_DIR", runtime).args(["run", "--socket", socket]);
    Running::spawn(command.args(ground.restore()))
}

/// The name of our folder is taken: the service says so and ends, and follows no link.
fn squatted(ground: &Ground, squat: &str, tally: &mut Tally) {
    let folder = open_folder();
    let made = finish(&mut other(folder.path(), "sh", &["-c", squat]), START);
    tally.check(made.status.success(), || format!("{squat}: {made:?}"));
    let output = run(ground, folder.path(), &ground.path("s")).finish(START);
    let said = String::from_utf8_lossy(&output.stderr);
    let is_refused = output.status.code() == Some(1) && said.contains("not a folder of this user");
    tally.check(is_refused, || format!("{squat}: {}: {said}", output.status));
}

/// A service starts while another user holds locks on folders that it can open.
fn locked(ground: &Ground, tally: &mut Tally) {
    let folder = open_folder();
    let runtime = folder.path().join("runtime");
    DirBuilder::new().mode(0o755).create(&runtime).expect("a folder of ours");
    let shell = "exec 8< . 9< runtime; flock -n 8 && flock -n 9 && echo held && exec sleep 600";
    let holder = Running::spawn(&mut other(folder.path(), "bash", &["-c", shell]));
    wait_for(&holder, "held", tally);
    let socket = ground.path("s");
    let mut running = run(ground, &runtime, &socket);
    running.wait_for_socket(Path::new(&socket), START);
    running.signal(libc::SIGTERM);
    let status = running.wait(START);
    tally.check(status.success(), || format!("{status}: {running}"));
}

/// Clients send nothing to a service of another user's.
fn impersonated(ground: &Ground, tally: &mut Tally) {
    let folder = open_folder();
    let impostor = Running::spawn(&mut other(folder.path(), "python3", &["-c", IMPOSTOR]));
    wait_for(&impostor, "listens", tally);
    for args in [&["vm", "status"][..], &["probe", "add", "p:secret vfs_read"], &["events"]] {
        let mut client = exoprobe();
        let output = finish(client.env("XDG_RUNTIME_DIR", folder.path()).args(args), START);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_refused = !output.status.success() && said.contains("user");
        tally.check(is_refused, || format!("{args:?}: {}: {said}", output.status));
    }
    let said = impostor.stdout();
    tally.check(!said.contains("HTTP"), || format!("it was sent: {said}"));
    // It is not in the way of our own service at another path.
    let socket = ground.path("s");
    let runtime = folder.path().join("own");
    DirBuilder::new().mode(0o700).create(&runtime).expect("a folder of ours");
    let mut running = run(ground, &runtime, &socket);
    running.wait_for_socket(Path::new(&socket), START);
}

fn wait_for(running: &Running, text: &str, tally: &mut Tally) {
    let works = holds_soon(START, || running.stdout().contains(text));
    tally.check(works, || format!("the other user's program does not work: {running}"));
}
