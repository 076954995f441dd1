//! What is read of the guest for whoever asks.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use exoprobe_guest::Gva;
use exoprobe_introspect::task_fields::TaskFields;
use exoprobe_introspect::task_list::ListReading;
use exoprobe_introspect::{Btf, ModuleState, SymbolTable, TaskLayout, VirtualReadError};
use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::definition::parse_place;
use crate::engine::control::boot::Purpose;
use crate::engine::control::state::Control;
use crate::engine::facade::engine::Engine;
use crate::engine::hit::actions::Holder;
use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::modules::{Loaded, Modules};
use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::state::RunningKernel;
use crate::engine::kernel::tasks::{Process, Tasks};
use crate::error::ProbeError;

/// An instruction of the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLine {
    /// Its address.
    pub at: Gva,
    /// Its bytes, as they are without probes.
    pub bytes: Vec<u8>,
    /// It as text, in Intel's order of operands; `(bad)` for a byte that begins none.
    pub text: String,
    /// Where it branches to, if its bytes say so: `SYMBOL+0xOFFSET`, where a symbol is known.
    pub target: Option<String>,
    /// Names of the probes there, with their groups.
    pub probes: Vec<String>,
}

/// Between two tries to lock the registry.
const REGISTRY_POLL: Duration = Duration::from_millis(1);

impl Engine {
    /// What the running kernel says of itself; nothing while it is not known: before it runs, and
    /// until something about it is asked or a probe is registered. Does not wait for
    /// [`KeptProbes`](crate::engine::KeptProbes).
    #[must_use]
    pub fn running_kernel(&self) -> RunningKernel {
        loop {
            if let Some(kept) = self.kept_kernel.load_full() {
                return RunningKernel::clone(&kept);
            }
            // Not waited for: a snapshot may be about to keep it, for a long time.
            if let Some(control) = self.try_lock() {
                return RunningKernel::of(control.kernel.running.as_deref());
            }
            std::thread::sleep(REGISTRY_POLL);
        }
    }

    /// The probe that stopped the guest last at a hit of `vcpu`. It holds the guest still if the
    /// machine says so of the vCPU (`Vm::held` of exoprobe-vmm).
    #[must_use]
    pub fn holder(&self, vcpu: u8) -> Option<Arc<Holder>> {
        self.hits.recorder.holders.get(usize::from(vcpu))?.load_full()
    }

    /// The control, and the kernel that runs or, of a guest that has stopped, ran.
    pub(crate) fn look(&self) -> Result<(MutexGuard<'_, Control>, Arc<Kernel>), ProbeError> {
        let mut control = self.lock();
        let kernel = self.known_kernel(&mut control)?;
        Ok((control, kernel.ok_or(AttachError::Booting)?))
    }

    /// The kernel that runs, as far as it is, or that ran until the guest stopped.
    fn known_kernel(&self, control: &mut Control) -> Result<Option<Arc<Kernel>>, AttachError> {
        match control.attach(self.guest.as_ref(), Purpose::Question) {
            Err(AttachError::Stopped) => control.examine(self.guest.as_ref()).map(Some),
            attached => attached,
        }
    }

    /// The address that a text names: `0xADDR`, or `SYMBOL[+OFFSET]`.
    ///
    /// # Errors
    /// [`ProbeError::Syntax`], [`ProbeError::Symbol`], and as [`Self::symbols`].
    pub fn address_of(&self, place: &str) -> Result<Gva, ProbeError> {
        let place = parse_place(place)?;
        match place.symbol_name {
            Some(name) => Ok(self.symbols()?.lookup(&name)?.address.wrapping_add(place.offset)),
            None => Ok(place.addr.unwrap_or_default()),
        }
    }

    /// The kernel's memory at a virtual address, as it would be without probes.
    ///
    /// # Errors
    /// As [`Self::read_memory`].
    pub fn read_without_probes(&self, at: Gva, buf: &mut [u8]) -> Result<(), ProbeError> {
        let (control, kernel) = self.look()?;
        kernel.memory().read(at, buf)?;
        control.text().restore(at, buf);
        Ok(())
    }

