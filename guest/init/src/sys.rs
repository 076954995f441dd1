//! The Linux system calls the guest's init makes, one thin wrapper each; no libc.
//!
//! Each wrapper executes `syscall` each time: nothing is cached and the vDSO is not used, so
//! what the workload counts is what the kernel saw.

use core::arch::asm;
use core::fmt;
use core::net::SocketAddrV4;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

pub(crate) mod bpf;
mod calls;
pub(crate) mod tcp;
mod vsock;

pub(crate) use calls::{become_root, exec, kill_without_signal, mkdir, stat, take_memory};
pub(crate) use vsock::{accept, connect_to_host, listen_for_host};

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u16);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// An open file descriptor number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fd(usize);

/// A process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pid(usize);

/// Numbers from `arch/x86/entry/syscalls/syscall_64.tbl`.
mod nr {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const STAT: usize = 4;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const IOCTL: usize = 16;
    pub(super) const NANOSLEEP: usize = 35;
    pub(super) const GETPID: usize = 39;
    pub(super) const SOCKET: usize = 41;
    pub(super) const CONNECT: usize = 42;
    pub(super) const ACCEPT: usize = 43;
    pub(super) const BIND: usize = 49;
    pub(super) const LISTEN: usize = 50;
    pub(super) const SOCKETPAIR: usize = 53;
    pub(super) const SETSOCKOPT: usize = 54;
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const FORK: usize = 57;
    pub(super) const EXECVE: usize = 59;
    pub(super) const WAIT4: usize = 61;
    pub(super) const KILL: usize = 62;
    pub(super) const FSYNC: usize = 74;
    pub(super) const MKDIR: usize = 83;
    pub(super) const SETUID: usize = 105;
    pub(super) const SYNC: usize = 162;
    pub(super) const MOUNT: usize = 165;
    pub(super) const REBOOT: usize = 169;
    pub(super) const DELETE_MODULE: usize = 176;
    pub(super) const GETTID: usize = 186;
    pub(super) const SCHED_SETAFFINITY: usize = 203;
    pub(super) const SCHED_GETAFFINITY: usize = 204;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const PIPE2: usize = 293;
    pub(super) const GETCPU: usize = 309;
    pub(super) const FINIT_MODULE: usize = 313;
    pub(super) const BPF: usize = 321;
    pub(super) const SETTIMEOFDAY: usize = 164;
}

/// One page of the guest.
pub(crate) const PAGE: usize = 4096;
const AT_FDCWD: usize = (-100_isize).cast_unsigned();
const PROT_READ_WRITE: usize = 3;
const MAP_SHARED: usize = 0x01;
const MAP_PRIVATE: usize = 0x02;
const MAP_ANONYMOUS: usize = 0x20;

/// Executes `syscall`.
///
/// # Safety
/// The arguments must be valid for that system call: pointers it reads or writes must be
/// valid for that, and memory it unmaps must not be in use.
unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the kernel preserves all registers but RAX, RCX and R11; the caller vouches for
    // the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // The kernel reports errors as -4095..=-1.
    match u16::try_from(result.wrapping_neg()) {
        Ok(errno @ 1..=4095) => Err(Errno(errno)),
        _ => Ok(result.cast_unsigned()),
    }
}

/// Bytes that end in a NUL, as the kernel takes names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a>(&'a [u8]);

impl<'a> Path<'a> {
    /// The bytes up to and with the first NUL, or `None` without one.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.contains(&0).then_some(Self(bytes))
    }
}

fn address<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    let pointer = buffer.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    unsafe { syscall(nr::READ, [fd.0, pointer, buffer.len(), 0, 0, 0]) }
}

pub(crate) fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `bytes.len()` bytes of `bytes`.
    unsafe { syscall(nr::WRITE, [fd.0, address(bytes.as_ptr()), bytes.len(), 0, 0, 0]) }
}

pub(crate) fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = write(fd, bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// `flags` are the kernel's `O_*` bits.
pub(crate) fn open(path: Path<'_>, flags: usize) -> Result<Fd> {
    // SAFETY: a `Path` holds a NUL, so the kernel reads only inside it.
    unsafe { syscall(nr::OPENAT, [AT_FDCWD, address(path.0.as_ptr()), flags, 0, 0, 0]) }.map(Fd)
}

pub(crate) fn close(fd: Fd) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::CLOSE, [fd.0, 0, 0, 0, 0, 0]) }.map(drop)
}

/// A pipe's reading and writing end.
pub(crate) fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0_u32; 2];
    let pointer = ends.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes two ints to `ends`.
    unsafe { syscall(nr::PIPE2, [pointer, 0, 0, 0, 0, 0]) }?;
    let [reader, writer] = ends.map(|end| Fd(usize::try_from(end).unwrap_or(usize::MAX)));
    Ok((reader, writer))
}

