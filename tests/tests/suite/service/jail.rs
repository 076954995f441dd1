//! Root's jail: what a jailed service reaches, what it does, and what leads root nowhere.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use exoprobe_tests::harness::Case;
use exoprobe_tests::http::{self, Answer};
use exoprobe_tests::{PATIENCE, Service, cases, confinement, exoprobe};

use crate::support::jails::{KVM_GROUP, Place, USER, reachable, refusal, write};

pub(crate) const CASES: &[Case] = cases![
    a_jailed_service_reaches_its_files_and_no_other needs [Kvm, Root, Namespaces, Repeat],
    a_jailed_service_does_all_its_work needs [Kvm, Root, Namespaces, Repeat],
    root_is_jailed_without_capabilities needs [Kvm, Root, Namespaces, Repeat],
    mounts_of_the_jail_are_seen_nowhere_else needs [Kvm, Root, Namespaces, Repeat],
    tcp_is_served_from_a_jail needs [Kvm, Root, Namespaces, Loopback, Repeat],
    links_in_the_jails_folder_lead_root_nowhere needs [Kvm, Root, Namespaces, Repeat],
    a_jail_that_cannot_be_is_refused_before_anything_starts needs [Kvm, Root, Shell, Repeat],
    a_jail_has_limits needs [Kvm, Root, Namespaces, Repeat],
    a_jail_has_a_cgroup needs [Kvm, Root, Namespaces, Cgroup, Repeat],
];

fn namespace(process: &str, kind: &str) -> std::path::PathBuf {
    fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap()
}

fn a_jailed_service_reaches_its_files_and_no_other() {
    let place = Place::new();
    let disk = place.file("disk", &[0; 512]);
    // With a group and capabilities that go on to programs of other users.
    let mut command = Command::new("setpriv");
    command.args(["--groups", "65501", "--inh-caps", "+chown", "--ambient-caps", "+chown"]);
    command.args(["sh", "-c", "exec 7</etc/passwd \"$@\"", "sh"]).arg(exoprobe().get_program());
    let (folder, user) = (place.text("jail"), USER.to_string());
    place.run(&mut command, &["--jail", &folder, "--uid", &user, "--gid", &user]);
    let service = Service::started_by(&mut command, &place.path("jail/exoprobe.sock"));
    let mut expected = [
        "/dev/kvm",
        "/dev/urandom",
        &place.text("initramfs.cpio"),
        &place.text("jail/exoprobe.sock"),
        &place.text("snapshot"),
        &place.text("vmlinux"),
    ]
    .map(str::to_owned)
    .to_vec();
    let mut found = reachable(&service);
    // Its lock, and a link for `exoprobe ls`.
    let own = place.text("jail/exoprobe/");
    assert_eq!(found.iter().filter(|path| path.starts_with(&own)).count(), 2, "{found:?}");
    found.retain(|path| !path.starts_with(&own));
    expected.sort();
    assert_eq!(found, expected);
    let open = fs::read_dir(format!("/proc/{}/fd", service.pid())).unwrap();
    let is_inherited = |link: &Path| fs::read_link(link).is_ok_and(|to| to.ends_with("passwd"));
    assert!(!open.map(Result::unwrap).any(|fd| is_inherited(&fd.path())), "they are closed");
    assert_without_rights(&service);
    assert_mounts(&service, &place);
    assert!(disk.exists(), "and no file that was not named");
}

/// Checks ids, capabilities and namespaces, where the process is, and whose the KVM device is.
fn assert_without_rights(service: &Service) {
    let pid = service.pid().to_string();
    let place = |name: &str| {
        let found = fs::metadata(Path::new("/proc").join(&pid).join(name)).unwrap();
        (found.dev(), found.ino())
    };
    assert_eq!(place("cwd"), place("root"), "no folder of the old root is kept");
    for (name, value) in [
        ("Uid", [USER; 4].map(|id| id.to_string()).join(" ")),
        ("Gid", [USER; 4].map(|id| id.to_string()).join(" ")),
        ("Groups", String::new()),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
    ] {
        assert_eq!(service.status_line(name), value, "{name}");
    }
    assert_without_capabilities(service);
    for kind in ["mnt", "net", "ipc"] {
        assert_ne!(namespace(&pid, kind), namespace("self", kind), "{kind}");
    }
    let inside = Path::new("/proc").join(&pid).join("root");
    let kvm = fs::metadata(inside.join("dev/kvm")).unwrap();
    assert_eq!((kvm.uid(), kvm.mode() & 0o777), (USER, 0o600), "a device of its own");
}

