//! `exoprobe run`: boots a guest, or restores one, and serves the API until a signal.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoprobe_probes::{EventLimits, Limits, ProbeDefinition, parse_line};
use exoprobe_vmm::{
    BootFiles, DEFAULT_KVM, DiskConfig, StopReason, StopRecord, Vm, VmConfig, with_kernel_words,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::default_socket;
use crate::disk_option;
use crate::fast_boot;
use crate::http::{Token, TokenError};
use crate::log::{self, say};
use crate::service::{
    Closing, GuestSource, ListenError, Listeners, Service, ServiceConfig, StartError, progress,
    serve,
};
use crate::token_file::{self, TokenFileError};

/// The token of TCP clients, when no file holds it.
const TOKEN_ENV: &str = "EXOPROBE_TOKEN";
/// Kernel command line by default.
const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet";
/// Largest `--events-memory` and `--memory-limit`.
const LIMIT_MIB_MAX: u64 = 1 << 16;
/// How soon the end of the guest is seen.
const STOP_POLL: Duration = Duration::from_millis(250);
/// Messages about stops of the guest, which boots again.
const STOPPED: &str = "the guest stopped, and boots again";
/// Longest wait at the end for blocking calls.
const LAST_CALLS: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "Examples:
  exoprobe run --kernel vmlinux --initramfs initramfs.cpio --socket /tmp/exoprobe.sock
  exoprobe run --kernel bzImage --memory 512 --vcpus 2 --console
  exoprobe run --kernel /boot/vmlinuz --memory 512 --fast-boot
  exoprobe run --kernel vmlinuz --initramfs initrd.img --cmdline 'console=ttyS0 root=/dev/vda1' \\
      --memory 1024 --disk debian.raw,overlay --disk data.raw
  exoprobe run --restore /tmp/guest.snap --socket /tmp/second.sock
  exoprobe run --restore /tmp/guest.snap --kernel vmlinux --initramfs initramfs.cpio --reboot
  exoprobe run --kernel vmlinux --probe 'p:begin start_kernel' --probe 'r:init kernel_init_freeable'
  EXOPROBE_TOKEN=... exoprobe run --kernel vmlinux --listen 127.0.0.1:8080

Then, from another terminal:
  curl --unix-socket /tmp/exoprobe.sock -d 'p:getpid __x64_sys_getpid' http://exoprobe/v1/probes";

/// Boot a guest and serve the API until SIGINT or SIGTERM.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Linux kernel to boot: an ELF vmlinux or a bzImage (unpacked by exoprobe where KVM emulates
    /// guest kernels, by itself elsewhere; with KASLR in both cases, unless `nokaslr` is in
    /// --cmdline); with --restore, the kernel to reboot with
    #[arg(long, value_name = "PATH", required_unless_present = "restore")]
    pub kernel: Option<PathBuf>,
    /// Initial RAM file system
    #[arg(long, value_name = "PATH", requires = "kernel")]
    pub initramfs: Option<PathBuf>,
    /// Kernel command line [default: console=ttyS0 quiet; with --restore, the snapshot's]
    #[arg(long, value_name = "TEXT", requires = "kernel", allow_hyphen_values = true)]
    pub cmdline: Option<String>,
    /// Add words to the kernel command line that leave out what takes long where KVM emulates guest
    /// kernels, and print them: parts of /sys/kernel and /sys/module, and the guest's own tracefs,
    /// are not there then
    #[arg(long, conflicts_with = "restore")]
    pub fast_boot: bool,
    /// RAM in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, conflicts_with = "restore")]
    pub memory: u64,
    /// Number of vCPUs
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "restore")]
    pub vcpus: u8,
    /// Disk, /dev/vda and on: a raw file or a block device, which no other machine may have. With
    /// `readonly` the guest cannot write to it; with `overlay` its writes go to a temporary file
    /// and are thrown away: several machines may share the disk then. May be given several times;
    /// with --restore, the snapshot's disks, in their order
    #[arg(long = "disk", value_name = "FILE[,readonly|overlay]", value_parser = disk_option::parse)]
    pub disks: Vec<DiskConfig>,
    /// Symbols of the kernel: its vmlinux or System.map [default: those of a vmlinux, or the
    /// kernel's own, read from the guest's memory once it runs]
    #[arg(long, value_name = "PATH")]
    pub symbols: Option<PathBuf>,
    /// Types of the kernel: BTF, as `pahole --btf_encode_detached` makes it, or an ELF file with a
    /// section .BTF [default: the kernel's own (CONFIG_DEBUG_INFO_BTF), read from the guest's
    /// memory, or else KERNEL.btf or vmlinux.btf in the kernel's folder]
    #[arg(long, value_name = "PATH")]
    pub btf: Option<PathBuf>,
    /// ELF file with the kernel's debug information (DWARF), for source lines [default: the
    /// symbols' file, if it has some]
    #[arg(long, value_name = "FILE")]
    pub debug_info: Option<PathBuf>,
    /// Go on from a snapshot in place of booting a kernel. The guest can be rebooted with --kernel
    /// alone: files that a snapshot names are not booted from
    #[arg(long, value_name = "SNAPSHOT")]
    pub restore: Option<PathBuf>,
    /// Unix socket to listen on, for this user only
    #[arg(long, value_name = "PATH", default_value_os_t = default_socket())]
    pub socket: PathBuf,
    /// TCP address to listen on as well; clients then need the token
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// File of mode 0600 that holds the token of TCP clients, at least 16 characters [default:
    /// environment variable EXOPROBE_TOKEN]
    #[arg(long, value_name = "PATH", requires = "listen")]
    pub token_file: Option<PathBuf>,
    /// Probe to register before the guest runs its first instruction; may be given several times
    #[arg(long = "probe", value_name = "DEFINITION", value_parser = definition)]
    pub probes: Vec<ProbeDefinition>,
    /// Events kept for readers
    #[arg(long, value_name = "N", default_value_t = EventLimits::DEFAULT_COUNT, value_parser = events_kept)]
    pub events: usize,
    /// Memory for the events kept for readers, in MiB; the oldest go when they take more
    #[arg(long, value_name = "MIB", default_value_t = EventLimits::DEFAULT_MIB as u64, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MIB_MAX))]
    pub events_memory: u64,
    /// Memory that all probes together may take at most, in MiB; a probe beyond is refused (507
    /// over HTTP)
    #[arg(long, value_name = "MIB", default_value_t = Limits::DEFAULT_MIB as u64, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MIB_MAX))]
    pub memory_limit: u64,
    /// KVM device
    #[arg(long, value_name = "PATH", default_value = DEFAULT_KVM, hide_short_help = true)]
    pub kvm: PathBuf,
    /// Print the guest's console to standard output as it comes
    #[arg(long)]
    pub console: bool,
    /// Boot again when the guest resets itself
    #[arg(long)]
    pub reboot: bool,
    /// End when the guest stops; with an error unless it reset itself or was shut down
    #[arg(long)]
    pub exit_with_guest: bool,
}