pub(crate) fn getpid() -> Result<usize> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::GETPID, [0; 6]) }
}

pub(crate) fn gettid() -> Result<usize> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::GETTID, [0; 6]) }
}

/// Has a signal run `handler`, which returns to `restorer`: the addresses of two functions that
/// stay within the kernel's rules for them.
pub(crate) fn handle_signal(signal: usize, handler: usize, restorer: usize) -> Result<()> {
    const SA_RESTORER: usize = 0x0400_0000;
    const MASK_BYTES: usize = 8;
    // The kernel's `struct sigaction`: handler, flags, restorer, mask.
    let action = [handler, SA_RESTORER, restorer, 0];
    // SAFETY: the kernel reads four words; it writes nothing, the pointer to the old action being
    // null.
    unsafe { syscall(nr::RT_SIGACTION, [signal, address(action.as_ptr()), 0, MASK_BYTES, 0, 0]) }
        .map(drop)
}

/// Which side of a `fork` this is.
pub(crate) enum Forked {
    Child,
    Parent(Pid),
}

pub(crate) fn fork() -> Result<Forked> {
    // SAFETY: this program has one thread and no locks; the child gets a copy of all of its
    // private memory.
    Ok(match unsafe { syscall(nr::FORK, [0; 6]) }? {
        0 => Forked::Child,
        pid => Forked::Parent(Pid(pid)),
    })
}

/// Waits for a child to end; its raw wait status.
pub(crate) fn wait(child: Pid) -> Result<u32> {
    let mut status = 0_u32;
    let pointer = (&raw mut status).expose_provenance();
    // SAFETY: the kernel writes an int to `status` and, the rusage pointer being null, no more.
    unsafe { syscall(nr::WAIT4, [child.0, pointer, 0, 0, 0, 0]) }?;
    Ok(status)
}

/// Ends this process.
pub(crate) fn exit(status: u8) -> ! {
    loop {
        // SAFETY: no memory is involved; the call does not return.
        let _never = unsafe { syscall(nr::EXIT_GROUP, [usize::from(status), 0, 0, 0, 0, 0]) };
    }
}

/// An int3, as a debugger would put it into this program.
pub(crate) fn breakpoint() {
    // SAFETY: the trap changes no register and no memory; without a handler the process ends.
    unsafe { core::arch::asm!("int3") };
}

/// Fresh private memory, whole pages.
pub(crate) fn map_private(len: usize) -> Result<NonNull<u8>> {
    map_with(len, MAP_PRIVATE)
}

/// Private memory, aligned as requests past the page cache need it.
pub(crate) struct Block {
    start: NonNull<u64>,
    len: usize,
}

impl Block {
    /// So many bytes, a multiple of 8.
    pub(crate) fn new(len: usize) -> Result<Self> {
        Ok(Self { start: map_private(len)?.cast(), len })
    }