    /// The instructions of the function that has `at`, as they are without probes.
    ///
    /// # Errors
    /// [`ProbeError::NotText`] outside of functions, [`ProbeError::Read`] where the text is not
    /// mapped, [`ProbeError::Attach`].
    pub fn disassemble(&self, at: Gva) -> Result<Vec<CodeLine>, ProbeError> {
        let (control, kernel) = self.look()?;
        let bounds = kernel.symbols.function_at(at).ok_or(ProbeError::NotText(at))?;
        let bytes = control.text().original(&kernel.memory(), bounds.start, bounds.end)?;
        let mut decoder = Decoder::with_ip(64, &bytes, bounds.start.0, DecoderOptions::NONE);
        let mut lines = Vec::new();
        while decoder.can_decode() {
            let from = decoder.position();
            let insn = decoder.decode();
            if insn.is_invalid() {
                // Whatever follows is looked at from the next byte on.
                let _ = decoder.set_position(from + 1);
                decoder.set_ip(bounds.start.0 + from as u64 + 1);
            }
            let at = bounds.start.wrapping_add(from as u64);
            let site = control.registry.sites.get(&at);
            let probes = site.map(|site| &*site.probes).unwrap_or_default();
            lines.push(CodeLine {
                at,
                bytes: bytes[from..decoder.position()].to_vec(),
                text: if insn.is_invalid() { "(bad)".to_owned() } else { insn.to_string() },
                target: target(&insn, &kernel.symbols),
                probes: probes.iter().map(|p| format!("{}/{}", p.group, p.event)).collect(),
            });
        }
        Ok(lines)
    }

    /// The symbols: where the running kernel has them (KASLR), or, before it begins, as they were
    /// given.
    ///
    /// # Errors
    /// [`ProbeError::Attach`], where none were given and the kernel's own cannot be read, or not
    /// yet.
    pub fn symbols(&self) -> Result<SymbolTable, ProbeError> {
        let mut control = self.lock();
        let kernel = self.known_kernel(&mut control);
        match (kernel, &control.kernel.symbols) {
            (Ok(Some(kernel)), _) => Ok(kernel.symbols.clone()),
            (_, Some(given)) => Ok(given.clone()),
            (Ok(None), None) => Err(AttachError::Booting.into()),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Reads the kernel's memory at a virtual address.
    ///
    /// # Errors
    /// [`ProbeError::Read`] where nothing is mapped, [`ProbeError::Attach`].
    pub fn read_memory(&self, at: Gva, buf: &mut [u8]) -> Result<(), ProbeError> {
        let (_registry, kernel) = self.look()?;
        Ok(kernel.memory().read(at, buf)?)
    }

    /// The places of a task's fields in the guest's kernel.
    ///
    /// # Errors
    /// [`ProbeError::Attach`], [`ProbeError::Tasks`] where the kernel does not tell them, or not
    /// yet.
    pub fn task_layout(&self) -> Result<TaskLayout, ProbeError> {
        let (_control, kernel) = self.look()?;
        Ok(kernel.find_tasks(self.guest.vcpus())?.layout)
    }

    /// The guest's processes, in the order in which they began, and the vCPUs that run them. The
    /// list is read while the guest runs: it has processes that were there all the time, and may
    /// have others. It stops for its vCPUs alone, unless its processes come and go so fast that it
    /// has to stop for the list.
    ///
    /// # Errors
    /// [`ProbeError::Attach`], [`ProbeError::Tasks`] where the kernel does not tell them, or not
    /// yet.
    pub fn processes(&self) -> Result<Vec<Process>, ProbeError> {
        let (mut control, kernel) = self.look()?;
        let types = control.kernel.types(&kernel).ok();
        let fields = types.and_then(|types| TaskFields::find(&types).ok());
        let vcpus = self.guest.vcpus();
        let memory = kernel.memory();
        let list = |tasks: &Tasks, reading| {
            tasks.processes(&memory, &kernel.symbols, fields.as_ref(), reading)
        };
        let mut found = kernel.read_tasks(vcpus, list);
        let mut running = Vec::new();
        self.guest.with_vcpus_still(&mut |_| {
            let tasks = match kernel.find_tasks(vcpus) {
                Ok(tasks) => tasks,
                Err(error) => return found = Some(Err(error)),
            };
            found.get_or_insert_with(|| list(&tasks, ListReading::Still));
            running = tasks.running(&memory, &kernel.view.ram);
        })?;
        let mut processes = found.expect("the vCPUs stood still once")?;
        for process in &mut processes {
            let runs = running.iter().filter(|(_, tgid)| *tgid == process.task.tgid);
            process.vcpus = runs.map(|(vcpu, _)| *vcpu).collect();
        }
        Ok(processes)
    }
}

fn target(insn: &Instruction, symbols: &SymbolTable) -> Option<String> {
    let to = Gva(insn.near_branch_target());
    if to == Gva(0) {
        return None;
    }
    Some(symbols.resolve(to).map_or_else(|| to.to_string(), |found| found.to_string()))
}

/// The memory of a kernel, read without the engine's lock. Of one that runs no more, whatever is in
/// its place.
pub struct KernelMemory(Arc<Kernel>);

impl KernelMemory {
    /// Fills `buf` from a virtual address of the kernel's.
    ///
    /// # Errors
    /// [`VirtualReadError`] where nothing is mapped.
    pub fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), VirtualReadError> {
        self.0.memory().read(at, buf)
    }
}

impl Engine {
    /// The memory of the kernel that runs, or ran until the guest stopped.
    ///
    /// # Errors
    /// [`ProbeError::Attach`].
    pub fn kernel_memory(&self) -> Result<KernelMemory, ProbeError> {
        Ok(KernelMemory(self.look()?.1))
    }
}

/// A module as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub state: ModuleState,
    /// Its text, without that for initialization.
    pub text: Range<Gva>,
    /// How many symbols it has.
    pub symbols: usize,
    /// Names of the probes in it, with their groups.
    pub probes: Vec<String>,
}

