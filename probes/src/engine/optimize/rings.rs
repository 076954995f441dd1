//! The memory that detours write: blocks with their counters, and rings.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::hidden::Window;
use exoprobe_guest::layout::{HIDDEN_SIZE, MORE_DATA_SIZE};
use exoprobe_guest::{GuestTime, Gva, HiddenMemory};

use crate::definition::{Field, Filter};
use crate::detour::{
    Block, BlockAction, COUNTER, Current, DetourEnv, GuestRecord, GuestRing, Mapped, PoolMemory,
    RETURN_VALUES, RecordShape,
};
use crate::engine::kernel::mapped::mapped;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::filter::SplitFilter;
use crate::engine::optimize::text_arrays::RecordBytes;
use crate::engine::probe::registered::{Counters, Probe};
use crate::events::{Record, Returned};
use exoprobe_guest::Guest;

/// Number of blocks before the pools.
const BLOCKS: u64 = 4096;
/// Maximum number of blocks, and so of probes at optimized places: those after [`BLOCKS`] are in
/// the
/// extension of hidden memory. Records have 16 bits for the number.
const ALL_BLOCKS: u64 = 1 << 16;
const _: () = assert!((ALL_BLOCKS - BLOCKS) * COUNTERS <= MORE_DATA_SIZE);
/// Bytes of a block's counters.
const COUNTERS: u64 = 2 * COUNTER;
/// Each ring begins at a multiple of this.
const CACHE_LINE: u64 = 64;
/// Sizes of a ring's data in bytes, as powers of two, ascending.
const RING_BITS: Range<u32> = 12..32;
/// Bytes of a record with four values.
const USUAL_RECORD: u64 = 64;

/// The host's side of the memory that detours write.
#[derive(Default)]
pub(crate) struct Rings {
    rings: Vec<GuestRing>,
    blocks: Vec<Option<Used>>,
    /// Bytes of records in each ring.
    len: u64,
    /// Number of blocks in use.
    taken: u64,
    /// Index at which the search for a free block begins.
    next: usize,
    /// Released blocks whose records may still be in the rings.
    leaving: Vec<Draining>,
    env: Option<DetourEnv>,
    /// Offset that is added to the guest's time-stamp counter to get guest time
    /// ([`exoprobe_guest::GuestTime`]).
    clock: Option<u64>,
}

/// A block in use by a detour.
struct Used {
    probe: Arc<Probe>,
    task: BlockAction,
    /// The texts and arrays among the values of its records.
    in_bytes: RecordBytes,
    /// The part of the probe's filter that its records are still to pass.
    later: Option<Arc<Filter<Field>>>,
    /// The counters as last read.
    seen: [u64; 2],
    /// For return code: its pool, and the number of missed calls as last read.
    pool: Option<(PoolMemory, u64)>,
}

impl Used {
    fn new(probe: Arc<Probe>, task: BlockAction) -> Self {
        let split = match task {
            BlockAction::Record { .. } => SplitFilter::of(probe.filter().as_deref()),
            BlockAction::Count | BlockAction::Follow { .. } => SplitFilter::default(),
        };
        let later = split.later.map(Arc::new);
        let before = if probe.returns().is_some() { RETURN_VALUES } else { 0 };
        let (values, list) = (task.values().len(), &probe.arguments().list);
        let in_bytes = RecordBytes::new(task.in_bytes(), values, (list, before));
        Self { probe, in_bytes, later, task, seen: [0; 2], pool: None }
    }
}

/// A released block. It is free when all records written before its release have been read.
struct Draining {
    number: u16,
    /// By ring: the write position at the release.
    heads: Vec<u64>,
}

/// The window of pools: after the counters.
pub(crate) fn pool_window(hidden: &HiddenMemory) -> Option<Window> {
    let data = hidden.data_window()?;
    let before = BLOCKS * COUNTERS;
    let (gva, offset) = (data.gva.wrapping_add(before), data.offset + before);
    Some(Window { gva, offset, len: data.len - before })
}

/// A record, with its probe.
pub(crate) struct Found<'a> {
    pub(crate) vcpu: u8,
    pub(crate) probe: &'a Arc<Probe>,
    /// The record is of a return; [`RETURN_VALUES`](crate::detour::RETURN_VALUES) come first.
    pub(crate) is_return: bool,
    /// The record contains the current task.
    pub(crate) has_task: bool,
    /// The texts and arrays among its values.
    pub(crate) in_bytes: &'a RecordBytes,
    /// The filter that the record is still to pass.
    pub(crate) later: Option<&'a Arc<Filter<Field>>>,
    /// Offset that turns the guest's time-stamp counter into guest time.
    pub(crate) clock: u64,
}

