//! The system calls of each kind of thread. All others end the service.
//!
//! A call is here for a reason, which is beside it. docs/security.md has these tables; a test
//! compares.

use exoprobe_vmm::ThreadKind;
use libc::*;

use super::call::{Call, Value, any, one_of, own_process, value, without};
use super::kind::Kind;
use super::kvm;

/// A table of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for docs/security.md, which a test compares")
    )]
    pub(super) title: &'static str,
    pub(super) calls: &'static [Call],
}

/// The calls of a kind of thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) allowed: &'static [Table],
    /// The kinds of threads that it starts: a filter is inherited, so it allows their calls, too.
    pub(super) starts: &'static [Kind],
    /// Calls that fail with an error, which the C library and the standard library expect.
    pub(super) refused: &'static [Refused],
}

/// Calls that fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) calls: &'static [Call],
    pub(super) errno: c_int,
    /// Its name.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for docs/security.md, which a test compares")
    )]
    pub(super) error: &'static str,
}

/// The flags with which the C library starts a thread. Without them, clone makes a process.
const THREAD: Value = Value {
    name: "a thread's flags",
    value: (CLONE_VM
        | CLONE_FS
        | CLONE_FILES
        | CLONE_SYSVSEM
        | CLONE_SIGHAND
        | CLONE_THREAD
        | CLONE_SETTLS
        | CLONE_PARENT_SETTID
        | CLONE_CHILD_CLEARTID) as u64,
};

const COMMON: Table = Table {
    title: "every thread",
    calls: &[
        any(SYS_write, "events (eventfd), messages"),
        any(SYS_close, "files of what is dropped"),
        one_of(SYS_fcntl, 1, &[value!(F_GETFD)], "builds with assertions: a file before its close"),
        without(SYS_mmap, 2, value!(PROT_EXEC), "memory: the allocator, stacks"),
        without(SYS_mprotect, 2, value!(PROT_EXEC), "memory: the allocator, guard pages"),
        any(SYS_munmap, "memory"),
        any(SYS_mremap, "memory: large allocations that grow"),
        any(SYS_madvise, "memory that goes back to the host"),
        any(SYS_brk, "memory: the allocator"),
        any(SYS_futex, "locks, channels, waits for threads"),
        any(SYS_sched_yield, "locks"),
        any(SYS_sched_getaffinity, "the allocator: its number of arenas"),
        any(SYS_getrandom, "seeds of hash tables"),
        any(SYS_clock_gettime, "time, on hosts whose vDSO has no clock"),
        any(SYS_clock_nanosleep, "waits for a time"),
        any(SYS_restart_syscall, "the kernel: waits after a signal"),
        any(SYS_getpid, "signals between threads"),
        any(SYS_gettid, "signals between threads, messages of panics"),
        own_process(SYS_tgkill, "kicks of vCPUs"),
        any(SYS_rt_sigreturn, "ends of signals' handlers"),
        any(SYS_rt_sigprocmask, "starts and ends of threads"),
        one_of(
            SYS_rt_sigaction,
            0,
            &[value!(SIGSEGV), value!(SIGBUS), value!(SIGABRT)],
            "crashes: the default action ends the process",
        ),
        any(SYS_sigaltstack, "starts and ends of threads"),
        one_of(SYS_prctl, 0, &[value!(PR_GET_NAME)], "the message about a forbidden call"),
        any(SYS_exit, "ends of threads"),
        any(SYS_exit_group, "the end of the process"),
    ],
};

/// They are refused where files are not needed.
const FILES_REFUSED: Refused = Refused {
    errno: EACCES,
    error: "EACCES",
    calls: &[
        any(
            SYS_openat,
            "the allocator's looks at the host's CPUs and memory; back-traces of panics",
        ),
        any(SYS_readlink, "back-traces of panics"),
        any(SYS_getcwd, "back-traces of panics"),
        any(SYS_statx, "back-traces of panics"),
    ],
};

/// Its flags are in memory, where no filter can read them. The C library uses clone then.
const CLONE3_REFUSED: Refused = Refused {
    errno: ENOSYS,
    error: "ENOSYS",
    calls: &[any(SYS_clone3, "the C library tries it before clone")],
};

