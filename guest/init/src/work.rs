//! The work itself, counted call by call in memory that parent and children share.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use exoprobe_guest_init::cause::Cause;
use exoprobe_guest_init::command::{MAX_CHILDREN, Work};
use exoprobe_guest_init::module::Module;

use crate::sys::{self, Errno, Fd, Forked, Path, Pid};
use crate::vectors::Registers;

mod bpf;
mod calls;
mod disk;
mod files;
mod net;
mod terminal;
mod vsock;

pub(crate) use bpf::{CallCounters, reattach};
pub(crate) use files::{mount, number, put, toggle};
pub(crate) use terminal::{echo, winsize};

/// Kinds of work, in the order of the totals.
pub(crate) const KINDS: [&str; 28] = [
    "getpid",
    "open",
    "fork",
    "write",
    "mmap",
    "spin",
    "sleep",
    "trap",
    "badptr",
    "vectors",
    "diskread",
    "diskwrite",
    "diskio",
    "words",
    "udp",
    "vsock-send",
    "vsock-echo",
    "stat",
    "mkdir",
    "exec",
    "setuid",
    "kill",
    "sync",
    "tcp",
    "tcp-full",
    "unix",
    "oom",
    "gap",
];

/// In milliseconds.
const A_DAY: u64 = 24 * 3600 * 1000;

/// Why work ended early.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    /// A system call failed.
    Call(&'static str, Errno),
    /// A child, or a child's child, did not end as it should.
    Child(Cause),
}

impl Failure {
    /// The number by which a child reports it to its parent.
    fn cause(self) -> Cause {
        match self {
            Self::Call(_, errno) => Cause::Errno(errno.0),
            Self::Child(cause) => cause,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call, errno) => write!(f, "{call}: {errno}"),
            Self::Child(cause) => write!(f, "child: {cause}"),
        }
    }
}

/// Names the system call of an error.
fn call<T>(name: &'static str, result: sys::Result<T>) -> Result<T, Failure> {
    result.map_err(|errno| Failure::Call(name, errno))
}

/// Counters in a page that survives `fork`, so a child's work counts even if it is killed.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    totals: &'static [AtomicU64],
    /// The count of each child of the running command.
    done: &'static [AtomicU64],
    /// The cause that ended each child's work early, as [`Cause::stored`], or 0.
    errors: &'static [AtomicU64],
}

impl Counters {
    pub(crate) fn new() -> sys::Result<Self> {
        let page = sys::shared_counters()?.as_slice();
        let (totals, rest) = page.split_at(KINDS.len());
        let (done, rest) = rest.split_at(MAX_CHILDREN);
        Ok(Self { totals, done, errors: rest.get(..MAX_CHILDREN).unwrap_or_default() })
    }

    /// The totals since boot, with their names.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.totals.iter().map(|total| total.load(Relaxed)))
    }

    fn tally(&self, work: &Work<'_>, done: &'static AtomicU64) -> Option<Tally> {
        let kind = KINDS.into_iter().position(|kind| kind == work.name())?;
        Some(Tally { total: self.totals.get(kind)?, done })
    }
}

/// Where one piece of work is counted.
struct Tally {
    total: &'static AtomicU64,
    done: &'static AtomicU64,
}

impl Tally {
    fn add(&self, count: u64) {
        self.total.fetch_add(count, Relaxed);
        self.done.fetch_add(count, Relaxed);
    }

    fn repeat(
        &self,
        count: u64,
        mut once: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for _ in 0..count {
            once()?;
            self.add(1);
        }
        Ok(())
    }
}

/// The result of a command: the count that was really done, and the cause if it is not all of it.
pub(crate) struct Outcome {
    pub(crate) done: u64,
    pub(crate) failure: Option<Failure>,
}

impl Outcome {
    fn of_one(result: Result<(), Failure>) -> Self {
        Self::of(result.map(|()| 1))
    }

