//! `exoprobe run`: boots a guest, or restores one, and serves the API until a signal.

mod args;
mod disk_option;
mod error;
mod jail_option;
mod net_option;
mod prepare;
mod start_thread;
mod vsock_option;

pub use args::RunArgs;
pub use error::RunError;
pub use jail_option::JailArgs;
pub use net_option::NetOption;
pub use vsock_option::VsockOption;

pub use crate::sandbox::jail::{JailError, Method, Setting};

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use exoprobe_vmm::{StopReason, StopRecord, Vm};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::fast_boot;
use crate::log::{self, say};
use crate::sandbox::seccomp::{self, Kind, Seccomp, SeccompError};
use crate::service::{Closing, Listeners, Service, ServiceConfig, StartError, progress, serve};
use prepare::{Prepared, prepare};
use start_thread::StartThread;

/// How soon the end of the guest is seen.
const STOP_POLL: Duration = Duration::from_millis(250);
/// Messages about stops of the guest, which boots again.
const STOPPED: &str = "the guest stopped, and boots again";
/// Longest wait at the end for blocking calls.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// Runs a guest and its service.
///
/// # Errors
/// [`RunError`]; the socket is gone, and the guest, when this returns. SIGINT and SIGTERM are no
/// error.
pub fn main(args: RunArgs) -> Result<(), RunError> {
    log::init();
    let mut prepared = prepare(args)?;
    seccomp::forbid_new_privileges()?;
    // In the jail, but before this thread's filter, which all later threads inherit.
    let start = StartThread::spawn()?;
    prepared.config.seccomp = confine(prepared.args.no_seccomp)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Also after a panic: to drop the runtime would wait for calls that only the service's end
    // ends.
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(prepared, start))));
    runtime.shutdown_timeout(LAST_CALLS);
    log::report_all_left_out();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Gives up privileges of this thread, and of those that it starts. Returns the filters of the
/// service's threads.
fn confine(no_seccomp: bool) -> Result<Seccomp, SeccompError> {
    if no_seccomp {
        say!("warning: --no-seccomp: threads may make any system call");
        return Ok(Seccomp::off());
    }
    let seccomp = Seccomp::prepare()?;
    seccomp.enter(Kind::Service);
    Ok(seccomp)
}

async fn run(prepared: Prepared, start: StartThread) -> Result<(), RunError> {
    let Prepared { args, config, socket, tcp } = prepared;
    let mut signals = start.run(Signals::new).await??;
    let listeners = tokio::select! {
        listeners = start.run(move || Listeners::bind(&socket, tcp)) => listeners??,
        () = signals.next() => return Ok(()),
    };
    let service = {
        let mut made = pin!(start.run(move || make(&config)));
        tokio::select! {
            service = &mut made => service??,
            () = signals.next() => {
                // What was begun ends by itself, in a moment, unless it waits for a file.
                let _ = tokio::time::timeout(LAST_CALLS, made).await;
                return Ok(());
            }
        }
    };
    start.end();
    let (vm, hook) = (Arc::clone(service.vm()), service.engine().exit_hook());
    tokio::task::spawn_blocking(move || vm.start(hook)).await?.map_err(StartError::from)?;
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

/// Makes the service. Its memory is closed to other processes then, before the guest runs.
fn make(config: &ServiceConfig) -> Result<Service, RunError> {
    let service = Service::new(config)?;
    // Now that the RAM's map is open (`GuestRam`): it is root's after this.
    if config.seccomp.is_on() {
        seccomp::forbid_dumps()?;
    }
    Ok(service)
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
