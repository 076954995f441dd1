//! Samples: hits without a place in the guest, taken of all vCPUs at once from outside.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use exoprobe_guest::paging::PagingMode;
use exoprobe_guest::{Gva, Registers};
use exoprobe_introspect::unwind::user_frames;

use crate::definition::{Action, FetchArg, ProbeDefinition};
use crate::engine::control::boot::Purpose;
use crate::engine::control::place::Place;
use crate::engine::control::registry::{NOT_BEGUN, Registered, State};
use crate::engine::control::state::Control;
use crate::engine::facade::backtrace::{Addresses, Known};
use crate::engine::facade::engine::Engine;
use crate::engine::kernel::memory::HitMemory;
use crate::engine::kernel::running::Kernel;
use crate::engine::probe::handlers::{Hit, Kprobe};
use crate::engine::probe::registered::Probe;
use crate::error::ProbeError;
use crate::events::{Consumer, STACK_DEPTH};

/// A sampler to add: what is read of each vCPU at a sample.
pub struct NewSampler {
    /// Group of its name.
    pub group: String,
    /// Its name.
    pub event: String,
    /// The values: registers, the current task, and memory that these lead to.
    pub args: Vec<FetchArg>,
    /// Record the back-trace: the kernel's, which a sample in user mode does not have, and the
    /// user's if the consumer asks for it.
    pub stack: bool,
    /// Takes the samples.
    pub consumer: Consumer,
}

/// Counts of a sampler, of all vCPUs together: `taken` have gone to the consumer, or are about to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples that were recorded.
    pub taken: u64,
    /// Samples that were due and not taken in time, and those whose record had no room.
    pub lost: u64,
}

impl SampleCounts {
    fn of(probe: &Probe) -> Self {
        let counters = &probe.counters;
        let (taken, lost) = (&counters.recorded, &counters.lost);
        Self { taken: taken.load(Ordering::Relaxed), lost: lost.load(Ordering::Relaxed) }
    }
}

impl Engine {
    /// Adds a sampler. It has no samples before [`Self::sample`]. Returns its number, which no
    /// probe has.
    ///
    /// # Errors
    /// As [`Self::register`] for arguments that cannot be resolved; nothing is added.
    pub fn add_sampler(&self, new: NewSampler) -> Result<u32, ProbeError> {
        let NewSampler { group, event, args, stack, consumer } = new;
        let actions = if stack { vec![Action::Stack] } else { Vec::new() };
        let (group, event) = (Some(group), Some(event));
        let definition = ProbeDefinition { group, event, args, actions, ..Default::default() };
        let kprobe = Kprobe { consumer: Some(consumer), ..Kprobe::from(definition) };
        let mut control = self.lock();
        let id = control.registry.take_id();
        let probe = Arc::new(Probe::new(id, kprobe.into(), false, self.guest.vcpus()));
        // Of a guest that has stopped or not begun there are no samples yet.
        if let Ok(Some(kernel)) = control.attach(self.guest.as_ref(), Purpose::Question) {
            control.learn_arguments(&kernel, &probe, &nowhere())?;
        }
        let registered = Registered {
            probe,
            symbol: None,
            offset: 0,
            addr: Arc::default(),
            state: State::Pending(NOT_BEGUN.to_owned()),
            _room: None,
            origin: RefCell::default(),
        };
        control.registry.samplers.insert(id, registered);
        Ok(id)
    }