/// Why `exoprobe run` failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guest or the engine.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The sockets.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Reboots of a restored guest, from no file.
    #[error(
        "--reboot with --restore needs --kernel PATH (and --initramfs): files that a snapshot names are not booted from"
    )]
    NoKernel,
    /// TCP without a token.
    #[error("--listen needs a token: give --token-file PATH or set {TOKEN_ENV}")]
    NoToken,
    /// The token cannot be used.
    #[error("{from}: {source}")]
    Token {
        /// Where it came from.
        from: String,
        /// Why.
        source: TokenError,
    },
    /// The token's file cannot be used.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The host refused threads, signals or the like.
    #[error("cannot start the service: {0}")]
    Io(#[from] std::io::Error),
    /// A part of the service panicked.
    #[error("a part of the service failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A thread of the service ended, without which hits are not recorded or output is not seen.
    #[error("the service's thread {0} ended unexpectedly; the guest was stopped")]
    Worker(&'static str),
    /// With `--exit-with-guest`: the guest did not end well.
    #[error("{0}")]
    Guest(String),
}

/// Runs a guest and its service.
///
/// # Errors
/// [`RunError`]; the socket is gone, and the guest, when this returns. SIGINT and SIGTERM are no
/// error.
pub fn main(args: RunArgs) -> Result<(), RunError> {
    log::init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Also after a panic: to drop the runtime would wait for calls that only the service's end
    // ends.
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(args))));
    runtime.shutdown_timeout(LAST_CALLS);
    log::report_all_left_out();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