fn assert_without_capabilities(service: &Service) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(service.status_line(set), "0".repeat(16), "{set}");
    }
}

fn assert_mounts(service: &Service, place: &Place) {
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", service.pid())).unwrap();
    let options = |path: &str| {
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(path));
        line.unwrap_or_else(|| panic!("{path}: {mounts}")).split(' ').nth(5).unwrap().to_owned()
    };
    for (path, start) in [
        ("/".to_owned(), "ro,nosuid,noexec"),
        (place.text("vmlinux"), "ro,nosuid,nodev,noexec"),
        (place.text("snapshot"), "ro,nosuid,nodev,noexec"),
        (place.text("jail"), "rw,nosuid,nodev,noexec"),
    ] {
        assert!(options(&path).starts_with(start), "{path}: {}", options(&path));
    }
    assert_eq!(mounts.lines().count(), 5, "{mounts}");
    let outside = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!outside.contains(&place.text("")), "{outside}");
}

fn a_jailed_service_does_all_its_work() {
    let place = Place::new();
    let mut service = place.jailed(&[]);
    let log = service.log();
    let line = format!(
        "jailed in {}: uid {USER}, gid {USER}, a root and namespaces of its own (no network)",
        place.text("jail")
    );
    assert!(log.contains(&line), "{log}");
    let socket = fs::metadata(service.socket()).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (USER, 0o600));
    let config = http::ask(service.socket(), "GET", "/v1/vm/config", &[], &[]).json();
    assert_eq!((&config["jail"], &config["uid"]), (&place.text("jail").into(), &USER.into()));
    let dump = write(&service, "dump", &place.path("jail/core"));
    assert_eq!(dump.status, 200, "{dump:?}");
    let outside = write(&service, "dump", &place.path("core"));
    assert_eq!((outside.status, &outside.json()["code"]), (422, &"EACCES".into()), "{outside:?}");
    let _ = service.ok(&["probe", "add", "p:getpid __x64_sys_getpid"]);
    assert_eq!(service.work("getpid 100"), "done getpid 100\n");
    assert!(service.ok(&["probe", "list"]).contains(" 100 "));
    let _ = service.ok(&["probe", "rm", "--all"]);
    let snapshot = write(&service, "snapshot", &place.path("jail/snap"));
    assert_eq!(snapshot.status, 200, "{snapshot:?}");
    assert_eq!(fs::metadata(place.path("jail/snap")).unwrap().uid(), USER);
    let passwd = write(&service, "snapshot", Path::new("/etc/passwd"));
    assert_eq!((passwd.status, &passwd.json()["code"]), (422, &"ENOENT".into()), "{passwd:?}");
    // Kernel and initramfs are read again.
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    assert!(service.end(libc::SIGTERM).success(), "{}", service.log());
    assert!(!service.socket().exists(), "the socket goes with it");
    // What was written in the jail is of use outside, by the same path.
    let snap = place.text("jail/snap");
    let again = Service::start(&["--restore", &snap]);
    assert_eq!(again.work("getpid 5"), "done getpid 5\n");
    drop(again);
    // The folder is taken again, with an overlay's temporary file in it.
    let disk = place.file("disk", &[0; 1 << 20]);
    let mut command = exoprobe();
    let (disk, user) = (format!("{},overlay", disk.display()), USER.to_string());
    command.args(["run", "--kernel", &place.text("vmlinux"), "--memory", "32", "--disk", &disk]);
    command.args(["--jail", &place.text("jail"), "--uid", &user, "--gid", &user]);
    let second = Service::started_by(&mut command, &place.path("jail/exoprobe.sock"));
    assert!(reachable(&second).contains(&place.text("disk")));
}