    pub(crate) fn words(&mut self) -> &mut [u64] {
        // SAFETY: the memory is readable, writable, aligned to a page, at least this long, mapped
        // for as long as this value lives, and has no other reference.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len / 8) }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: as above; bytes have no alignment, and any value is one.
        unsafe { core::slice::from_raw_parts_mut(self.start.cast().as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the memory is from `map_private`, and its only owner goes.
        let _ = unsafe { unmap(self.start.cast(), self.len) };
    }
}

fn map_with(len: usize, flags: usize) -> Result<NonNull<u8>> {
    let flags = flags | MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED the kernel picks an unused range.
    let address = unsafe { syscall(nr::MMAP, [0, len, PROT_READ_WRITE, flags, usize::MAX, 0]) }?;
    NonNull::new(core::ptr::with_exposed_provenance_mut(address)).ok_or(Errno(12))
}

/// Unmaps memory.
///
/// # Safety
/// It came from [`map_private`] with this length, and nothing refers to it.
pub(crate) unsafe fn unmap(start: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: the caller vouches that the pages are mapped and unused.
    unsafe { syscall(nr::MUNMAP, [address(start.as_ptr()), len, 0, 0, 0, 0]) }.map(drop)
}

/// A system call that is given a pointer to nothing.
#[derive(Clone, Copy)]
pub(crate) struct BadPointerCall {
    pub(crate) name: &'static str,
    number: usize,
    args: [usize; 2],
}

/// Nothing is ever mapped there (mmap_min_addr).
const NOWHERE: usize = 16;

/// Each reads or writes user memory in a way of its own: a string, a structure from and to it, one
/// number from and to it.
pub(crate) const BAD_POINTER_CALLS: [BadPointerCall; 5] = {
    const fn bad(name: &'static str, number: usize, args: [usize; 2]) -> BadPointerCall {
        BadPointerCall { name, number, args }
    }
    [
        bad("openat", nr::OPENAT, [AT_FDCWD, NOWHERE]),
        bad("nanosleep", nr::NANOSLEEP, [NOWHERE, 0]),
        bad("clock_gettime", nr::CLOCK_GETTIME, [1, NOWHERE]),
        bad("settimeofday", nr::SETTIMEOFDAY, [NOWHERE, 0]),
        bad("getcpu", nr::GETCPU, [NOWHERE, 0]),
    ]
};

impl BadPointerCall {
    pub(crate) fn call(self) -> Result<usize> {
        let [first, second] = self.args;
        // SAFETY: all memory that it names is not mapped, so that the kernel reads and writes none.
        unsafe { syscall(self.number, [first, second, 0, 0, 0, 0]) }
    }
}

/// A page of counters, all 0, that children share with this process for as long as it lives.
pub(crate) fn shared_counters() -> Result<&'static [AtomicU64; PAGE / 8]> {
    let page = map_with(PAGE, MAP_SHARED)?.cast::<[AtomicU64; PAGE / 8]>();
    // SAFETY: the page is readable, writable, zeroed, aligned, of exactly this size, and never
    // unmapped; atomics allow the sharing.
    Ok(unsafe { page.as_ref() })
}

/// A socket for datagrams to and from one address, with a longest wait for one, in seconds.
pub(crate) fn connected_udp(to: SocketAddrV4, patience: u64) -> Result<Fd> {
    const AF_INET: u16 = 2;
    const SOCK_DGRAM: usize = 2;
    const SOL_SOCKET: usize = 1;
    const SO_RCVTIMEO: usize = 20;
    // SAFETY: no memory is involved.
    let socket = unsafe { syscall(nr::SOCKET, [usize::from(AF_INET), SOCK_DGRAM, 0, 0, 0, 0]) };
    let socket = socket.map(Fd)?;
    let timeout = [patience, 0];
    let (pointer, len) = (address(timeout.as_ptr()), size_of_val(&timeout));
    // SAFETY: the kernel reads a `timeval` of two words.
    unsafe { syscall(nr::SETSOCKOPT, [socket.0, SOL_SOCKET, SO_RCVTIMEO, pointer, len, 0]) }?;
    let mut name = [0_u8; 16];
    let ([a, b], [c, d], [e, f, g, h]) =
        (AF_INET.to_ne_bytes(), to.port().to_be_bytes(), to.ip().octets());
    name[..8].copy_from_slice(&[a, b, c, d, e, f, g, h]);
    let (pointer, len) = (address(name.as_ptr()), name.len());
    // SAFETY: the kernel reads a `sockaddr_in` of 16 bytes.
    unsafe { syscall(nr::CONNECT, [socket.0, pointer, len, 0, 0, 0]) }?;
    Ok(socket)
}

/// Returns when all that was written to a file is on its medium.
pub(crate) fn fsync(fd: Fd) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall(nr::FSYNC, [fd.0, 0, 0, 0, 0, 0]) }.map(drop)
}

pub(crate) fn sync() {
    // SAFETY: no memory is involved. It cannot fail.
    let _always_ok = unsafe { syscall(nr::SYNC, [0; 6]) };
}

/// `LINUX_REBOOT_CMD_RESTART`: the kernel resets the machine.
pub(crate) fn restart() -> Errno {
    const MAGIC1: usize = 0xfee1_dead;
    const MAGIC2: usize = 0x2812_1969;
    const RESTART: usize = 0x0123_4567;
    // SAFETY: this command takes no pointer.
    match unsafe { syscall(nr::REBOOT, [MAGIC1, MAGIC2, RESTART, 0, 0, 0]) } {
        Ok(_) => Errno(0),
        Err(errno) => errno,
    }
}

/// Mounts a file system without a device, the type's name being also its source's.
pub(crate) fn mount(kind: Path<'_>, target: Path<'_>) -> Result<()> {
    let kind = address(kind.0.as_ptr());
    // SAFETY: both strings hold a NUL; there is no data pointer.
    unsafe { syscall(nr::MOUNT, [kind, address(target.0.as_ptr()), kind, 0, 0, 0]) }.map(drop)
}

/// Loads the kernel module in a file, without parameters.
pub(crate) fn load_module(file: Fd) -> Result<()> {
    let parameters = c"";
    // SAFETY: the parameters are a string that ends in a NUL.
    unsafe { syscall(nr::FINIT_MODULE, [file.0, address(parameters.as_ptr()), 0, 0, 0, 0]) }
        .map(drop)
}

