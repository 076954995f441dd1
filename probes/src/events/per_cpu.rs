//! The trace by vCPU: what readers of one vCPU's events have taken, and the numbers of the file
//! `stats`.

use exoprobe_guest::GuestTime;

use super::hit::Hit;

/// One vCPU's part of the trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTrace {
    /// Sequence number before which its events were taken by readers of this vCPU.
    from: u64,
    /// Events that the store dropped.
    overrun: u64,
    /// Events that readers took.
    read: u64,
    /// Dropped events that no reader has counted.
    lost: u64,
    /// Synthetic events that were not made.
    unmade: u64,
}

impl CpuTrace {
    /// One that begins anew at a sequence number.
    pub(super) fn from(next: u64) -> Self {
        Self { from: next, ..Self::default() }
    }

    /// Notes that the store dropped an event, which may have been taken.
    pub(super) fn overrun_at(&mut self, seq: u64) {
        if seq >= self.from {
            self.overrun += 1;
            self.lost += 1;
        }
    }

    pub(super) fn note_unmade(&mut self, count: u64) {
        self.unmade += count;
    }
}

/// All vCPUs that had an event.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuTraces(Vec<CpuTrace>);

/// Numbers of one vCPU's events in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStatistics {
    /// Events that are there.
    pub entries: u64,
    /// Events that the store dropped, since the trace was cleared.
    pub overrun: u64,
    /// Memory of those that are there.
    pub bytes: usize,
    /// Guest microseconds of the oldest; 0 if there is none.
    pub oldest_micros: u64,
    /// Events that readers took.
    pub read: u64,
    /// Synthetic events that were not made, since the trace was cleared.
    pub unmade: u64,
}

impl CpuTraces {
    pub(super) fn of(&mut self, cpu: u8) -> &mut CpuTrace {
        let index = usize::from(cpu);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, CpuTrace::default);
        }
        &mut self.0[index]
    }

    fn get(&self, cpu: u8) -> CpuTrace {
        self.0.get(usize::from(cpu)).copied().unwrap_or_default()
    }

    fn some(&self, cpu: Option<u8>) -> impl Iterator<Item = &CpuTrace> {
        let is_it = move |index: usize| cpu.is_none_or(|cpu| usize::from(cpu) == index);
        self.0.iter().enumerate().filter(move |(index, _)| is_it(*index)).map(|(_, cpu)| cpu)
    }

    /// Selects the events of one vCPU or all that no reader of a vCPU has taken.
    pub(super) fn select(&self, cpu: Option<u8>) -> impl Fn(u64, &Hit) -> bool + use<'_> {
        move |seq, hit| cpu.is_none_or(|cpu| cpu == hit.vcpu) && seq >= self.get(hit.vcpu).from
    }

    /// Sequence number before which a reader finds nothing.
    pub(super) fn first(&self, cpu: Option<u8>) -> u64 {
        cpu.map_or(0, |cpu| self.get(cpu).from)
    }

    /// Number of events that were dropped or taken.
    pub(super) fn passed(&self, cpu: Option<u8>) -> u64 {
        self.some(cpu).map(|cpu| cpu.overrun + cpu.read).sum()
    }

    /// Dropped events that no reader has counted.
    pub(super) fn lost(&self, cpu: Option<u8>) -> u64 {
        self.some(cpu).map(|cpu| cpu.lost).sum()
    }

    /// The same, for a reader that is told now.
    pub(super) fn take_lost(&mut self, cpu: Option<u8>) -> u64 {
        match cpu {
            Some(cpu) => std::mem::take(&mut self.of(cpu).lost),
            None => self.0.iter_mut().map(|cpu| std::mem::take(&mut cpu.lost)).sum(),
        }
    }

    /// Notes that a reader of one vCPU or all took hits before a sequence number.
    pub(super) fn take(&mut self, cpu: Option<u8>, hits: &[Hit], next: u64) {
        hits.iter().for_each(|hit| self.of(hit.vcpu).read += 1);
        if let Some(cpu) = cpu {
            let cpu = self.of(cpu);
            cpu.from = cpu.from.max(next);
        }
    }

    /// Statistics of a vCPU whose events these are.
    pub(super) fn statistics<'a>(
        &self,
        cpu: u8,
        hits: impl Iterator<Item = &'a Hit>,
    ) -> CpuStatistics {
        let CpuTrace { overrun, read, unmade, .. } = self.get(cpu);
        let mut found = CpuStatistics { overrun, read, unmade, ..CpuStatistics::default() };
        for hit in hits {
            if found.entries == 0 {
                found.oldest_micros = hit.origin.clock.micros(GuestTime(hit.record.time));
            }
            found.entries += 1;
            found.bytes += hit.bytes();
        }
        found
    }
}