async fn run(args: RunArgs) -> Result<(), RunError> {
    if args.reboot && args.restore.is_some() && args.kernel.is_none() {
        return Err(RunError::NoKernel);
    }
    let mut signals = Signals::new()?;
    let tcp = match args.listen {
        Some(address) => Some((address, token(args.token_file.as_deref())?)),
        None => None,
    };
    if let Some((address, _)) = tcp.as_ref().filter(|(address, _)| !address.ip().is_loopback()) {
        say!("warning: {address} is not loopback; the token and all data go unencrypted");
    }
    let listeners = tokio::select! {
        listeners = Listeners::bind(&args.socket, tcp) => listeners?,
        () = signals.next() => return Ok(()),
    };
    let config = service_config(&args)?;
    let mut start = tokio::task::spawn_blocking(move || Service::start(&config));
    let service = tokio::select! {
        service = &mut start => service??,
        () = signals.next() => {
            // What was begun ends by itself, in a moment, unless it waits for a file.
            let _ = tokio::time::timeout(LAST_CALLS, start).await;
            return Ok(());
        }
    };
    say!("listening on {}", listeners.describe());
    let vm = Arc::clone(service.vm());
    if args.restore.is_none() {
        say_what_to_expect(&vm, args.fast_boot);
    }
    let supervised = async {
        let outcome = until_end(&service, &args, &mut signals).await;
        service.close();
        end_at_once_on(signals);
        outcome
    };
    let ((), outcome) = tokio::join!(serve(&service, listeners), supervised);
    tokio::task::spawn_blocking(move || vm.shut_down()).await?;
    outcome
}

/// Prints what a boot on this host takes, where that is long, and what `--fast-boot` added.
fn say_what_to_expect(vm: &Vm, fast_boot: bool) {
    if let Some(software) = vm.host_profile().software {
        say!("this host has {}: {}", software.name(), software.expectation());
    }
    if fast_boot {
        say!("--fast-boot added to the kernel command line: {}", fast_boot::words());
    }
}

/// Has the next signal end the process, whatever it still waits for.
fn end_at_once_on(mut signals: Signals) {
    tokio::spawn(async move {
        signals.next().await;
        say!("ended by a second signal");
        std::process::exit(1);
    });
}

/// Reports what happens, until a signal, the end of a worker or, if so asked, the guest's end.
async fn until_end(
    service: &Service,
    args: &RunArgs,
    signals: &mut Signals,
) -> Result<(), RunError> {
    let progress = async {
        let console = async {
            if args.console {
                progress::console(service).await;
            }
        };
        let booting = async {
            if args.restore.is_none() {
                progress::booting(service, args.console).await;
            }
        };
        tokio::join!(console, booting);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        () = signals.next() => Ok(()),
        ended = follow_guest(service, args) => ended,
        name = service.failed_worker() => Err(RunError::Worker(name)),
        never = progress => match never {},
        never = log::report_left_out() => match never {},
    }
}

