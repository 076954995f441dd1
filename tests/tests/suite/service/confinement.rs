//! Privileges that the service gives up: system calls, core dumps, swap (docs/security.md).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, exoprobe, finish};

use crate::support::devices::Sides;
use crate::support::jails::{Place, USER};

pub(crate) const CASES: &[Case] = cases![
    each_thread_of_a_service_has_its_filters,
    without_filters_there_is_a_warning_and_no_privilege needs [Kvm, Repeat],
    other_processes_of_the_user_cannot_read_the_service needs [Kvm, Root, Shell, Repeat],
    without_a_runtime_folder_the_default_socket_is_in_tmp needs [Kvm, Root, Shell, Repeat],
    guest_memory_is_in_no_core_dump_also_after_a_reboot needs [Kvm, QuickKernel, Root],
    guest_memory_is_locked_if_so_asked_also_after_a_reboot needs [Kvm, QuickKernel, Root],
    a_limit_that_is_too_low_for_locked_memory_is_named needs [Kvm, Repeat],
];

/// The kind of a thread, by the name that the kernel shows, and its number of filters: for each
/// error with which calls fail one, and one for the calls that are allowed. Threads of devices
/// have their starter's, too. The guest has no driver for the device of random numbers.
const FILTERS: [(&str, &[usize]); 12] = [
    ("exoprobe", &[2]),
    ("tokio-rt-worker", &[2]),
    ("drainer", &[2]),
    ("memory", &[2]),
    ("serial-0", &[2]),
    ("serial-1", &[2]),
    ("vcpu0", &[2]),
    ("thread starter", &[3]),
    ("disk", &[5]),
    ("disk waits", &[5]),
    ("network", &[5]),
    ("vsock", &[5]),
];
/// That of the port's watcher, and that of the device.
const CONSOLE: (&str, &[usize]) = ("console", &[2, 5]);

/// Fields of `/proc/PID/task/TID/status` of all threads, with their names.
fn threads(pid: u32) -> Vec<(String, BTreeMap<String, String>)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |task: fs::DirEntry| {
        // One that has ended meanwhile is none.
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        let mut fields: BTreeMap<_, _> = text.lines().filter_map(field).collect();
        Some((fields.remove("Name")?, fields))
    };
    tasks.filter_map(|task| status(task.unwrap())).collect()
}

fn each_thread_of_a_service_has_its_filters() {
    let dir = tempfile::tempdir().unwrap();
    let sides = Sides::new(dir.path(), 1);
    let arguments = sides.arguments(1);
    let service = Service::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    // All blocking threads that there will be are like these.
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    let expected: BTreeMap<_, _> = FILTERS.into_iter().chain([CONSOLE]).collect();
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")).unwrap();
    // Where the tests themselves run under a filter.
    let inherited: usize = own.trim().parse().unwrap();
    let mut seen: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    // Newer kernels have a thread of KVM's own among the process's.
    let is_ours = |(name, _): &(String, _)| !name.starts_with("kvm-");
    for (name, fields) in threads(service.pid()).into_iter().filter(is_ours) {
        assert_eq!(fields["NoNewPrivs"], "1", "{name}");
        assert_eq!(fields["Seccomp"], "2", "{name}");
        let filters: usize = fields["Seccomp_filters"].parse().unwrap();
        seen.entry(name).or_default().push(filters - inherited);
    }
    assert!(seen.keys().all(|name| expected.contains_key(&**name)), "{seen:?}");
    for (name, counts) in expected {
        let mut found = seen.remove(name).unwrap_or_default();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, counts, "{name}");
    }
}

fn without_filters_there_is_a_warning_and_no_privilege() {
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().unwrap(), "--no-seccomp"]);
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    assert!(service.log().contains("warning: --no-seccomp: threads may make any system call"));
    for (name, fields) in threads(service.pid()) {
        assert_eq!(fields["NoNewPrivs"], "1", "{name}");
    }
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Seccomp:")).unwrap().trim();
    assert!(threads(service.pid()).iter().all(|(_, fields)| fields["Seccomp"] == own));
    let file: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "vm", "config"])).unwrap();
    assert_eq!(file["no_seccomp"], true, "{file}");
}

/// Its files in `/proc` are root's then. It has the map of its RAM open, which it could no longer
/// open.
fn other_processes_of_the_user_cannot_read_the_service() {
    let place = Place::new();
    let (home, runtime) = (place.folder("home"), place.folder("runtime"));
    let socket = home.join("s");
    for (option, expected) in [(Some("--no-seccomp"), USER), (None, 0)] {
        let mut args = vec!["--socket", socket.to_str().unwrap()];
        args.extend(option);
        let mut command = place.as_user(&args);
        let service = Service::started_by(command.env("XDG_RUNTIME_DIR", &runtime), &socket);
        assert_eq!(service.work("getpid 3"), "done getpid 3\n");
        let own = format!("/proc/{}", service.pid());
        assert_eq!(fs::metadata(format!("{own}/environ")).unwrap().uid(), expected, "{option:?}");
        let open = fs::read_dir(format!("{own}/fd")).unwrap();
        let is_map = |fd: fs::DirEntry| {
            fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(&own).join("pagemap"))
        };
        assert_eq!(open.flatten().map(is_map).filter(|is| *is).count(), 1, "{option:?}");
    }
}

