//! The machine's exits: the one place where a vCPU's thread may want control.
//!
//! Some breakpoints change what control has (a return site that is new, the engine's own marks).
//! Its lock is only ever tried here: the thread that holds it may be waiting for this very vCPU.
//! While it is not free the vCPU goes back to its breakpoint, by way of its commands, and hits
//! again; nothing has been counted then.

use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::hit::path::HitPath;
use crate::engine::hit::table::Stop;
use crate::engine::hit::table::Table;
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::modules::ModuleEvent;
use crate::engine::kernel::view::KernelView;
use crate::engine::probe::site::InternalBreakpoint;
use crate::engine::probe::site::Site;
use exoprobe_guest::Guest;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry};

/// The breakpoint is to be hit again: control is not free, or has changed what is there.
struct Retry;

/// Whether a breakpoint can be dealt with now.
type Turn = ControlFlow<Retry>;

const NOW: Turn = ControlFlow::Continue(());
const AGAIN: Turn = ControlFlow::Break(Retry);

/// The engine's hook in the machine.
pub(crate) struct Hook {
    pub(crate) hits: Arc<HitPath>,
    pub(crate) control: Arc<Mutex<Control>>,
    /// Weak, because the machine owns its hook.
    pub(crate) guest: Weak<dyn Guest>,
}

impl ExitHook for Hook {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        let table = self.hits.table.load();
        let stop = table.stop_at(context.rip());
        if let (Some(Stop::Probe(site)), Some(view)) = (stop, &table.view)
            && self.prepare(&table, view, site, context).is_break()
        {
            return BreakpointAction::Resume;
        }
        self.hits.breakpoint(&table, stop, context)
    }

    fn release(&self, context: &mut HitContext<'_>) {
        self.hits.release(context);
    }

    fn kernel_entered(&self, entry: &KernelEntry) -> bool {
        let begun = self.with_control(|control, guest| {
            control.begin_kernel(guest, entry);
            NOW
        });
        begun.is_continue()
    }

    fn reset(&self) {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).reset();
    }
}

impl Hook {
    /// Calls `act` with control, if that is free; with no guest there is nothing to do.
    fn with_control(&self, act: impl FnOnce(&mut Control, &dyn Guest) -> Turn) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return NOW };
        let mut control = match self.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return AGAIN,
        };
        act(&mut control, guest.as_ref())
    }

    /// Does what must be done before a hit of a site is counted.
    fn prepare(
        &self,
        table: &Table,
        view: &KernelView,
        site: &Site,
        context: &HitContext<'_>,
    ) -> Turn {
        for mark in &site.marks {
            self.reach(*mark, table, context)?;
        }
        let memory = HitMemory { view, sregs: context.sregs_source() };
        let rsp = Gva(context.regs.rsp);
        for (ret_addr, probe) in self.hits.calls.unwatched_returns(table, site, memory, rsp) {
            self.with_control(|control, guest| match control.watch_site(guest, ret_addr, probe) {
                true => AGAIN,
                false => NOW,
            })?;
        }
        NOW
    }

    /// Does what the engine itself wants at a place.
    fn reach(&self, mark: InternalBreakpoint, table: &Table, context: &HitContext<'_>) -> Turn {
        let (rsp, vcpu) = (Gva(context.regs.rsp), usize::from(context.vcpu));
        let ending = &self.hits.ending[vcpu];
        match mark {
            InternalBreakpoint::TaskDead => {
                self.hits.calls.end_stack(table, rsp);
                ending.store(rsp.0, Ordering::Relaxed);
                NOW
            }
            // The functions that took it off its stack were called after its end was marked.
            InternalBreakpoint::StackLeft => {
                match ending.swap(0, Ordering::Relaxed) {
                    0 => {}
                    ended => self.hits.calls.end_stack(table, Gva(ended)),
                }
                NOW
            }
            // The first argument is the module. The mark stays.
            InternalBreakpoint::ModuleBegins
            | InternalBreakpoint::ModuleInitFreed
            | InternalBreakpoint::ModuleEnds => {
                let module = Gva(context.regs.rdi);
                let event = match mark {
                    InternalBreakpoint::ModuleBegins => ModuleEvent::Coming(module),
                    InternalBreakpoint::ModuleEnds => ModuleEvent::Going(module),
                    _ => ModuleEvent::Other,
                };
                self.with_control(|control, guest| {
                    control.follow_modules(guest, event, Wait::No);
                    NOW
                })
            }
            // Both happen once, and change what is to be hit here.
            InternalBreakpoint::TextFinal => {
                let _ = self.with_control(|control, guest| {
                    control.finish_boot(guest, context);
                    AGAIN
                });
                AGAIN
            }
            InternalBreakpoint::FreeInit => {
                let _ = self.with_control(|control, guest| {
                    control.init_text_gone(guest);
                    AGAIN
                });
                AGAIN
            }
        }
    }
}