    /// Takes a sample of each vCPU, while all stand still. Each is a record of its vCPU, so that
    /// the consumer gets samples and hits in order of guest time, but for a hit that is being
    /// recorded at that moment: it may come after the sample. `missed` are samples of each vCPU
    /// that were due before: they count as lost. Does nothing while the guest is paused or has
    /// stopped, and before its kernel has booted; a vCPU that the kernel has not started yet has no
    /// samples. Must not be called on a vCPU's thread.
    ///
    /// # Errors
    /// [`ProbeError::Vcpu`], and as [`Self::add_sampler`].
    pub fn sample(&self, sampler: u32, missed: u64) -> Result<(), ProbeError> {
        if self.guest.paused() || self.guest.stopped() {
            return Ok(());
        }
        let mut control = self.lock();
        let Some(registered) = control.registry.samplers.get(&sampler) else { return Ok(()) };
        let probe = Arc::clone(&registered.probe);
        let kernel = control.kernel.running.clone();
        let Some(kernel) = kernel.filter(|kernel| kernel.has_booted()) else { return Ok(()) };
        if !probe.has_arguments() {
            control.learn_arguments(&kernel, &probe, &nowhere())?;
        }
        if probe.actions.contains(&Action::Stack) {
            kernel.learn_orc();
        }
        control.inform_hits(self.guest.as_ref());
        let lost = missed.saturating_mul(self.guest.vcpus().into());
        probe.counters.hits.fetch_add(lost, Ordering::Relaxed);
        probe.counters.lost.fetch_add(lost, Ordering::Relaxed);
        Ok(self.guest.with_vcpus_still(&mut |all| {
            if self.guest.paused() {
                return;
            }
            for (vcpu, registers) in (0..).zip(all) {
                self.sample_vcpu(&control, &kernel, &probe, vcpu, registers);
            }
        })?)
    }

    fn sample_vcpu(
        &self,
        control: &Control,
        kernel: &Kernel,
        probe: &Probe,
        vcpu: u8,
        registers: &Registers,
    ) {
        // Before its start a vCPU has no page tables.
        if PagingMode::of(&registers.sregs).is_err() {
            return;
        }
        let stack = match probe.actions.contains(&Action::Stack) {
            true => self.sampled_stack(control, kernel, probe, registers),
            false => Vec::new(),
        };
        let mut regs = registers.regs;
        // Where a probe's own code runs, the place of the guest's that it stands for.
        regs.rip = self.ip_of(control, kernel, registers).0;
        let known = Known(&registers.sregs);
        let tasks = kernel.tasks().map(|tasks| &**tasks);
        let memory = HitMemory { view: &kernel.view, sregs: &known, tasks };
        let time = self.clock.now();
        let mut hit = Hit { regs: &mut regs, vcpu, time, memory, fault_handler: None, kept: &[] };
        self.hits.recorder.sample(&kernel.symbols, probe, &mut hit, &stack);
    }

    /// The kernel's frames, then those of user mode if the consumer asks for them.
    fn sampled_stack(
        &self,
        control: &Control,
        kernel: &Kernel,
        probe: &Probe,
        registers: &Registers,
    ) -> Vec<u64> {
        let Addresses { kernel: frames, user } =
            self.addresses_of(control, kernel, registers, false);
        let wanted = probe.consumer.as_ref().is_some_and(|consumer| consumer.user_stack);
        let table = self.hits.table.load();
        let known = Known(&registers.sregs);
        let stack = self.probed_stack(&table, kernel, &known);
        let user = user.filter(|_| wanted).into_iter();
        let user = user.flat_map(|user| user_frames(&stack, user)).take(STACK_DEPTH);
        frames.into_iter().take(STACK_DEPTH).chain(user).map(|at| at.0).collect()
    }

    /// The counts of a sampler.
    #[must_use]
    pub fn sample_counts(&self, sampler: u32) -> SampleCounts {
        let control = self.lock();
        let registered = control.registry.samplers.get(&sampler);
        registered.map(|registered| SampleCounts::of(&registered.probe)).unwrap_or_default()
    }

    /// Removes a sampler, once the consumer has all its samples. Returns its counts.
    pub fn remove_sampler(&self, sampler: u32) -> SampleCounts {
        let mut control = self.lock();
        self.drain_locked(&mut control);
        let removed = control.registry.samplers.remove(&sampler);
        removed.map(|registered| SampleCounts::of(&registered.probe)).unwrap_or_default()
    }
}

/// A sampler's place.
fn nowhere() -> Place {
    Place { at: Gva::default(), symbol: None, offset: 0 }
}