/// The kernel takes no capability from a process that stays root: the jail itself does.
fn root_is_jailed_without_capabilities() {
    let place = Place::new();
    let mut command = exoprobe();
    let folder = place.text("jail");
    let root = ["--uid", "0", "--gid", "0", "--allow-root"];
    place.run(&mut command, &[&["--jail", &*folder][..], &root].concat());
    let service = Service::started_by(&mut command, &place.path("jail/exoprobe.sock"));
    assert_eq!(service.status_line("Uid"), "0 0 0 0");
    assert_without_capabilities(&service);
    assert_eq!(service.work("getpid 5"), "done getpid 5\n");
}

/// As on a host with systemd, which makes all mounts shared: those that are made in a new namespace
/// appear in the old one, unless the jail makes them private.
fn mounts_of_the_jail_are_seen_nowhere_else() {
    let place = Place::new();
    let mut holder = Command::new("unshare")
        .args(["-m", "--propagation", "shared", "sh", "-c", "echo there && read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let _ = BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "there\n");
    let mounts = || fs::read_to_string(format!("/proc/{}/mountinfo", holder.id())).unwrap();
    let before = mounts();
    assert!(before.contains(" shared:"), "{before}");
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{}/ns/mnt", holder.id())).arg(exoprobe().get_program());
    let (folder, user) = (place.text("jail"), USER.to_string());
    place.run(&mut command, &["--jail", &folder, "--uid", &user, "--gid", &user]);
    let service = Service::started_by(&mut command, &place.path("jail/exoprobe.sock"));
    assert_mounts(&service, &place);
    assert_eq!(mounts(), before);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().code().is_some());
}

fn tcp_is_served_from_a_jail() {
    let place = Place::new();
    let token = place.path("token");
    fs::write(&token, "correct-horse-battery\n").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    // Root's own: read before the jail, and not in it.
    let token = place.text("token");
    let service = place.jailed(&["--listen", "127.0.0.1:0", "--token-file", &token]);
    let header = ["authorization: Bearer correct-horse-battery"];
    let mut stream = TcpStream::connect(service.tcp_address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&http::request("GET", "/v1/vm", &header, b"")).unwrap();
    assert_eq!(Answer::read(stream).status, 200);
    assert_eq!(namespace(&service.pid().to_string(), "net"), namespace("self", "net"));
    assert!(!reachable(&service).contains(&token));
}

/// As CVE-2026-1386 of Firecracker's jailer: the jail's user, who may have taken the service over,
/// puts links into the folder, and root starts it again.
fn links_in_the_jails_folder_lead_root_nowhere() {
    let place = Place::new();
    let jail = place.folder("jail");
    // Files of root's, which the user cannot reach: the folder is closed.
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let victim = closed.join("victim");
    fs::write(&victim, [7; 512]).unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o666)).unwrap();
    let user = USER.to_string();
    let own = ["--jail", &place.text("jail"), "--uid", &user, "--gid", &user];
    let refused = |args: &[&str]| place.refused(&[&own[..], args].concat());
    let link = |from: &Path, to: &Path| {
        symlink(to, from).unwrap();
        lchown(from, Some(USER), Some(USER)).unwrap();
    };
    let socket = jail.join("exoprobe.sock");
    link(&socket, &victim);
    let error = refused(&[]);
    assert!(error.contains("exists and is no socket"), "{error}");
    fs::remove_file(&socket).unwrap();
    // The folder of locks, which that start has made.
    fs::remove_dir_all(jail.join("exoprobe")).unwrap();
    link(&jail.join("exoprobe"), &closed);
    let error = refused(&[]);
    assert!(error.contains("not a folder of this user alone"), "{error}");
    fs::remove_file(jail.join("exoprobe")).unwrap();
    // A file in the folder that the command line names.
    link(&jail.join("disk"), &victim);
    let disk = ["--disk", &*place.text("jail/disk")];
    let error = place.refused_at_boot(&[&own[..], &disk].concat());
    assert!(error.contains("No such file"), "{error}");
    // And one elsewhere, behind a link of the user's.
    let other = place.folder("other");
    link(&other.join("disk"), &victim);
    let error = refused(&["--disk", &place.text("other/disk")]);
    assert!(error.contains("belongs to uid 65534, and is not followed"), "{error}");
    // The folder itself.
    fs::rename(&jail, place.path("moved")).unwrap();
    link(&jail, &closed);
    let error = refused(&[]);
    assert!(error.contains("symbolic link"), "{error}");
    assert_eq!(fs::read(&victim).unwrap(), [7; 512]);
    let found = fs::metadata(&victim).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o666));
    assert_eq!(fs::metadata(&closed).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(fs::read_dir(&closed).unwrap().count(), 1, "nothing was made there");
}

