//! A breakpoint without an engine: what every breakpoint costs at least.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::{BreakpointAction, ExitHook, Gva, HitContext, KernelEntry};

/// An engine's hook, but for one int3 that is passed over: its registers are read and written, no
/// more.
pub(crate) struct Bare {
    engine: Arc<dyn ExitHook>,
    int3: AtomicU64,
}

impl Bare {
    pub(crate) fn new(engine: Arc<dyn ExitHook>) -> Self {
        Self { engine, int3: AtomicU64::new(0) }
    }

    pub(crate) fn pass_over(&self, int3: Gva) {
        self.int3.store(int3.0, Ordering::SeqCst);
    }
}

impl ExitHook for Bare {
    fn breakpoint(&self, context: &mut HitContext<'_>) -> BreakpointAction {
        if context.regs.rip != self.int3.load(Ordering::Relaxed) {
            return self.engine.breakpoint(context);
        }
        context.regs.rip += 1;
        BreakpointAction::Resume
    }

    fn release(&self, context: &mut HitContext<'_>) {
        self.engine.release(context);
    }

    fn kernel_entered(&self, entry: &KernelEntry) -> bool {
        self.engine.kernel_entered(entry)
    }

    fn reset(&self) {
        self.engine.reset();
    }
}