/// Threads that start others.
const STARTS: Table = Table {
    title: "threads that start threads",
    calls: &[
        one_of(SYS_clone, 0, &[THREAD], "threads"),
        any(SYS_set_robust_list, "a new thread: the C library"),
        any(SYS_rseq, "a new thread: the C library"),
        one_of(SYS_prctl, 0, &[value!(PR_SET_NAME)], "a new thread: its name"),
    ],
};

const STARTER: Table = Table {
    title: "thread starter",
    calls: &[
        one_of(
            SYS_seccomp,
            0,
            &[value!(SECCOMP_SET_MODE_FILTER)],
            "a new thread: its own filter, which can only narrow this one",
        ),
        one_of(SYS_prctl, 0, &[value!(PR_SET_NO_NEW_PRIVS)], "a new thread: its own filter"),
    ],
};

const VCPU: Table = Table {
    title: "vCPU",
    calls: &[
        one_of(SYS_ioctl, 1, kvm::OF_VCPU, "KVM"),
        any(SYS_eventfd2, "a driver that starts a device: kicks of its queues"),
        any(SYS_epoll_create1, "a driver that starts a device"),
        any(SYS_epoll_ctl, "a driver that starts or resets a device"),
        one_of(SYS_fcntl, 1, &[value!(F_DUPFD_CLOEXEC)], "a driver that starts a device"),
        any(SYS_timerfd_settime, "a driver that resets the vsock device: its deadlines"),
    ],
};

/// A device's thread that serves queues.
const QUEUES: Table = Table {
    title: "devices",
    calls: &[
        any(SYS_epoll_wait, "kicks"),
        any(SYS_read, "events (eventfd); frames of a tap, bytes of sockets"),
        one_of(SYS_ioctl, 1, &[kvm::SIGNAL_MSI], "interrupts of the guest"),
    ],
};

const MEDIUM: Table = Table {
    title: "disks",
    calls: &[
        any(SYS_preadv2, "reads that may not wait"),
        any(SYS_preadv, "reads"),
        any(SYS_pwritev, "writes"),
        any(SYS_pread64, "an overlay's blocks"),
        any(SYS_pwrite64, "an overlay's blocks"),
        any(SYS_lseek, "the file's length"),
        any(SYS_fdatasync, "flushes"),
        any(SYS_fallocate, "discards, zeroes"),
    ],
};

const NETWORK: Table = Table {
    title: "network interfaces",
    calls: &[any(SYS_recvfrom, "frames, from a socket"), any(SYS_sendto, "frames, to a socket")],
};

const VSOCK: Table = Table {
    title: "vsock",
    calls: &[
        any(SYS_accept4, "the host's clients"),
        one_of(SYS_socket, 0, &[value!(AF_UNIX)], "the guest's connections to the host"),
        any(SYS_connect, "the guest's connections to the host"),
        any(SYS_recvfrom, "bytes of connections"),
        any(SYS_sendto, "bytes of connections"),
        any(SYS_shutdown, "ends of connections"),
        any(SYS_epoll_ctl, "connections that come and go"),
        any(SYS_timerfd_settime, "deadlines of connections"),
        one_of(SYS_ioctl, 1, &[value!(FIONBIO)], "connections that do not wait"),
    ],
};