/// Tells why the guest stops, each time that it does, and boots it again if so asked.
async fn follow_guest(service: &Service, args: &RunArgs) -> Result<(), RunError> {
    let mut told = 0;
    loop {
        let (vm, closing) = (Arc::clone(service.vm()), service.closing());
        let stop = tokio::task::spawn_blocking(move || next_stop(&vm, &closing, told)).await?;
        let Some((boot, record)) = stop else { return Ok(()) };
        told = boot;
        let mut text = progress::stop_text(&record);
        if args.reboot && record.reason == StopReason::Reset {
            let vm = Arc::clone(service.vm());
            match tokio::task::spawn_blocking(move || vm.reboot_after(boot)).await? {
                Ok(true) => {
                    log::limited(STOPPED, format_args!("{text}; it boots again"));
                    continue;
                }
                // Somebody else was quicker.
                Ok(false) => {
                    log::limited(STOPPED, format_args!("{text}; it was booted again"));
                    continue;
                }
                Err(error) => text = format!("{text}; {error}"),
            }
        }
        let ended_well = matches!(record.reason, StopReason::Reset | StopReason::ShutDown);
        if args.exit_with_guest && !ended_well {
            return Err(RunError::Guest(text));
        }
        say!("{text}");
        if args.exit_with_guest {
            return Ok(());
        }
    }
}

/// Waits for the guest to stop in a boot after `told`. Returns which, and why. `None` when the
/// service ends.
fn next_stop(vm: &Vm, closing: &Closing, told: u64) -> Option<(u64, StopRecord)> {
    while !closing.is_closed() {
        if let Some(stop) = vm.wait_stopped_after(told, STOP_POLL) {
            return Some(stop);
        }
    }
    None
}

/// Signals that ask a program to end.
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Waits until one comes.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// The kernel command line as it was given, with the words of `--fast-boot` if these are wanted.
fn cmdline(args: &RunArgs) -> String {
    let cmdline = args.cmdline.as_deref().unwrap_or(DEFAULT_CMDLINE);
    match args.fast_boot {
        true => with_kernel_words(cmdline, &fast_boot::words()),
        false => cmdline.to_owned(),
    }
}

fn service_config(args: &RunArgs) -> std::io::Result<ServiceConfig> {
    // Absolute, because a snapshot has them, too.
    let absolute = |path: &PathBuf| std::path::absolute(path);
    let kernel = args.kernel.as_ref().map(absolute).transpose()?;
    let initramfs = args.initramfs.as_ref().map(absolute).transpose()?;
    let source = match &args.restore {
        Some(path) => {
            let files = |kernel| BootFiles { kernel, initramfs, cmdline: args.cmdline.clone() };
            let (boot_files, disks) = (kernel.map(files), args.disks.clone());
            GuestSource::Restore { path: path.clone(), boot_files, disks }
        }
        None => GuestSource::Boot(VmConfig {
            kernel: kernel.unwrap_or_default(),
            initramfs,
            cmdline: cmdline(args),
            memory_mib: args.memory,
            vcpus: args.vcpus,
            disks: args.disks.clone(),
        }),
    };
    let bytes = |mib: u64| usize::try_from(mib << 20).unwrap_or(usize::MAX);
    let events = EventLimits { count: args.events, bytes: bytes(args.events_memory) };
    Ok(ServiceConfig {
        source,
        symbols: args.symbols.clone(),
        types: args.btf.clone(),
        debug_info: args.debug_info.clone(),
        kvm: args.kvm.clone(),
        probes: args.probes.clone(),
        limits: Limits { events, memory: bytes(args.memory_limit) },
    })
}

/// Reads a line of kprobe_events; an error has a caret under what is wrong.
fn definition(line: &str) -> Result<ProbeDefinition, String> {
    parse_line(line).map_err(|error| {
        let column = line.chars().take(error.position).count();
        format!("{error}\n  {line}\n  {:column$}^", "")
    })
}

fn token(file: Option<&Path>) -> Result<Token, RunError> {
    let (text, from) = match file {
        Some(path) => (token_file::read(path)?, path.display().to_string()),
        None => (std::env::var(TOKEN_ENV).map_err(|_| RunError::NoToken)?, TOKEN_ENV.to_owned()),
    };
    Token::new(&text).map_err(|source| RunError::Token { from, source })
}

/// Reads the number of events to keep: some, and no more than fit a few GiB.
fn events_kept(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 23;
    match text.parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => Err(format!("give 1 to {MOST}")),
    }
}
