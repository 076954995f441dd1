//! What detours write, and where: blocks with their counters, rings, and the detours' own memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_vmm::paging::PAGE_SIZE;
use exoprobe_vmm::{Gva, HiddenMemory};

use super::guest::Guest;
use super::kernel::Kernel;
use super::probe::{Books, Probe};
use super::text;
use crate::detour::{Block, Detour, GuestRecord, GuestRing, Surroundings, Task};

/// Blocks, and so probes at optimized places, at a time.
const BLOCKS: u64 = 4096;
const COUNTER: u64 = 8;
/// Bytes of a ring's data, as powers of two, the least first.
const RING_BITS: Range<u32> = 12..32;
/// Bytes of hidden memory that detours are given at a time.
const CELL: u64 = CELL_LEN as u64;
const CELL_LEN: usize = 64;

/// The host's side of all that detours write.
#[derive(Default)]
pub(crate) struct Rings {
    rings: Vec<GuestRing>,
    /// Offset of the first counter in hidden memory; `None` until that is mapped.
    counters: Option<u64>,
    blocks: Vec<Option<Used>>,
    /// Where to look for a free block first.
    next: usize,
    around: Option<Surroundings>,
    /// What is added to the guest's time-stamp counter to have its time ([`exoprobe_vmm::GuestTime`]).
    clock: Option<u64>,
}

/// A block that detours have.
struct Used {
    probe: Arc<Probe>,
    task: Task,
    /// The counter, when it was last looked at.
    seen: u64,
}

impl Rings {
    /// Everything about the guest is void.
    pub(super) fn forget_guest(&mut self) {
        *self = Self::default();
    }

    /// Where detours find things; lays the data window out when called for the first time.
    pub(super) fn surroundings(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
    ) -> Result<Surroundings, &'static str> {
        if let Some(around) = self.around {
            return Ok(around);
        }
        let window =
            guest.hidden().data_window().ok_or("not-mapped: hidden memory is not mapped")?;
        let vcpus = u64::from(guest.vcpus());
        let (cpu, current) = (kernel.cpu_number(), kernel.current_task());
        if cpu.is_none() && vcpus > 1 {
            return Err("cpu: the kernel does not tell where it has the CPU's number");
        }
        let counters = BLOCKS * COUNTER;
        let stride = (window.len - counters) / vcpus / PAGE_SIZE * PAGE_SIZE;
        let fits = |len: &u64| GuestRing::bytes(*len) <= stride;
        let len = RING_BITS.rev().map(|bit| 1 << bit).find(fits);
        let len = len.ok_or("cpu: there are too many vCPUs for their rings")?;
        let base = window.offset + counters;
        self.rings = (0..vcpus)
            .map(|index| GuestRing::new(guest.hidden(), base + index * stride, len))
            .collect();
        self.counters = Some(window.offset);
        let narrow = |value: u64| u32::try_from(value).expect("less than hidden memory");
        let rings = window.gva.wrapping_add(counters);
        let around =
            Surroundings { rings, stride: narrow(stride), mask: narrow(len - 1), cpu, current };
        self.around = Some(around);
        Ok(around)
    }

    /// Learns how records tell time, once.
    pub(super) fn set_clock(&mut self, read: impl FnOnce() -> u64) {
        self.clock.get_or_insert_with(read);
    }

    /// A block for each task; `None` when there are not so many. [`Self::surroundings`] comes first.
    pub(super) fn blocks(
        &mut self,
        hidden: &HiddenMemory,
        tasks: Vec<(Arc<Probe>, Task)>,
    ) -> Option<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        for (probe, task) in tasks {
            let Some(number) = self.free_block() else {
                blocks.iter().for_each(|block| self.release(hidden, block.number));
                return None;
            };
            let offset = self.counters? + u64::from(number) * COUNTER;
            hidden.store_u64(offset, 0);
            let counter = hidden.data_window()?.gva.wrapping_add(u64::from(number) * COUNTER);
            self.blocks[usize::from(number)] = Some(Used { probe, task: task.clone(), seen: 0 });
            blocks.push(Block { number, counter, task });
        }
        Some(blocks)
    }

    fn free_block(&mut self) -> Option<u16> {
        let most = usize::try_from(BLOCKS).expect("a few thousand");
        let tried = (0..most).map(|step| (self.next + step) % most);
        let number = tried.into_iter().find(|n| self.blocks.get(*n).is_none_or(Option::is_none))?;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, || None);
        }
        self.next = number + 1;
        u16::try_from(number).ok()
    }

    /// A block that no detour has any more.
    pub(super) fn release(&mut self, hidden: &HiddenMemory, number: u16) {
        self.count_block(hidden, usize::from(number));
        if let Some(block) = self.blocks.get_mut(usize::from(number)) {
            *block = None;
        }
    }

    /// Takes what detours wrote since: counts into the probes' books, records by `take`, with their vCPU.
    pub(super) fn drain(
        &mut self,
        hidden: &HiddenMemory,
        mut take: impl FnMut(u8, &Arc<Probe>, GuestRecord),
    ) {
        let clock = self.clock.unwrap_or_default();
        let (rings, blocks) = (&mut self.rings, &self.blocks);
        let used = |number: u16| blocks.get(usize::from(number)).and_then(Option::as_ref);
        let args_of = |number| match &used(number)?.task {
            Task::Record(values) => Some(values.len()),
            Task::Count => None,
        };
        for (vcpu, ring) in (0u8..).zip(rings) {
            let drained = ring.drain(hidden, args_of, |mut record| {
                record.time = record.time.wrapping_add(clock);
                let Some(block) = used(record.number) else { return };
                add(&block.probe.books, |books| &books.recorded, 1);
                take(vcpu, &block.probe, record);
            });
            if let Err(error) = drained {
                tracing::warn!(%error, vcpu, "records of optimized probes");
            }
        }
        (0..self.blocks.len()).for_each(|number| self.count_block(hidden, number));
    }

    /// Takes over what a block has counted since it was last looked at.
    fn count_block(&mut self, hidden: &HiddenMemory, number: usize) {
        let Some(counters) = self.counters else { return };
        let Some(block) = self.blocks.get_mut(number).and_then(Option::as_mut) else { return };
        let now = hidden.load_u64(counters + number as u64 * COUNTER);
        let since = now.wrapping_sub(block.seen);
        if since == 0 {
            return;
        }
        block.seen = now;
        match block.task {
            Task::Count => add(&block.probe.books, |books| &books.filtered, since),
            Task::Record(_) => add(&block.probe.books, |books| &books.lost, since),
        }
    }
}