/// The main thread, the threads that answer requests, and those that carry them out.
const SERVICE: Table = Table {
    title: "service",
    calls: &[
        one_of(SYS_ioctl, 1, kvm::OF_MACHINE, "KVM: input of ports, snapshots, reboots"),
        one_of(
            SYS_ioctl,
            1,
            &[value!(FIONBIO), value!(TCGETS), value!(TIOCGWINSZ)],
            "sockets that do not wait; progress on a terminal",
        ),
        any(SYS_epoll_create1, "the event loop"),
        any(SYS_epoll_ctl, "the event loop"),
        any(SYS_epoll_wait, "the event loop"),
        any(SYS_eventfd2, "the event loop; devices that start again"),
        one_of(SYS_socketpair, 0, &[value!(AF_UNIX)], "the event loop: signals"),
        one_of(
            SYS_fcntl,
            1,
            &[value!(F_DUPFD_CLOEXEC), value!(F_GETFL), value!(F_SETFL)],
            "the event loop; devices that start again",
        ),
        any(SYS_timerfd_settime, "the vsock device that is reset: its deadlines"),
        any(SYS_accept4, "clients"),
        any(SYS_getsockname, "clients"),
        any(SYS_getpeername, "clients"),
        any(SYS_getsockopt, "clients"),
        any(SYS_setsockopt, "clients on TCP"),
        any(SYS_recvfrom, "requests"),
        any(SYS_sendto, "answers"),
        any(SYS_writev, "answers"),
        any(SYS_shutdown, "clients"),
        any(SYS_read, "the event loop; files"),
        any(SYS_openat, "files: snapshots, dumps, the kernel at a reboot"),
        any(SYS_statx, "files"),
        any(SYS_fstat, "files"),
        any(SYS_newfstatat, "files"),
        any(SYS_lseek, "files"),
        any(SYS_pread64, "files: sections of debug information; KVM's statistics"),
        any(SYS_pwrite64, "files"),
        any(SYS_readlink, "files: links"),
        any(SYS_getdents64, "files: folders"),
        any(SYS_ftruncate, "files: dumps"),
        any(SYS_fsync, "files: snapshots and dumps"),
        any(SYS_fdatasync, "a snapshot: disks"),
        any(SYS_linkat, "a new file's name"),
        any(SYS_renameat2, "a new file's name"),
        any(SYS_unlinkat, "a new file that has failed"),
        any(SYS_unlink, "sockets, at the end"),
        any(SYS_getcwd, "back-traces of panics"),
        any(SYS_mlock2, "a reboot with --mlock"),
    ],
};

/// Threads that search RAM for what may still be at a detour.
const SEARCH: Table = Table {
    title: "searches of RAM",
    calls: &[
        one_of(SYS_ioctl, 1, kvm::OF_DIRTY_LOG, "KVM's log of the pages that the guest writes"),
        any(SYS_pread64, "the pages that the host has memory for (/proc/self/pagemap)"),
    ],
};

const QUIET: Policy = Policy { allowed: &[COMMON], starts: &[], refused: &[FILES_REFUSED] };

/// The kinds of threads that serve devices. The starter's refusals hold for them, too.
const DEVICES: &[Kind] = &[
    Kind::Machine(ThreadKind::Disk),
    Kind::Machine(ThreadKind::DiskRequest),
    Kind::Machine(ThreadKind::Network),
    Kind::Machine(ThreadKind::Vsock),
    Kind::Machine(ThreadKind::Console),
    Kind::Machine(ThreadKind::Random),
];

/// The policy of a kind of thread.
pub(super) const fn of(kind: Kind) -> Policy {
    match kind {
        Kind::Machine(kind) => of_machine(kind),
        Kind::Service => Policy {
            allowed: &[COMMON, STARTS, SERVICE, SEARCH],
            starts: &[],
            refused: &[CLONE3_REFUSED],
        },
        Kind::Drainer => Policy { allowed: &[COMMON, SEARCH], ..QUIET },
        Kind::Memory | Kind::Output => QUIET,
    }
}

const fn of_machine(kind: ThreadKind) -> Policy {
    match kind {
        ThreadKind::Vcpu => Policy { allowed: &[COMMON, VCPU], ..QUIET },
        ThreadKind::Starter => Policy {
            allowed: &[COMMON, STARTS, STARTER],
            starts: DEVICES,
            refused: &[CLONE3_REFUSED, FILES_REFUSED],
        },
        ThreadKind::Disk => Policy { allowed: &[COMMON, QUEUES, MEDIUM], ..QUIET },
        ThreadKind::DiskRequest => Policy { allowed: &[COMMON, MEDIUM], ..QUIET },
        ThreadKind::Network => Policy { allowed: &[COMMON, QUEUES, NETWORK], ..QUIET },
        ThreadKind::Vsock => Policy { allowed: &[COMMON, QUEUES, VSOCK], ..QUIET },
        ThreadKind::Console | ThreadKind::Random => Policy { allowed: &[COMMON, QUEUES], ..QUIET },
    }
}