impl Found<'_> {
    /// The record in the form in which it is stored.
    pub(crate) fn record(&self, found: GuestRecord) -> Record {
        let time = found.time.wrapping_add(self.clock);
        let task = self.has_task.then_some(found.task);
        let (values, text) = self.in_bytes.values_of(found);
        let mut values = values.into_iter();
        let mut returned = || {
            let (to, entered) = (Gva(values.next()??), values.next()??);
            Some(Returned { to, entered: GuestTime(entered.wrapping_add(self.clock)) })
        };
        let returned = if self.is_return { returned() } else { None };
        let (probe, args, stack, text) = (self.probe.id, values.collect(), Vec::new(), text.into());
        Record { probe, time, task, returned, args, stack, text }
    }
}

impl Rings {
    /// Drops all state: everything about the guest is void.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the addresses that detours use. The first call lays out the data window.
    pub(crate) fn detour_env(
        &mut self,
        guest: &dyn Guest,
        kernel: &Kernel,
    ) -> Result<DetourEnv, &'static str> {
        guest.hidden().data_window().ok_or("not-mapped: hidden memory is not mapped")?;
        let rings = guest.hidden().map_rings(guest.ram(), kernel.view.mode);
        let window =
            rings.map_err(|_| "not-mapped: the guest uses the addresses of the rings itself")?;
        if let Some(env) = &self.env {
            return Ok(env.clone());
        }
        let probed = Self::probed_kernel(guest, kernel)?;
        let vcpus = u64::from(guest.vcpus());
        let (stride, len) =
            ring_sizes(window.len, vcpus).ok_or("cpu: there are too many vCPUs for their rings")?;
        self.rings = (0..vcpus)
            .map(|index| GuestRing::new(guest.hidden(), window.offset + index * stride, len))
            .collect();
        self.len = len;
        let narrow = |value: u64| u32::try_from(value).expect("less than hidden memory");
        let env = DetourEnv {
            rings: window.gva,
            stride: narrow(stride),
            mask: narrow(len - 1),
            ..probed
        };
        self.env = Some(env.clone());
        Ok(env)
    }

    /// The part of a detour's environment that is the kernel's own, with rings of no length.
    /// Changes nothing.
    pub(crate) fn probed_kernel(
        guest: &dyn Guest,
        kernel: &Kernel,
    ) -> Result<DetourEnv, &'static str> {
        let cpu = kernel.cpu_number();
        let current = kernel.current_task().zip(kernel.tasks()).map(|(task, tasks)| Current {
            task,
            pid: tasks.layout.pid,
            comm: tasks.layout.comm,
        });
        if cpu.is_none() && guest.vcpus() > 1 {
            return Err("cpu: the address of the CPU's number is not known");
        }
        let hidden = guest.hidden().base().unwrap_or_default();
        Ok(DetourEnv {
            rings: hidden,
            stride: 0,
            mask: 0,
            cpu,
            current,
            mapped: mapped(&kernel.memory(), &kernel.symbols, guest.ram()),
            hidden: Mapped { start: hidden, len: HIDDEN_SIZE },
            guards_loads: kernel.guards_loads(),
            in_kernel: true,
        })
    }

    /// Reads the offset of the guest's clock, once. Returns true if it is known.
    pub(crate) fn learn_clock<E>(&mut self, read: impl FnOnce() -> Result<u64, E>) -> bool {
        self.clock = self.clock.or_else(|| read().ok());
        self.clock.is_some()
    }

    /// Returns true if each ring, if there are any, has room for so many records of four values.
    pub(crate) fn have_room_for(&self, records: u64) -> bool {
        self.rings.is_empty() || self.len / USUAL_RECORD >= records
    }

    /// Offset that is added to the guest's time-stamp counter to get guest time.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.unwrap_or_default()
    }

    /// Takes a block for each task; `None` if too few are free. [`Self::detour_env`] must be
    /// called first.
    pub(crate) fn blocks(
        &mut self,
        hidden: &HiddenMemory,
        tasks: Vec<(Arc<Probe>, BlockAction)>,
    ) -> Option<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        for (probe, task) in tasks {
            if let BlockAction::Follow { pool, .. } = task {
                // The block belongs to the code that the calls return to.
                blocks.push(Block { number: 0, counter: pool.at, task });
                continue;
            }
            let Some(number) = self.free_block(hidden) else {
                let own = blocks.iter().filter(|block| !block.task.is_follow());
                own.for_each(|block| self.release(hidden, block.number));
                return None;
            };
            let Place { gva: counter, offset } = place_of(hidden, u64::from(number))?;
            let words = [offset, offset + COUNTER];
            words.into_iter().for_each(|at| hidden.store_u64(at, 0));
            self.blocks[usize::from(number)] = Some(Used::new(probe, task.clone()));
            self.taken += 1;
            blocks.push(Block { number, counter, task });
        }
        Some(blocks)
    }

    /// Records that the block belongs to the code to which the calls of a pool return.
    pub(crate) fn set_pool(&mut self, number: u16, pool: PoolMemory) {
        if let Some(Some(block)) = self.blocks.get_mut(usize::from(number)) {
            block.pool = Some((pool, 0));
        }
    }

    /// Returns true if there are too few free blocks for so many more, until the extension of
    /// hidden memory is mapped.
    pub(crate) fn needs_more(&self, hidden: &HiddenMemory, blocks: usize) -> bool {
        hidden.more_data_window().is_none() && self.taken + blocks as u64 > BLOCKS
    }

    fn free_block(&mut self, hidden: &HiddenMemory) -> Option<u16> {
        let has_more = hidden.more_data_window().is_some();
        let most = if has_more { ALL_BLOCKS } else { BLOCKS };
        if self.taken >= most {
            return None;
        }
        let most = usize::try_from(most).expect("some thousands");
        let tried = (0..most).map(|step| (self.next + step) % most);
        let number = tried.into_iter().find(|n| self.blocks.get(*n).is_none_or(Option::is_none))?;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, || None);
        }
        self.next = number + 1;
        u16::try_from(number).ok()
    }

    /// Releases a block that no detour uses any more. It is reused after its last records have been
    /// read.
    pub(crate) fn release(&mut self, hidden: &HiddenMemory, number: u16) {
        let heads = self.rings.iter().map(|ring| ring.head(hidden)).collect();
        self.leaving.push(Draining { number, heads });
        self.let_go(hidden);
    }

    /// Frees the released blocks whose records have all been read.
    fn let_go(&mut self, hidden: &HiddenMemory) {
        let (gone, leaving) = std::mem::take(&mut self.leaving).into_iter().partition(|leaving| {
            let mut rings = self.rings.iter().zip(&leaving.heads);
            rings.all(|(ring, head)| ring.has_read(*head))
        });
        self.leaving = leaving;
        let gone: Vec<Draining> = gone;
        for Draining { number, .. } in gone {
            self.count_block(hidden, usize::from(number));
            if let Some(block) = self.blocks.get_mut(usize::from(number))
                && block.take().is_some()
            {
                self.taken -= 1;
            }
        }
    }

    /// Passes the records that detours wrote since the last call to `take`.
    pub(crate) fn drain(
        &mut self,
        hidden: &HiddenMemory,
        mut take: impl FnMut(Found<'_>, GuestRecord),
    ) {
        let clock = self.clock();
        let has_task = self.env.as_ref().is_some_and(|env| env.current.is_some());
        let (rings, blocks) = (&mut self.rings, &self.blocks);
        let used = |number: u16| blocks.get(usize::from(number)).and_then(Option::as_ref);
        let shape_of = |number| {
            let Used { task, in_bytes, .. } = used(number)?;
            match task {
                BlockAction::Record { values, .. } => {
                    Some(RecordShape { args: values.len(), in_bytes: &in_bytes.places })
                }
                BlockAction::Count | BlockAction::Follow { .. } => None,
            }
        };
        for (vcpu, ring) in (0u8..).zip(rings) {
            let drained = ring.drain(hidden, shape_of, |record| {
                let Some(block) = used(record.number) else { return };
                add(&block.probe.counters, |counters| &counters.recorded, 1);
                let (probe, is_return) = (&block.probe, block.pool.is_some());
                let found = Found {
                    vcpu,
                    probe,
                    is_return,
                    has_task,
                    in_bytes: &block.in_bytes,
                    later: block.later.as_ref(),
                    clock,
                };
                take(found, record);
            });
            if let Err(error) = drained {
                tracing::warn!(%error, vcpu, "records of optimized probes");
                // The ring begins anew.
                let heads = self.leaving.iter_mut();
                heads.filter_map(|l| l.heads.get_mut(usize::from(vcpu))).for_each(|head| *head = 0);
            }
        }
        self.let_go(hidden);
    }

    /// Adds the hits that detours counted since the last call to the probes' counters.
    pub(crate) fn count(&mut self, hidden: &HiddenMemory) {
        (0..self.blocks.len()).for_each(|number| self.count_block(hidden, number));
    }

    /// Adds the hits that a block has counted since the last call.
    fn count_block(&mut self, hidden: &HiddenMemory, number: usize) {
        let Some(Place { offset, .. }) = place_of(hidden, number as u64) else { return };
        let Some(block) = self.blocks.get_mut(number).and_then(Option::as_mut) else { return };
        if let Some((pool, seen)) = &mut block.pool {
            let missed = pool.missed(hidden);
            let since = missed.wrapping_sub(*seen);
            *seen = missed;
            block.probe.counters.nmissed.fetch_add(since, Ordering::Relaxed);
        }
        let now = [offset, offset + COUNTER].map(|at| hidden.load_u64(at));
        let [first, second] = [0, 1].map(|n| now[n].wrapping_sub(block.seen[n]));
        block.seen = now;
        let counters = &block.probe.counters;
        match block.task {
            BlockAction::Count => add(counters, |counters| &counters.filtered, first),
            BlockAction::Record { .. } => {
                add(counters, |counters| &counters.lost, first);
                add(counters, |counters| &counters.filtered, second);
            }
            BlockAction::Follow { .. } => {}
        }
    }
}

