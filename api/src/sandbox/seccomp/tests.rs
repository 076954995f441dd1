//! Each kind's filters, in a process of its own: this program again, for the test [`child`] alone.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output};
use std::thread::{self, Builder};
use std::time::Duration;

use exoprobe_vmm::ThreadKind;
use libc::{c_int, c_long, c_ulong};

use super::call::{Arguments, Call};
use super::policy::{self, Refused, Table};
use super::*;

/// Tells the child its kind of thread and what to do there, `KIND/DEED`.
const ORDER: &str = "EXOPROBE_TEST_SECCOMP";
/// The order to do only what every thread does.
const HARMLESS: &str = "harmless";
/// `ioctl` without a file, of these requests.
const KVM_RUN: c_ulong = 0xae80;
const KVM_CREATE_VM: c_ulong = 0xae01;
const KVM_GET_DIRTY_LOG: c_ulong = 0x4010_ae42;
const KVM_CREATE_VCPU: c_ulong = 0xae41;
const TUNSETIFF: c_ulong = 0x4004_54ca;
/// Bit of the numbers of x32's system calls.
const X32: c_long = 0x4000_0000;

const SERVICE: &[Kind] = &[Kind::Service];
const SEARCH: &[Kind] = &[Kind::Service, Kind::Drainer];
const VCPU: &[Kind] = &[Kind::Machine(ThreadKind::Vcpu)];
/// The starter allows what those that it starts may do.
const VSOCK: &[Kind] = &[Kind::Machine(ThreadKind::Vsock), Kind::Machine(ThreadKind::Starter)];

/// A system call, as the message has it, and the kinds that may make it.
struct Deed {
    name: &'static str,
    call: &'static str,
    allowed: &'static [Kind],
    arguments: (c_long, [c_ulong; 6]),
}

const fn deed(
    name: &'static str,
    call: &'static str,
    allowed: &'static [Kind],
    number: c_long,
    [a, b, c]: [c_ulong; 3],
) -> Deed {
    Deed { name, call, allowed, arguments: (number, [a, b, c, 0, 0, 0]) }
}

const fn of(number: c_int) -> c_ulong {
    number.unsigned_abs() as c_ulong
}

const EXEC: c_ulong = of(libc::PROT_READ | libc::PROT_EXEC);
const NO_FILE: c_ulong = c_ulong::MAX;

/// None does harm where it is allowed.
const DEEDS: &[Deed] = &[
    deed("execve", "execve, number 59", &[], libc::SYS_execve, [0; 3]),
    deed("fork", "fork, number 57", &[], libc::SYS_fork, [0; 3]),
    deed("process", "clone, number 56", &[], libc::SYS_clone, [of(libc::SIGCHLD), 0, 0]),
    deed("ptrace", "ptrace, number 101", &[], libc::SYS_ptrace, [of(-1), 0, 0]),
    deed("io_uring", "io_uring_setup, number 425", &[], libc::SYS_io_uring_setup, [0; 3]),
    deed("bind", "bind, number 49", &[], libc::SYS_bind, [NO_FILE, 0, 0]),
    deed("inet", "socket, number 41", &[], libc::SYS_socket, [of(libc::AF_INET), 1, 0]),
    deed("unix", "socket, number 41", VSOCK, libc::SYS_socket, [of(libc::AF_UNIX), 1, 0]),
    deed("accept", "accept, number 43", &[], libc::SYS_accept, [NO_FILE, 0, 0]),
    deed("unlink", "unlink, number 87", SERVICE, libc::SYS_unlink, [0; 3]),
    deed("mprotect", "mprotect, number 10", &[], libc::SYS_mprotect, [0, 4096, EXEC]),
    deed("mmap", "mmap, number 9", &[], libc::SYS_mmap, [0, 0, EXEC]),
    deed("run", "ioctl, number 16", VCPU, libc::SYS_ioctl, [NO_FILE, KVM_RUN, 0]),
    deed("create", "ioctl, number 16", &[], libc::SYS_ioctl, [NO_FILE, KVM_CREATE_VM, 0]),
    deed("add", "ioctl, number 16", &[], libc::SYS_ioctl, [NO_FILE, KVM_CREATE_VCPU, 0]),
    deed("log", "ioctl, number 16", SEARCH, libc::SYS_ioctl, [NO_FILE, KVM_GET_DIRTY_LOG, 0]),
    deed("tap", "ioctl, number 16", &[], libc::SYS_ioctl, [NO_FILE, TUNSETIFF, 0]),
    deed("dump", "prctl, number 157", &[], libc::SYS_prctl, [of(libc::PR_SET_DUMPABLE), 1, 0]),
    deed("kill", "tgkill, number 234", &[], libc::SYS_tgkill, [1, 1, 0]),
    deed(
        "handler",
        "rt_sigaction, number 13",
        &[],
        libc::SYS_rt_sigaction,
        [of(libc::SIGSYS), 0, 0],
    ),
    deed("x32", "number 1073741863", &[], libc::SYS_getpid | X32, [0; 3]),
];

