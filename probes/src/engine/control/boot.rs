//! The phases of the kernel's boot, and their effect on probes. Other files of this folder handle
//! the later moments.
//!
//! | moment | reported by | then |
//! |---|---|---|
//! | the kernel begins | [`Control::begin_kernel`] | all but text that will be patched is armed |
//! | its text is final | a breakpoint of the engine at `rest_init` | the rest is armed |
//! | init text is freed | likewise at `free_initmem` | probes there are gone |
//! | a task ends | likewise at `do_task_dead`, then `put_task_stack` | its instances are free |
//! | modules come and go | see modules.rs | probes come and go with them |
//! | the guest is booted again | [`Control::reset`] | all wait again |
//! | text is rewritten or unmapped | [`Control::patrol`] | its probes are clobbered, or gone |

use std::sync::Arc;

use exoprobe_guest::{Gva, HitContext, KernelEntry, kvm_sregs};
use exoprobe_introspect::symbols::TextKind;

use crate::engine::control::prepare::prepare;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use exoprobe_guest::Guest;

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::modules::ModuleEvent;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::site::InternalBreakpoint;

/// The purpose for which the kernel is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To read the guest, which is not changed (unless there are probes: these may be armed then).
    Question,
    /// To set probes: maps hidden memory.
    Probes,
}

impl Control {
    /// Returns the kernel in its present phase; `None` before it begins. Must not be called on a
    /// vCPU's thread.
    ///
    /// # Errors
    /// [`AttachError`], but for [`AttachError::Booting`].
    pub(crate) fn attach(
        &mut self,
        guest: &dyn Guest,
        purpose: Purpose,
    ) -> Result<Option<Arc<Kernel>>, AttachError> {
        if guest.stopped() {
            return Err(AttachError::Stopped);
        }
        let next = match &self.kernel.running {
            Some(kernel) if kernel.has_booted() || kernel.is_booting() => None,
            Some(kernel) => Some(kernel.finish()?),
            None => {
                let entry = self.kernel.entry;
                let mut source = self.kernel.symbol_source();
                match (Kernel::attach(guest, &mut source), &entry) {
                    (Err(AttachError::Booting), None) => None,
                    (Err(AttachError::Booting), Some(entry)) => {
                        Some(Kernel::at_entry(guest, &mut source, entry)?)
                    }
                    (attached, _) => Some(attached?),
                }
            }
        };
        let mut is_news = next.is_some();
        if let Some(kernel) = next {
            self.kernel.running = Some(Arc::new(kernel));
        }
        // There is no mark at free_initmem() in that case.
        if self.registry.probes.is_empty()
            && let Some(kernel) = &self.kernel.running
        {
            kernel.learn_init_freed();
        }
        if (purpose == Purpose::Probes || !self.registry.probes.is_empty())
            && let Some(kernel) = &self.kernel.running
            && let Some(kernel) = prepare(kernel, guest, || Ok(guest.sregs()?))?
        {
            self.kernel.running = Some(Arc::new(kernel));
            is_news = true;
        }
        if is_news {
            self.advance(guest, Wait::ForVcpus);
        }
        self.learn_orc();
        self.inform_hits(guest);
        self.follow_modules(guest, ModuleEvent::Other, Wait::ForVcpus);
        Ok(self.kernel.running.clone())
    }

    /// Returns the kernel of a stopped guest, to read it. Changes nothing in its memory. Must not
    /// be called on a vCPU's thread.
    ///
    /// # Errors
    /// [`AttachError`]; [`AttachError::NeverBegan`] if the guest stopped before its kernel began.
    pub(crate) fn examine(&mut self, guest: &dyn Guest) -> Result<Arc<Kernel>, AttachError> {
        let known = self.kernel.running.clone();
        let kernel = match known {
            Some(kernel) if kernel.has_booted() => kernel,
            known => {
                let entry = self.kernel.entry;
                let mut source = self.kernel.symbol_source();
                let found = Kernel::of_stopped(guest, &mut source, entry.as_ref());
                // A kernel that stopped early may be readable by its first page tables alone.
                found.map(Arc::new).or_else(|error| known.ok_or(error))?
            }
        };
        self.kernel.running = Some(Arc::clone(&kernel));
        kernel.learn_tasks(guest.vcpus());
        self.follow_modules(guest, ModuleEvent::Other, Wait::ForVcpus);
        Ok(self.kernel.running.clone().unwrap_or(kernel))
    }

    /// Handles the kernel's beginning, on a vCPU's thread.
    pub(crate) fn begin_kernel(&mut self, guest: &dyn Guest, entry: &KernelEntry) {
        self.kernel.entry = Some(*entry);
        if self.registry.probes.is_empty() {
            return;
        }
        let mut source = self.kernel.symbol_source();
        let begun = Kernel::at_entry(guest, &mut source, entry);
        match ready(guest, begun, || Ok(entry.sregs)) {
            Ok(kernel) => {
                self.kernel.running = Some(Arc::new(kernel));
                self.learn_orc();
                self.advance(guest, Wait::No);
            }
            Err(error) => tracing::warn!(%error, "probes wait until the kernel has booted"),
        }
    }

    /// Handles the moment when the kernel's text is final, on a vCPU's thread.
    pub(crate) fn finish_boot(&mut self, guest: &dyn Guest, context: &HitContext<'_>) {
        let finished = self.kernel.running.as_ref().map(|kernel| {
            // The mark that was hit must go, whatever the result.
            kernel.pass_final();
            let sregs = || context.sregs().map_err(|error| AttachError::Vcpu(error.into()));
            ready(guest, kernel.finish(), sregs)
        });
        match finished {
            Some(Ok(kernel)) => {
                self.kernel.running = Some(Arc::new(kernel));
                self.learn_orc();
            }
            Some(Err(error)) => tracing::warn!(%error, "some probes wait for the next change"),
            None => {}
        }
        self.drop_mark(guest, InternalBreakpoint::TextFinal);
    }

    /// Handles the moment before the kernel frees its init text, on a vCPU's thread. Nothing runs
    /// in that text any more.
    pub(crate) fn init_text_gone(&mut self, guest: &dyn Guest) {
        let Some(kernel) = self.kernel.running.clone() else { return };
        kernel.free_init_text();
        let is_init = |at: &Gva| kernel.symbols.text_kind(*at) == Some(TextKind::Init);
        let lost: Vec<Gva> = self.registry.sites.keys().copied().filter(is_init).collect();
        self.text_gone(guest, &lost, Wait::No);
        self.drop_mark(guest, InternalBreakpoint::FreeInit);
    }

    /// Removes a breakpoint of the engine that was reached, and brings everything up to the new
    /// phase.
    fn drop_mark(&mut self, guest: &dyn Guest, mark: InternalBreakpoint) {
        let place = self.registry.reached(mark);
        self.advance(guest, Wait::No);
        let places = place.into_iter().collect();
        if let Err(unsettled) = self.reconcile(guest, &places, Wait::No) {
            tracing::warn!(error = %unsettled.error, ?mark, "taking a mark out");
        }
    }
}

/// Returns a newly examined kernel, after the guest has been prepared for its probes.
fn ready(
    guest: &dyn Guest,
    kernel: Result<Kernel, AttachError>,
    sregs: impl FnOnce() -> Result<kvm_sregs, AttachError>,
) -> Result<Kernel, AttachError> {
    let kernel = kernel?;
    Ok(prepare(&kernel, guest, sregs)?.unwrap_or(kernel))
}
