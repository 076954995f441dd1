//! Counts of a vCPU's exits from KVM_RUN, by reason.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitKind {
    Breakpoint,
    Step,
    Port,
    Mmio,
    Msr,
    Interrupted,
    Other,
}

const KINDS: usize = ExitKind::Other as usize + 1;

/// The counters of one vCPU: its thread writes, all threads read.
#[derive(Debug, Default)]
pub(super) struct ExitCounters([AtomicU64; KINDS]);

impl ExitCounters {
    pub(super) fn count(&self, kind: ExitKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> ExitCounts {
        let of = |kind: ExitKind| self.0[kind as usize].load(Ordering::Relaxed);
        ExitCounts {
            breakpoint: of(ExitKind::Breakpoint),
            step: of(ExitKind::Step),
            port: of(ExitKind::Port),
            mmio: of(ExitKind::Mmio),
            msr: of(ExitKind::Msr),
            interrupted: of(ExitKind::Interrupted),
            other: of(ExitKind::Other),
        }
    }
}

/// Returns of KVM_RUN to user space, by kind, since the machine was made. Exits that KVM handles
/// itself are not included: see [`crate::Vm::kvm_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ExitCounts {
    /// int3s, as KVM_EXIT_DEBUG or as an emulation failure: a probe's and the guest's own.
    pub breakpoint: u64,
    /// Single steps (see [`crate::Vm::single_step`]).
    pub step: u64,
    /// Port reads and writes.
    pub port: u64,
    /// Reads and writes of guest-physical addresses without memory.
    pub mmio: u64,
    /// Filtered writes of model-specific registers.
    pub msr: u64,
    /// KVM_RUN left without an exit of the guest: the vCPU was taken out of it (EINTR), or waits
    /// for the start-up message of an application processor (EAGAIN).
    pub interrupted: u64,
    /// All others.
    pub other: u64,
}

impl ExitCounts {
    /// Each kind's name and count.
    #[must_use]
    pub fn kinds(&self) -> [(&'static str, u64); 7] {
        [
            ("breakpoint", self.breakpoint),
            ("step", self.step),
            ("port", self.port),
            ("mmio", self.mmio),
            ("msr", self.msr),
            ("interrupted", self.interrupted),
            ("other", self.other),
        ]
    }

    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.kinds().iter().map(|(_, count)| count).sum()
    }

    /// The exits since `earlier`, an older snapshot of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &Self, of_both: fn(u64, u64) -> u64) -> Self {
        Self {
            breakpoint: of_both(self.breakpoint, other.breakpoint),
            step: of_both(self.step, other.step),
            port: of_both(self.port, other.port),
            mmio: of_both(self.mmio, other.mmio),
            msr: of_both(self.msr, other.msr),
            interrupted: of_both(self.interrupted, other.interrupted),
            other: of_both(self.other, other.other),
        }
    }
}

impl Add for ExitCounts {
    type Output = Self;

    /// The counts of two vCPUs together.
    fn add(self, other: Self) -> Self {
        self.with(&other, u64::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_own_name() {
        let counters = ExitCounters::default();
        let kinds = [
            ExitKind::Breakpoint,
            ExitKind::Step,
            ExitKind::Port,
            ExitKind::Mmio,
            ExitKind::Msr,
            ExitKind::Interrupted,
            ExitKind::Other,
        ];
        assert_eq!(kinds.len(), KINDS);
        for (index, kind) in kinds.into_iter().enumerate() {
            let before = counters.snapshot();
            (0..=index).for_each(|_| counters.count(kind));
            let new = counters.snapshot().since(&before);
            assert_eq!(new.total(), index as u64 + 1);
            assert_eq!(new.kinds()[index].0, format!("{kind:?}").to_lowercase());
            assert_eq!(new.kinds()[index].1, index as u64 + 1);
        }
        let now = counters.snapshot();
        assert_eq!((now + now).since(&now), now);
        assert_eq!((now + now).total(), 56);
    }
}