/// Carries an order out, which `ORDER` has; otherwise it is no test.
#[test]
fn child() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let (name, deed) = order.split_once('/').unwrap();
    let kind = Kind::all().into_iter().find(|kind| kind.name() == name).unwrap();
    let seccomp = Seccomp::prepare().unwrap();
    let deed = deed.to_owned();
    let starter = Kind::Machine(ThreadKind::Starter);
    let is_started = policy::of(starter).starts.contains(&kind);
    let spawn = |body: Box<dyn FnOnce() + Send>| {
        Builder::new().name("doer".to_owned()).spawn(body).unwrap().join().unwrap();
    };
    let inner = seccomp.clone();
    let body = move || {
        inner.enter(kind);
        carry_out(kind, &deed);
    };
    if is_started {
        spawn(Box::new(move || {
            seccomp.enter(starter);
            spawn(Box::new(body));
        }));
    } else {
        spawn(Box::new(body));
    }
}

fn carry_out(kind: Kind, deed: &str) {
    if deed == HARMLESS {
        return do_no_harm(kind);
    }
    let deed = DEEDS.iter().find(|other| other.name == deed).unwrap();
    let (number, [a, b, c, d, e, f]) = deed.arguments;
    // SAFETY: where a filter allows it, the call has no file, no memory or only makes a socket.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    let error = io::Error::last_os_error();
    writeln!(io::stderr(), "{} returned {result}: {error}", deed.name).unwrap();
}

/// Makes the calls that the C library and the standard library make by themselves.
fn do_no_harm(kind: Kind) {
    // Of an allocation's bytes, the first one alone is touched: system calls depend on its length.
    let mut large: Vec<HashMap<usize, Vec<u8>>> = Vec::new();
    for len in [1, 1 << 12, 1 << 16, 1 << 20, 1 << 26] {
        let mut bytes = Vec::with_capacity(len);
        bytes.push(1);
        large.push(HashMap::from([(len, bytes)]));
        let all = large.iter_mut().flat_map(HashMap::values_mut);
        all.for_each(|bytes| bytes.reserve_exact(2 * len - bytes.len()));
    }
    drop(large);
    // SAFETY: it only returns pages that no allocation has.
    unsafe { libc::malloc_trim(0) };
    thread::sleep(Duration::from_millis(1));
    let panics = || panic!("with a back-trace");
    assert!(std::panic::catch_unwind(panics).is_err());
    let file = std::fs::File::open("/proc/self/status").map(drop).map_err(|error| error.kind());
    match kind {
        Kind::Service => file.unwrap(),
        _ => assert_eq!(file, Err(io::ErrorKind::PermissionDenied)),
    }
    if kind == Kind::Service || kind == Kind::Machine(ThreadKind::Starter) {
        thread::spawn(|| drop(thread::current())).join().unwrap();
    }
    writeln!(io::stdout(), "no harm").unwrap();
}