impl Engine {
    /// The guest's modules, the last loaded first.
    ///
    /// # Errors
    /// [`ProbeError::Modules`], [`ProbeError::BrokenModules`], [`ProbeError::Attach`].
    pub fn modules(&self) -> Result<Vec<ModuleStatus>, ProbeError> {
        let (control, kernel) = self.look()?;
        match &control.kernel.modules {
            Modules::None(why) => return Err(why.clone().into()),
            Modules::Known(_, Some(failure)) => {
                return Err(ProbeError::BrokenModules(failure.clone()));
            }
            Modules::Unknown => return Err(AttachError::Booting.into()),
            Modules::Known(_, None) => {}
        }
        let status = |loaded: &Arc<Loaded>| {
            let placed = control
                .registry
                .probes
                .values()
                .filter(|probe| probe.placed().is_some_and(|at| loaded.has(at)));
            let name = |probe: &crate::engine::control::registry::Registered| {
                format!("{}/{}", probe.probe.group, probe.probe.event)
            };
            ModuleStatus {
                name: loaded.module.name.clone(),
                state: loaded.module.state,
                text: loaded.module.text.clone(),
                symbols: loaded.table.len(),
                probes: placed.map(name).collect(),
            }
        };
        Ok(kernel.modules.iter().map(status).collect())
    }
}

impl Engine {
    /// The kernel's types: those that were given; else its own, where it has them in its memory;
    /// else those found near its file.
    ///
    /// # Errors
    /// [`ProbeError::Types`] where it has none, [`ProbeError::Attach`].
    pub fn types(&self) -> Result<Arc<Btf>, ProbeError> {
        if let Some(given) = &self.given_types {
            return Ok(Arc::clone(given));
        }
        let (mut control, kernel) = self.look()?;
        Ok(control.kernel.types(&kernel)?)
    }
}