    fn of(result: Result<u64, Failure>) -> Self {
        match result {
            Ok(done) => Self { done, failure: None },
            Err(failure) => Self { done: 0, failure: Some(failure) },
        }
    }
}

/// Does the work in this process.
pub(crate) fn here(counters: &Counters, work: &Work<'_>) -> Outcome {
    let Some(slot) = counters.done.first() else { return Outcome { done: 0, failure: None } };
    slot.store(0, Relaxed);
    let failure = counters.tally(work, slot).and_then(|tally| perform(work, &tally).err());
    Outcome { done: slot.load(Relaxed), failure }
}

fn perform(work: &Work<'_>, tally: &Tally) -> Result<(), Failure> {
    match *work {
        Work::Getpid(count) => tally.repeat(count, || call("getpid", sys::getpid()).map(drop)),
        Work::Open(path, count) => open(path, count, tally),
        Work::Fork(count) => tally.repeat(count, fork_once),
        Work::Write(count) => write(count, tally),
        Work::Mmap(count) => tally.repeat(count, map_once),
        Work::Spin(ms) => timed(tally, |start| spin(start, ms)),
        Work::Gap(ms) => gap(ms, tally),
        Work::Trap(count) => tally.repeat(count, trap_once),
        Work::Badptr(count) => tally.repeat(count, bad_pointers_once),
        Work::Vectors(count) => vectors(count, tally),
        Work::Diskread(path, count) => disk::read(path, count, tally),
        Work::Diskwrite(path, count) => disk::write(path, count, tally),
        Work::Diskio { io, path, kib, count } => disk::requests(io, path, kib, count, tally),
        Work::Words(path, count) => files::words(path, count, tally),
        Work::Udp(to, count) => net::udp(to, count, tally),
        Work::VsockSend(port, count) => vsock::send(port, count, tally),
        Work::VsockEcho(port) => vsock::echo(port, tally),
        Work::Calls(which, count) => calls::make(which, count, tally),
        Work::Tcp { kib, count } => net::tcp(kib, count, tally),
        Work::TcpFull(ms) => net::tcp_full(ms, tally),
        Work::Unix { len, count } => net::unix(len, count, tally),
        Work::Oom(count) => tally.repeat(count, calls::run_out_of_memory),
        Work::Sleep(ms) => timed(tally, |_start| call("nanosleep", sys::sleep_ms(ms))),
    }
}

/// Room for the path of a command and its NUL.
type Name = [u8; 256];

/// The path of a command, with a NUL after it.
fn named<'a>(path: &[u8], name: &'a mut Name) -> Result<Path<'a>, Failure> {
    const ENAMETOOLONG: Errno = Errno(36);
    for (slot, byte) in name.iter_mut().zip(path) {
        *slot = *byte;
    }
    call("openat", Path::new(name).ok_or(ENAMETOOLONG))
}

/// All opens have the path at one address, where a probe may change it for those that follow.
fn open(path: &[u8], count: u64, tally: &Tally) -> Result<(), Failure> {
    let mut name = [0; size_of::<Name>()];
    let path = named(path, &mut name)?;
    tally.repeat(count, || {
        let file = call("openat", sys::open(path, 0))?;
        call("close", sys::close(file))
    })
}

/// Loads a module from the initramfs.
pub(crate) fn load_module(module: &Module<'_>) -> Outcome {
    let load = || {
        let path = module.path();
        let path = call("openat", Path::new(&path).ok_or(Errno(22)))?;
        let file = call("openat", sys::open(path, 0))?;
        let loaded = call("finit_module", sys::load_module(file));
        call("close", sys::close(file)).and(loaded)
    };
    Outcome::of_one(load())
}

/// Unloads a module.
pub(crate) fn unload_module(module: &Module<'_>) -> Outcome {
    let name = module.name();
    let name = Path::new(&name).ok_or(Errno(22));
    Outcome::of_one(call("delete_module", name.and_then(sys::unload_module)))
}