fn run(kind: Kind, deed: &str) -> Output {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args([
        "sandbox::seccomp::tests::child",
        "--exact",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    program.env(ORDER, format!("{}/{deed}", kind.name())).env("RUST_BACKTRACE", "1");
    program.output().unwrap()
}

#[test]
fn a_forbidden_call_ends_the_process_with_a_message_in_each_kind_of_thread() {
    for kind in Kind::all() {
        for deed in DEEDS {
            let Output { status, stderr, .. } = run(kind, deed.name);
            let (said, name) = (String::from_utf8_lossy(&stderr), kind.name());
            if deed.allowed.contains(&kind) {
                assert!(status.success() && said.contains("returned"), "{name}: {said}");
                continue;
            }
            assert_eq!(status.code(), Some(STATUS), "{name}, {}: {said}", deed.name);
            let call = deed.call;
            let message = format!(
                "the service ends: its thread `doer` ({name}) made the system call {call}, which its \
                 seccomp filter forbids"
            );
            assert!(said.contains(&message), "{name}, {}: {said}", deed.name);
        }
    }
}

#[test]
fn all_kinds_of_threads_allocate_wait_panic_and_end() {
    for kind in Kind::all() {
        let Output { status, stdout, stderr } = run(kind, HARMLESS);
        let said =
            String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        let harmless = status.success() && said.contains("no harm");
        assert!(harmless && said.contains("with a back-trace"), "{kind:?}: {status}\n{said}");
    }
}

#[test]
fn without_filters_threads_have_no_hook() {
    assert!(Seccomp::off().thread_hook().is_none());
    Seccomp::off().enter(Kind::Service);
}

/// A call of a table, as docs/security.md has it.
fn row(of: &str, Call { number, arguments, reason }: &Call) -> String {
    let name = names::name(*number).expect("each has a name");
    let arguments = match arguments {
        Arguments::Any => String::new(),
        Arguments::OneOf(at, values) => {
            let values: Vec<_> = values.iter().map(|value| value.name).collect();
            format!("argument {at}: {}", values.join(", "))
        }
        Arguments::Without(at, value) => format!("argument {at}: not {}", value.name),
        Arguments::OwnProcess => "argument 0: this process".to_owned(),
    };
    format!("| {of} | {name} | {arguments} | {reason} |\n")
}

/// The tables, in the order in which kinds have them, and the kinds.
fn document() -> String {
    let mut tables: Vec<Table> = Vec::new();
    let mut refusals: Vec<Refused> = Vec::new();
    let mut kinds = String::from("| threads | tables | fail |\n|---|---|---|\n");
    for kind in Kind::all() {
        let policy = policy::of(kind);
        for table in policy.allowed {
            if tables.iter().all(|known| known.title != table.title) {
                tables.push(*table);
            }
        }
        for refused in policy.refused {
            if refusals.iter().all(|known| known.errno != refused.errno) {
                refusals.push(*refused);
            }
        }
        let titles = policy.allowed.iter().map(|table| table.title);
        let started = policy.starts.iter().map(|kind| format!("those of `{}`", kind.name()));
        let titles: Vec<_> = titles.map(str::to_owned).chain(started).collect();
        let errors: Vec<_> = policy.refused.iter().map(|refused| refused.error).collect();
        let (titles, errors) = (titles.join(", "), errors.join(", "));
        writeln!(kinds, "| `{}` | {titles} | {errors} |", kind.name()).unwrap();
    }
    let mut text = kinds + "\n| table | call | only with | for |\n|---|---|---|---|\n";
    for table in &tables {
        text.extend(table.calls.iter().map(|call| row(table.title, call)));
    }
    for Refused { calls, error, .. } in &refusals {
        text.extend(calls.iter().map(|call| row(&format!("fail: {error}"), call)));
    }
    text
}

#[test]
fn the_document_has_the_tables() {
    let text = include_str!("../../../../docs/security.md");
    let document = document();
    assert!(text.contains(&document), "docs/security.md must have:\n{document}");
}