/// Where a block's counters are.
struct Place {
    gva: Gva,
    /// Offset in hidden memory.
    offset: u64,
}

/// The counters of block `number`; `None` while their window is not mapped.
fn place_of(hidden: &HiddenMemory, number: u64) -> Option<Place> {
    let (window, index) = match number.checked_sub(BLOCKS) {
        None => (hidden.data_window()?, number),
        Some(index) => (hidden.more_data_window()?, index),
    };
    let before = index * COUNTERS;
    Some(Place { gva: window.gva.wrapping_add(before), offset: window.offset + before })
}

/// The distance between the rings of so many vCPUs in a window, and the bytes of each one's data.
fn ring_sizes(window: u64, vcpus: u64) -> Option<(u64, u64)> {
    let stride = window / vcpus / CACHE_LINE * CACHE_LINE;
    let fits = |len: &u64| GuestRing::bytes(*len) <= stride;
    Some((stride, RING_BITS.rev().map(|bit| 1 << bit).find(fits)?))
}

/// Adds hits to the hit counter and to the counter of their result.
fn add(counters: &Counters, to: impl Fn(&Counters) -> &AtomicU64, hits: u64) {
    if hits == 0 {
        return;
    }
    counters.hits.fetch_add(hits, Ordering::Relaxed);
    to(counters).fetch_add(hits, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use exoprobe_guest::hidden::RINGS;

    use super::*;

    /// Bytes of the rings of so many vCPUs, shared ones or each its own.
    fn rings_of(vcpus: u64, window: u64) -> u64 {
        let (stride, len) = ring_sizes(window, vcpus).unwrap();
        assert!(GuestRing::bytes(len) <= stride && stride * vcpus <= window);
        len
    }

    #[test]
    fn each_of_four_vcpus_has_4_mib_and_sixty_four_can_share_them() {
        for (vcpus, kib) in [(1, 4096), (2, 2048), (3, 1024), (16, 256), (33, 64), (64, 64)] {
            assert_eq!(rings_of(vcpus, RINGS.len), kib << 10, "{vcpus} vCPUs share");
        }
        for (vcpus, kib) in [(2, 4096), (4, 4096), (5, 2048), (8, 2048), (16, 1024), (64, 256)] {
            let window = (vcpus * 4).min(16) + 2;
            assert_eq!(rings_of(vcpus, window << 20), kib << 10, "{vcpus} vCPUs");
        }
        assert_eq!(ring_sizes(4096, 64), None);
    }
}