fn fork_once() -> Result<(), Failure> {
    match call("fork", sys::fork())? {
        Forked::Child => sys::exit(0),
        Forked::Parent(child) => call("wait4", sys::wait(child)).map(drop),
    }
}

/// Has that many more children, which sleep until the machine ends.
pub(crate) fn crowd(count: u64) -> Outcome {
    let mut outcome = Outcome { done: 0, failure: None };
    while outcome.done < count && outcome.failure.is_none() {
        match call("fork", sys::fork()) {
            Ok(Forked::Child) => loop {
                let _end = sys::sleep_ms(A_DAY);
            },
            Ok(Forked::Parent(_)) => outcome.done += 1,
            Err(failure) => outcome.failure = Some(failure),
        }
    }
    outcome
}

/// A child with a breakpoint of its own, which is no concern of the host's.
fn trap_once() -> Result<(), Failure> {
    const SIGTRAP: u8 = 5;
    match call("fork", sys::fork())? {
        Forked::Child => {
            sys::breakpoint();
            sys::exit(0)
        }
        Forked::Parent(child) => match signal(call("wait4", sys::wait(child))?) {
            SIGTRAP => Ok(()),
            other => Err(Failure::Child(Cause::Signal(other))),
        },
    }
}

/// A round of [`sys::BAD_POINTER_CALLS`]; one that does not give EFAULT ends the work.
fn bad_pointers_once() -> Result<(), Failure> {
    const EFAULT: u16 = 14;
    for (name, result) in sys::BAD_POINTER_CALLS.map(|bad| (bad.name, bad.call())) {
        match result {
            Err(Errno(EFAULT)) => {}
            Err(errno) => return Err(Failure::Call(name, errno)),
            Ok(_) => return Err(Failure::Call(name, Errno(0))),
        }
    }
    Ok(())
}

/// Counts the rounds in which no vector register lost its value; a round that lost one does not end
/// the work.
fn vectors(count: u64, tally: &Tally) -> Result<(), Failure> {
    let registers = call("rt_sigaction", Registers::new())?;
    for _ in 0..count {
        if registers.are_kept() {
            tally.add(1);
        }
    }
    Ok(())
}

fn write(count: u64, tally: &Tally) -> Result<(), Failure> {
    const O_WRONLY: usize = 1;
    let path = call("openat", Path::new(b"/dev/null\0").ok_or(Errno(22)))?;
    let null = call("openat", sys::open(path, O_WRONLY))?;
    let result = tally.repeat(count, || call("write", sys::write(null, b"x")).map(drop));
    call("close", sys::close(null))?;
    result
}

fn map_once() -> Result<(), Failure> {
    let page = call("mmap", sys::map_private(sys::PAGE))?;
    // SAFETY: a fresh writable page; volatile, for the page fault is the point of it.
    unsafe { page.write_volatile(1) };
    // SAFETY: the page is from `map_private`, and `page` is its only reference.
    call("munmap", unsafe { sys::unmap(page, sys::PAGE) })
}

/// Counts the milliseconds that something really took.
fn timed(tally: &Tally, run: impl FnOnce(u64) -> Result<(), Failure>) -> Result<(), Failure> {
    let start = call("clock_gettime", sys::monotonic_ns())?;
    let result = run(start);
    let end = call("clock_gettime", sys::monotonic_ns())?;
    tally.add(end.saturating_sub(start) / 1_000_000);
    result
}

fn spin(start: u64, ms: u64) -> Result<(), Failure> {
    // About a third of a millisecond on a 3 GHz CPU: few enough for the precision, enough to
    // stay in user mode nearly all of the time where a system call takes 0.2 ms.
    const ROUNDS_BETWEEN_LOOKS: u32 = 1_000_000;
    let end = start.saturating_add(ms.saturating_mul(1_000_000));
    while call("clock_gettime", sys::monotonic_ns())? < end {
        for round in 0..ROUNDS_BETWEEN_LOOKS {
            core::hint::black_box(round);
        }
    }
    Ok(())
}

