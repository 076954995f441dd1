//! One guest, its probe engine, and the threads that carry its output to clients.

mod closing;
mod connections;
mod descriptors;
mod error;
mod files;
mod freed;
mod listen;
pub(crate) mod progress;
mod socket;
mod user_space;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use exoprobe_introspect::{Btf, SourceLines};
use exoprobe_probes::{Engine, Guest, KernelHints, Limits, ProbeDefinition};
use exoprobe_tracer::Tracer;
use exoprobe_vmm::{
    BootFiles, CreateError, Host, HostSides, OutputLog, VirtioConsole, Vm, VmConfig,
};
use tokio::sync::watch;

use crate::machine_file::MachineFile;
use crate::sandbox::seccomp::Seccomp;
use crate::scripts::Scripts;

pub(crate) use closing::{Closing, Growth};
pub use error::StartError;
use files::KernelFiles;
pub(crate) use files::types_candidates;
pub use listen::{ListenError, Listeners, serve};
pub use socket::{SocketError, SocketFile, bind};

use crate::http::{self, VmApi};
use workers::{Worker, Workers};

/// Where a guest comes from.
#[derive(Clone, Debug)]
pub enum GuestSource {
    /// A kernel to boot.
    Boot(VmConfig),
    /// A snapshot to go on from.
    Restore {
        /// The snapshot.
        path: PathBuf,
        /// Files to boot the guest from again, if it may be.
        boot_files: Option<BootFiles>,
        /// The host's sides of its devices: those that it names are not opened.
        sides: HostSides,
    },
}

/// Configuration of a service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// The guest.
    pub source: GuestSource,
    /// Symbols of its kernel; the kernel file itself when absent.
    pub symbols: Option<PathBuf>,
    /// Its kernel's types, as BTF. When absent, the kernel's own, or those of a file near the
    /// kernel's.
    pub types: Option<PathBuf>,
    /// A file with its source lines; the symbols' file when absent, if it has them.
    pub debug_info: Option<PathBuf>,
    /// The KVM device.
    pub kvm: PathBuf,
    /// Lock the guest's memory ([`Vm::lock_memory`]).
    pub mlock: bool,
    /// Filters of its threads' system calls.
    pub seccomp: Seccomp,
    /// Probes to register before the guest runs.
    pub probes: Vec<ProbeDefinition>,
    /// Bounds on memory.
    pub limits: Limits,
    /// All that it was started with, for clients that ask.
    pub file: MachineFile,
}

/// A running guest with its engine. Dropping it ends its threads.
pub struct Service {
    vm: Arc<Vm>,
    engine: Arc<Engine>,
    tracer: Arc<Tracer>,
    scripts: Arc<Scripts>,
    lines: Option<Arc<SourceLines>>,
    file: Arc<MachineFile>,
    growth: [Growth; 2],
    virtio_console: Option<(Arc<VirtioConsole>, Growth)>,
    closing: watch::Sender<bool>,
    failed: workers::Failed,
    /// Held for their end.
    _workers: Vec<Worker>,
}

/// Makes the machine that `config` has.
fn machine(config: &ServiceConfig) -> Result<Vm, StartError> {
    let host = Host::open(&config.kvm)?;
    let host = match config.seccomp.thread_hook() {
        Some(hook) => host.with_thread_hook(hook),
        None => host,
    };
    let vm = match &config.source {
        GuestSource::Boot(boot) => Vm::create(&host, boot)?,
        GuestSource::Restore { path, boot_files, sides } => {
            let mut vm = Vm::restore(&host, path, sides)?;
            if let Some(files) = boot_files {
                vm.set_boot_files(files.clone()).map_err(CreateError::from)?;
            }
            vm
        }
    };
    if config.mlock {
        vm.lock_memory()?;
    }
    Ok(vm)
}

impl Service {
    /// Makes the guest, which does not run until the machine is started ([`Vm::start`], with
    /// [`Engine::exit_hook`]). Waits for the host, so not to be called on an async thread.
    ///
    /// # Errors
    /// [`StartError`]: nothing remains.
    pub fn new(config: &ServiceConfig) -> Result<Self, StartError> {
        let vm = machine(config)?;
        let (symbols, debug_info) = (config.symbols.as_deref(), config.debug_info.as_deref());
        let KernelFiles { symbols, lines } =
            KernelFiles::load(symbols, debug_info, &vm.config().kernel)?;
        let vm = Arc::new(vm);
        let guest = Arc::clone(&vm) as Arc<dyn Guest>;
        let open = |path: &PathBuf| {
            Btf::open(path).map_err(|source| StartError::Types { path: path.clone(), source })
        };
        let types = config.types.as_ref().map(open).transpose()?;
        let found_types = match &types {
            Some(_) => None,
            None => files::types_near(&vm.config().kernel),
        };
        let given = KernelHints { symbols, types, found_types };
        let engine = Arc::new(Engine::new(guest, vm.clock(), given, config.limits));
        engine.register(config.probes.clone())?;
        let failed = workers::Failed::new(None);
        let workers = Workers { seccomp: &config.seccomp, failed: &failed };
        let mut running = vec![workers.drain(Arc::clone(&engine))?, workers.give_back()?];
        let mut watch = |name: &'static str, log: &Arc<OutputLog>| {
            let (worker, growth) = workers.watch_output(name, log)?;
            running.push(worker);
            std::io::Result::Ok(growth)
        };
        let [first, second] =
            [0, 1].map(|port| vm.serial(port).expect("a machine has ports 0 and 1"));
        let growth = [watch("serial-0", first.log())?, watch("serial-1", second.log())?];
        let watched = |console: &Arc<VirtioConsole>| {
            Ok::<_, std::io::Error>((Arc::clone(console), watch("console", console.log())?))
        };
        let virtio_console = vm.virtio_console().map(watched).transpose()?;
        let (vcpus, cpus) = (usize::from(vm.config().vcpus), u32::from(vm.config().vcpus));
        Ok(Self {
            vm,
            tracer: Arc::new(Tracer::new(Arc::clone(&engine), vcpus)),
            scripts: Arc::new(Scripts::new(Arc::clone(&engine), cpus)),
            engine,
            lines: lines.map(Arc::new),
            file: Arc::new(config.file.clone()),
            growth,
            virtio_console,
            closing: watch::Sender::new(false),
            failed,
            _workers: running,
        })
    }

    /// The machine.
    #[must_use]
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The probe engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// All routes, for as many listeners as there are.
    pub fn router(&self) -> Router {
        http::router(VmApi {
            vm: Arc::clone(&self.vm),
            engine: Arc::clone(&self.engine),
            tracer: Arc::clone(&self.tracer),
            scripts: Arc::clone(&self.scripts),
            lines: self.lines.clone(),
            file: Arc::clone(&self.file),
            growth: self.growth.clone(),
            virtio_console: self.virtio_console.clone(),
            closing: self.closing(),
        })
    }

    /// Ends all streams and lets listeners finish.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until a worker ends by itself, which none should; gives its name.
    pub(crate) async fn failed_worker(&self) -> &'static str {
        workers::failed(&self.failed).await
    }

    pub(crate) fn closing(&self) -> Closing {
        Closing(self.closing.subscribe())
    }

    pub(crate) fn growth(&self, port: usize) -> Growth {
        self.growth[port].clone()
    }
}