/// Unloads a kernel module; fails at once where it is in use.
pub(crate) fn unload_module(name: Path<'_>) -> Result<()> {
    const O_NONBLOCK: usize = 0o4000;
    // SAFETY: a `Path` holds a NUL, so the kernel reads only inside it.
    unsafe { syscall(nr::DELETE_MODULE, [address(name.0.as_ptr()), O_NONBLOCK, 0, 0, 0, 0]) }
        .map(drop)
}

/// Makes a terminal raw: bytes as they come, no echo, no signals, 115200 baud 8N1, modem
/// lines ignored; a read returns as soon as there is one byte.
pub(crate) fn make_raw(tty: Fd) -> Result<()> {
    const TCSETS: usize = 0x5402;
    const B115200_CS8_CREAD_CLOCAL: u32 = 0o10002 | 0o60 | 0o200 | 0o4000;
    const VMIN: usize = 6;
    /// The kernel's `struct termios` (not libc's).
    #[repr(C)]
    struct Termios {
        input: u32,
        output: u32,
        control: u32,
        local: u32,
        line: u8,
        characters: [u8; 19],
    }
    let mut characters = [0; 19];
    characters[VMIN] = 1;
    let termios = Termios {
        input: 0,
        output: 0,
        control: B115200_CS8_CREAD_CLOCAL,
        local: 0,
        line: 0,
        characters,
    };
    // SAFETY: TCSETS reads one `struct termios`.
    unsafe { syscall(nr::IOCTL, [tty.0, TCSETS, address(&raw const termios), 0, 0, 0]) }.map(drop)
}

/// The kernel's `struct winsize`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct WindowSize {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
    pixels: [u16; 2],
}

/// The size of a terminal.
pub(crate) fn window_size(tty: Fd) -> Result<WindowSize> {
    const TIOCGWINSZ: usize = 0x5413;
    let mut size = WindowSize::default();
    let pointer = (&raw mut size).expose_provenance();
    // SAFETY: TIOCGWINSZ writes one `struct winsize`.
    unsafe { syscall(nr::IOCTL, [tty.0, TIOCGWINSZ, pointer, 0, 0, 0]) }?;
    Ok(size)
}

/// Waits until a terminal's output has left the machine.
pub(crate) fn drain(tty: Fd) -> Result<()> {
    const TCSBRK: usize = 0x5409;
    // SAFETY: TCSBRK takes a number, no pointer; other than 0 it is `tcdrain`.
    unsafe { syscall(nr::IOCTL, [tty.0, TCSBRK, 1, 0, 0, 0]) }.map(drop)
}

/// A set of CPUs, a bit each.
type CpuMask = [u64; 16];

/// Pins this process to a CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut mask = CpuMask::default();
    let word = mask.get_mut(cpu / 64).ok_or(Errno(22))?;
    *word = 1 << (cpu % 64);
    run_on(&mask)
}

/// Lets this process run on these CPUs alone, as far as there are such.
fn run_on(mask: &CpuMask) -> Result<()> {
    let size = size_of_val(mask);
    // SAFETY: the kernel reads `size` bytes of `mask`.
    unsafe { syscall(nr::SCHED_SETAFFINITY, [0, size, address(mask.as_ptr()), 0, 0, 0]) }.map(drop)
}

/// The number of CPUs. This process may run on all of them then, also on those that the kernel's
/// `isolcpus=` keeps from processes that do not ask for them.
pub(crate) fn cpu_count() -> Result<usize> {
    run_on(&[u64::MAX; 16])?;
    // The kernel writes only as many bytes as it has CPUs for.
    let mut mask = CpuMask::default();
    let pointer = mask.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most the given size to `mask`.
    unsafe { syscall(nr::SCHED_GETAFFINITY, [0, size_of_val(&mask), pointer, 0, 0, 0]) }?;
    Ok(mask.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1))
}

/// The kernel's `struct timespec`.
#[repr(C)]
struct Timespec {
    seconds: u64,
    nanoseconds: u64,
}

/// The monotonic clock, in nanoseconds.
pub(crate) fn monotonic_ns() -> Result<u64> {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    let pointer = (&raw mut time).expose_provenance();
    // SAFETY: the kernel writes one `struct timespec`.
    unsafe { syscall(nr::CLOCK_GETTIME, [CLOCK_MONOTONIC, pointer, 0, 0, 0, 0]) }?;
    Ok(time.seconds.wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds))
}

/// The time-stamp counter.
pub(crate) fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and Linux lets user mode execute it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

pub(crate) fn sleep_ms(ms: u64) -> Result<()> {
    let time = Timespec { seconds: ms / 1000, nanoseconds: ms % 1000 * 1_000_000 };
    // SAFETY: the kernel reads one `struct timespec`; the remainder pointer is null.
    unsafe { syscall(nr::NANOSLEEP, [address(&raw const time), 0, 0, 0, 0, 0]) }.map(drop)
}