/// Counts the ticks of the longest time between two readings of the time-stamp counter, in a loop
/// in user mode.
fn gap(ms: u64, tally: &Tally) -> Result<(), Failure> {
    const READINGS_BETWEEN_LOOKS: u32 = 100_000;
    let start = call("clock_gettime", sys::monotonic_ns())?;
    let end = start.saturating_add(ms.saturating_mul(1_000_000));
    let mut longest = 0;
    while call("clock_gettime", sys::monotonic_ns())? < end {
        let mut last = sys::timestamp();
        for _ in 0..READINGS_BETWEEN_LOOKS {
            let now = sys::timestamp();
            longest = longest.max(now.saturating_sub(last));
            last = now;
        }
    }
    tally.add(longest);
    Ok(())
}

/// Does the work in `children` children at once, child `i` pinned to the CPU `cpu_of(i)`.
pub(crate) fn in_children(
    counters: &Counters,
    work: &Work<'_>,
    children: usize,
    cpu_of: impl Fn(usize) -> usize,
) -> Outcome {
    in_children_while(counters, work, children, cpu_of, || Ok(()))
}

/// As [`in_children`], and does something else in this process once the children have begun.
pub(crate) fn in_children_while(
    counters: &Counters,
    work: &Work<'_>,
    children: usize,
    cpu_of: impl Fn(usize) -> usize,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Outcome {
    for slot in counters.done.iter().chain(counters.errors) {
        slot.store(0, Relaxed);
    }
    let failure = run_children(counters, work, children, cpu_of, meanwhile).err();
    Outcome { done: counters.done.iter().map(|slot| slot.load(Relaxed)).sum(), failure }
}

fn run_children(
    counters: &Counters,
    work: &Work<'_>,
    children: usize,
    cpu_of: impl Fn(usize) -> usize,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    // The children start together: each waits for the end of file on the gate, which comes
    // when the last writing end is closed.
    let gate = call("pipe2", sys::pipe())?;
    let mut pids = [None; MAX_CHILDREN];
    let mut result = Ok(());
    for (index, pid) in pids.iter_mut().enumerate().take(children) {
        match call("fork", sys::fork()) {
            Ok(Forked::Child) => child(counters, work, index, cpu_of(index), gate),
            Ok(Forked::Parent(child)) => *pid = Some(child),
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
    }
    let (reader, writer) = gate;
    let closed = call("close", sys::close(writer)).and(call("close", sys::close(reader)));
    result = result.and_then(|()| meanwhile());
    for (pid, error) in pids.into_iter().flatten().zip(counters.errors) {
        result = result.and(reap(pid, error));
    }
    result.and(closed)
}

/// A child's life; its exit status is not used, its counters are.
fn child(
    counters: &Counters,
    work: &Work<'_>,
    index: usize,
    cpu: usize,
    (reader, writer): (Fd, Fd),
) -> ! {
    let run = || {
        call("close", sys::close(writer))?;
        call("sched_setaffinity", sys::pin(cpu))?;
        call("read", sys::read(reader, &mut [0; 1]))?;
        match counters.done.get(index).and_then(|done| counters.tally(work, done)) {
            Some(tally) => perform(work, &tally),
            None => Ok(()),
        }
    };
    if let (Err(failure), Some(error)) = (run(), counters.errors.get(index)) {
        error.store(failure.cause().stored(), Relaxed);
    }
    sys::exit(0)
}

fn reap(pid: Pid, error: &AtomicU64) -> Result<(), Failure> {
    let signal = signal(call("wait4", sys::wait(pid))?);
    let reported = Cause::from_stored(error.load(Relaxed));
    let killed = (signal != 0).then_some(Cause::Signal(signal));
    killed.or(reported).map_or(Ok(()), |cause| Err(Failure::Child(cause)))
}

/// The signal that killed, of a wait status; 0 if none did.
fn signal(status: u32) -> u8 {
    (status & 0x7f) as u8
}