/// The user is in the name of the socket then: which it is must be known before there are filters.
fn without_a_runtime_folder_the_default_socket_is_in_tmp() {
    let place = Place::new();
    let socket = PathBuf::from(format!("/tmp/exoprobe-{USER}.sock"));
    {
        let mut command = place.as_user(&[]);
        let _service = Service::started_by(command.env_remove("XDG_RUNTIME_DIR"), &socket);
        // A client of the same user: root's would not trust a socket in /tmp.
        let user = USER.to_string();
        let mut client = Command::new("setpriv");
        client.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        client.arg(place.path("exoprobe")).args(["vm", "send", "getpid 3"]);
        client.env_remove("XDG_RUNTIME_DIR").env_remove("EXOPROBE_SOCKET");
        let answer = finish(&mut client, PATIENCE);
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "done getpid 3\n", "{answer:?}");
    }
    fs::remove_file(&socket).unwrap();
    fs::remove_dir_all(format!("/tmp/exoprobe-{USER}")).unwrap();
}

/// RAM of the tiny guest, in KiB.
const RAM_KIB: u64 = 32 << 10;

/// Flags of the mapping that has the guest's RAM (`VmFlags` in `/proc/PID/smaps`): no other of this
/// process is so large and can be written. Hidden memory may be in the same one.
fn ram_flags(pid: u32) -> Vec<String> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut lines = smaps.lines();
    let is_ram = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).ok());
        Some(rest.starts_with("rw-p") && end? - start? >= RAM_KIB << 10)
    };
    assert!(lines.by_ref().any(|line| is_ram(line) == Some(true)), "no mapping is RAM");
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    flags.split_whitespace().map(str::to_owned).collect()
}

fn has_flag(flags: &[String], wanted: &str) -> bool {
    flags.iter().any(|flag| flag == wanted)
}

/// Boots the guest again, to its prompt.
fn reboot(service: &Service) {
    assert_eq!(service.ok(&["vm", "reboot"]), "running\n");
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
}

fn guest_memory_is_in_no_core_dump_also_after_a_reboot() {
    let service = Service::restored(1);
    // The socket is there before the machine.
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    let flags = ram_flags(service.pid());
    assert!(has_flag(&flags, "dd") && !has_flag(&flags, "lo"), "{flags:?}");
    reboot(&service);
    let flags = ram_flags(service.pid());
    assert!(has_flag(&flags, "dd") && !has_flag(&flags, "lo"), "{flags:?}");
}

fn guest_memory_is_locked_if_so_asked_also_after_a_reboot() {
    let snapshot = TestGuest::snapshot(1);
    let files = Service::boot_files();
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    let restore = ["--restore", snapshot.to_str().unwrap(), "--mlock"];
    let service = Service::start(&[&restore[..], &files].concat());
    assert_eq!(service.work("getpid 3"), "done getpid 3\n");
    let flags = ram_flags(service.pid());
    assert!(has_flag(&flags, "dd") && has_flag(&flags, "lo"), "{flags:?}");
    reboot(&service);
    let flags = ram_flags(service.pid());
    assert!(has_flag(&flags, "dd") && has_flag(&flags, "lo"), "{flags:?}");
    let file: serde_json::Value =
        serde_json::from_str(&service.ok(&["--json", "vm", "config"])).unwrap();
    assert_eq!(file["mlock"], true, "{file}");
}

fn a_limit_that_is_too_low_for_locked_memory_is_named() {
    let snapshot = TestGuest::snapshot(1);
    let dir = tempfile::tempdir().unwrap();
    let mut command = exoprobe();
    command.args(["run", "--mlock", "--restore"]).arg(snapshot);
    command.arg("--socket").arg(dir.path().join("s"));
    let limit = || {
        const CAP_IPC_LOCK: libc::c_ulong = 14;
        // SAFETY: it takes numbers. It fails for a user who has no such capability to lose.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK) };
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: it reads the structure, which lives across the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(limit) };
    let output = finish(&mut command, PATIENCE);
    let error = String::from_utf8_lossy(&output.stderr);
    // RAM, and 30 MiB of hidden memory.
    let needed = RAM_KIB + (30 << 10);
    let named = format!(
        "--mlock: the guest needs {needed} KiB of locked memory, and this process may lock 1024 KiB"
    );
    assert!(!output.status.success() && error.contains(&named), "{error}");
    assert!(error.contains(&format!("`ulimit -l {needed}`")), "{error}");
}