fn a_jail_that_cannot_be_is_refused_before_anything_starts() {
    let place = Place::new();
    let (folder, user) = (place.text("jail"), USER.to_string());
    let ids = ["--uid", &user, "--gid", &user];
    let in_folder = ["--jail", &*folder];
    for (args, reason) in [
        (&[][..], "needs --uid and --gid"),
        (&["--uid", "0", "--gid", "0"], "--allow-root"),
        (&["--uid", "root", "--gid", "0"], "give a number"),
        (&[&ids[..], &["--socket", "/tmp/s"]].concat(), "--socket /tmp/s: with --jail"),
        (&[&ids[..], &["--vsock", "/tmp/v"]].concat(), "--vsock /tmp/v: with --jail"),
        (&[&ids[..], &["--disk", "/nonexistent/disk"]].concat(), "/nonexistent/disk: No such file"),
        (&[&ids[..], &["--cgroup", "nothing.max=1"]].concat(), "--cgroup nothing.max=1: "),
        (&[&ids[..], &["--cgroup", "cgroup.procs=1"]].concat(), "is no limit"),
    ] {
        let error = place.refused(&[&in_folder[..], args].concat());
        assert!(error.contains(reason), "{args:?}: {error}");
    }
    let error = place.refused(&ids);
    assert!(error.contains("--jail <DIR>"), "{error}");
    let error = refusal(&mut place.as_user(&["--jail", &folder, "--uid", "0"]));
    assert!(error.contains(&format!("this is uid {USER}")), "{error}");
    let open = place.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    for (jail, reason) in [
        ("open/jail", "open may be changed by others"),
        ("open", "not the folder of uid 65534 alone"),
        ("snapshot", "no folder"),
    ] {
        let error = place.refused(&[&["--jail", &*place.text(jail)][..], &ids].concat());
        assert!(error.contains(reason), "{jail}: {error}");
    }
    assert!(!open.join("jail").exists());
    assert_ne!(KVM_GROUP, USER);
}

fn a_jail_has_limits() {
    let place = Place::new();
    let service = place.jailed(&["--rlimit-nofile", "300", "--rlimit-fsize", "1"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", service.pid())).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(|word| word.parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(limit("Max open files"), [300, 300]);
    assert_eq!(limit("Max file size"), [1 << 20, 1 << 20]);
    let answer = write(&service, "snapshot", &place.path("jail/snap"));
    assert!(answer.status >= 400 && answer.body.contains("File too large"), "{answer:?}");
    assert!(!place.path("jail/snap").exists());
    assert_eq!(service.work("getpid 5"), "done getpid 5\n", "it goes on");
}

fn a_jail_has_a_cgroup() {
    let (mount, limit) = confinement::cgroup().unwrap();
    let (file, value) = limit.split_once('=').unwrap();
    let place = Place::new();
    let service = place.jailed(&["--cgroup", limit]);
    let own = mount.join("exoprobe").join(service.pid().to_string());
    let read = |file: &str| fs::read_to_string(own.join(file)).unwrap();
    assert_eq!(read(file).trim(), value);
    assert_eq!(read("cgroup.procs").trim(), service.pid().to_string());
    drop(service);
    // The next service removes it.
    let next = place.jailed(&["--cgroup", limit]);
    assert!(!own.exists());
    let error = place.refused(&[
        "--jail",
        &place.text("second"),
        "--uid",
        "65534",
        "--gid",
        "65534",
        "--cgroup",
        "hugetlb.2MB.maximum=1",
    ]);
    assert!(error.contains("--cgroup hugetlb.2MB.maximum=1: "), "{error}");
    let left = mount.join("exoprobe").join(next.pid().to_string());
    drop(next);
    drop(Command::new("rmdir").arg(left).arg(mount.join("exoprobe")).output());
}
