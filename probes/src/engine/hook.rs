//! The machine's exits: the only place where a vCPU's thread may need control.
//!
//! Some breakpoints change the state of control: a new return site, the engine's own breakpoints.
//! The control lock is only ever tried here, because the thread that holds it may be waiting for
//! this vCPU. While the lock is taken, the vCPU returns to its breakpoint after it has run its
//! commands, and hits again: other threads let it have the lock then. Nothing has been counted at
//! that point.

use crate::engine::control::guest_patches::Ready;
use crate::engine::control::lock::ControlLock;
use crate::engine::control::reconcile::Wait;
use crate::engine::control::state::Control;
use crate::engine::hit::guest_steps::GuestSteps;
use crate::engine::hit::path::{HitPath, look};
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
use std::sync::{Arc, Weak};

use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry};

/// The breakpoint must be hit again: the control lock is taken, or the breakpoint has changed.
struct Retry;

/// Whether a breakpoint can be handled now.
type Turn = ControlFlow<Retry>;

const NOW: Turn = ControlFlow::Continue(());
const AGAIN: Turn = ControlFlow::Break(Retry);

/// The engine's hook in the machine.
pub(crate) struct Hook {
    pub(crate) hits: Arc<HitPath>,
    pub(crate) control: Arc<ControlLock>,
    /// Weak, because the machine owns its hook.
    pub(crate) guest: Weak<dyn Guest>,
}

impl ExitHook for Hook {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        self.hits.table.with(context.vcpu, |table| {
            // Their address is enough: the returns of calls need no look-up.
            if let (Some(index), Some(view)) = (table.trampoline_at(context.rip()), &table.view) {
                return self.trampoline(table, view, index, context);
            }
            let stop = table.stop_at(context.rip());
            let prepared = match (stop, &table.view) {
                (Some(Stop::Probe(site)), Some(view)) => self.prepare(table, view, site, context),
                _ => NOW,
            };
            match prepared {
                Turn::Continue(()) => self.hits.breakpoint(table, stop, context),
                Turn::Break(Retry) => BreakpointAction::Resume,
            }
        })
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
        self.control.lock().reset();
    }
}

impl Hook {
    /// Calls `act` with control if its lock is free. Does nothing without a guest.
    fn with_control(&self, act: impl FnOnce(&mut Control, &dyn Guest) -> Turn) -> Turn {
        let Some(guest) = self.guest.upgrade() else { return NOW };
        let Some(mut control) = self.control.try_lock_on_vcpu() else { return AGAIN };
        act(&mut control, guest.as_ref())
    }

    /// Does the work that must be done before a hit of a site is counted.
    fn prepare(
        &self,
        table: &Table,
        view: &KernelView,
        site: &Site,
        context: &mut HitContext<'_>,
    ) -> Turn {
        for mark in &site.marks {
            self.reach(*mark, table, view, context)?;
        }
        if table.watching.is_empty() {
            return NOW;
        }
        let memory =
            HitMemory { view, sregs: context.sregs_source(), tasks: table.tasks.as_deref() };
        let rsp = Gva(context.regs.rsp);
        for (ret_addr, probe) in self.hits.calls.unwatched_returns(table, site, memory, rsp) {
            self.with_control(|control, guest| match control.watch_site(guest, ret_addr, probe) {
                true => AGAIN,
                false => NOW,
            })?;
        }
        NOW
    }

    /// Handles the return of a call to its trampoline. Before the guest returns from a kprobe of
    /// its own, the slot is made that a post-handler needs.
    #[inline(never)]
    fn trampoline(
        &self,
        table: &Table,
        view: &KernelView,
        index: usize,
        context: &mut HitContext<'_>,
    ) -> BreakpointAction {
        if let Some((site, copy)) = self.hits.unknown_copy(table, view, context) {
            let learned = self.with_control(|control, guest| {
                control.learn_copy(guest, site, copy);
                AGAIN
            });
            if learned.is_break() {
                return BreakpointAction::Resume;
            }
        }
        self.hits.returned(table, view, index, context)
    }

    /// Handles one of the engine's own breakpoints.
    fn reach(
        &self,
        mark: InternalBreakpoint,
        table: &Table,
        view: &KernelView,
        context: &mut HitContext<'_>,
    ) -> Turn {
        let (rsp, vcpu) = (Gva(context.regs.rsp), usize::from(context.vcpu));
        let ending = &self.hits.ending[vcpu];
        match mark {
            InternalBreakpoint::TaskDead => {
                self.hits.calls.end_stack(table, rsp);
                ending.store(rsp.0, Ordering::Relaxed);
                NOW
            }
            // The functions that took the task off its stack were called after the end was marked.
            InternalBreakpoint::StackLeft => {
                match ending.swap(0, Ordering::Relaxed) {
                    0 => {}
                    ended => self.hits.calls.end_stack(table, Gva(ended)),
                }
                NOW
            }
            // The first argument is the module.
            InternalBreakpoint::ModuleBegins => {
                self.follow_modules(ModuleEvent::Coming(Gva(context.regs.rdi)))
            }
            InternalBreakpoint::ModuleEnds => {
                self.follow_modules(ModuleEvent::Going(Gva(context.regs.rdi)))
            }
            InternalBreakpoint::ModuleInitFreed => self.follow_modules(ModuleEvent::Other),
            InternalBreakpoint::GuestReadsText => self.with_control(|control, guest| {
                control.show_own_text(guest, context.regs);
                NOW
            }),
            InternalBreakpoint::GuestWritesText => self.follow_write(table, view, context),
            // The function is left with the registers as they are now.
            InternalBreakpoint::GuestHandlesPoke => {
                match GuestSteps::leave(table, &mut look(table, view, context)) {
                    true => AGAIN,
                    false => NOW,
                }
            }
            InternalBreakpoint::GuestHandlesInt3 => {
                self.hits.follow_guest_step(table, view, context);
                NOW
            }
            // Both happen once and change the sites that are hit here.
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

    /// Handles the guest's write of its text. It is noted while the lock is held: nothing is
    /// optimized in between.
    fn follow_write(&self, table: &Table, view: &KernelView, context: &mut HitContext<'_>) -> Turn {
        self.with_control(|control, guest| {
            let ready = control.follow_write(guest, context.regs);
            if ready == Ready::Writes {
                self.hits.follow_guest_write(table, view, context);
            }
            if ready == Ready::Later { AGAIN } else { NOW }
        })
    }

    /// Handles the coming or going of a module. The breakpoint stays.
    fn follow_modules(&self, event: ModuleEvent) -> Turn {
        self.with_control(|control, guest| match control.follow_modules(guest, event, Wait::No) {
            Ready::Later => AGAIN,
            Ready::Now | Ready::Writes => NOW,
        })
    }
}