/// Hits, and what they came to.
fn add(books: &Books, to: impl Fn(&Books) -> &AtomicU64, hits: u64) {
    books.hits.fetch_add(hits, Ordering::Relaxed);
    to(books).fetch_add(hits, Ordering::Relaxed);
}

/// A detour in hidden memory.
pub(super) struct Placed {
    pub(super) detour: Detour,
    pub(super) start: Gva,
    pub(super) cells: Range<usize>,
}

/// Memory for detours: the detour window in cells.
#[derive(Default)]
pub(super) struct Cells {
    /// Whether each is in use; empty until the window is known.
    used: Vec<bool>,
    /// Where to look first.
    next: usize,
}

impl Cells {
    /// Places a detour that `assemble` makes for an address.
    pub(super) fn place(
        &mut self,
        hidden: &HiddenMemory,
        assemble: impl Fn(Gva) -> Result<Detour, Arc<str>>,
    ) -> Result<Placed, Arc<str>> {
        let window = hidden.detour_window().ok_or("not-mapped: hidden memory is not mapped")?;
        if self.used.is_empty() {
            // In a guest from a snapshot, tasks may still be in detours of before.
            let mut code = vec![0; usize::try_from(window.len).expect("below 2 MiB")];
            hidden.read(window.offset, &mut code);
            let cells = code.chunks_exact(CELL_LEN);
            self.used = cells.map(|cell| cell.iter().any(|byte| *byte != 0)).collect();
        }
        // Its length hardly depends on where it is: branches in it may be longer.
        let trial = assemble(window.gva)?;
        let cells = (trial.bytes.len() as u64 + CELL / 2).div_ceil(CELL);
        let cells = usize::try_from(cells).expect("a few");
        let first = self.find(cells).ok_or("no-room: the memory for detours is full")?;
        let offset = first as u64 * CELL;
        let start = window.gva.wrapping_add(offset);
        let detour = assemble(start)?;
        let len = cells * CELL_LEN;
        if detour.bytes.len() > len {
            return Err("assembler: a detour grew".into());
        }
        self.used[first..first + cells].fill(true);
        self.next = first + cells;
        // Speculation that runs on stops there.
        let mut image = vec![text::INT3; len];
        image[..detour.bytes.len()].copy_from_slice(&detour.bytes);
        hidden.write(window.offset + offset, &image);
        Ok(Placed { detour, start, cells: first..first + cells })
    }

    fn find(&mut self, cells: usize) -> Option<usize> {
        let free = |from: &usize| {
            self.used.get(*from..from + cells).is_some_and(|range| range.iter().all(|used| !used))
        };
        (self.next..self.used.len()).chain(0..self.next).find(free)
    }

    /// Gives cells back.
    pub(super) fn free(&mut self, hidden: &HiddenMemory, cells: Range<usize>) {
        let Some(window) = hidden.detour_window() else { return };
        let offset = window.offset + cells.start as u64 * CELL;
        hidden.write(offset, &vec![0; cells.len() * CELL_LEN]);
        self.used[cells].fill(false);
    }
}
