//! What a site needs to be optimized, and why it cannot be.

use std::ops::Range;
use std::sync::Arc;

use exoprobe_vmm::paging::PAGE_SIZE;
use exoprobe_vmm::{Gpa, GuestRam, Gva};

use super::ground::KernelGround;
use super::guest::Guest;
use super::kernel::Kernel;
use super::lifecycle::is_mark;
use super::probe::{Probe, Role};
use super::registry::Registry;
use super::rings::{Placed, Rings};
use super::table::Site;
use super::text;
use crate::definition::{Action, Fetch};
use crate::detour::{Detour, JMP_LEN, Obstacle, Region, Task, Value};
use crate::insn;

/// Most bytes of text that a region is looked for in: its last instruction begins within the jmp, and has 15.
const REGION_MAX: u64 = 64;

/// A detour in hidden memory.
pub(super) struct Code {
    /// Its first address, and the first behind.
    pub(super) start: Gva,
    pub(super) end: Gva,
    pub(super) cells: Range<usize>,
    pub(super) blocks: Vec<u16>,
}

/// A site that is to have a jmp, or has it.
pub(super) struct Candidate {
    pub(super) at: Gva,
    pub(super) region: Arc<Region>,
    pub(super) places: [Gpa; JMP_LEN],
    pub(super) jmp: [u8; JMP_LEN],
    pub(super) code: Code,
}

impl Candidate {
    /// Puts the jmp in place of the int3; says whether that was there, with what should follow it. Every vCPU
    /// must stand still.
    pub(super) fn write(&self, ram: &GuestRam) -> bool {
        text::replace(ram, &self.places, self.at, &self.armed(), &self.jmp).is_ok()
    }

    /// Puts the int3 back in place of the jmp; says whether that was there. Every vCPU must stand still.
    pub(super) fn take_back(&self, ram: &GuestRam) -> bool {
        text::replace(ram, &self.places, self.at, &self.jmp, &self.armed()).is_ok()
    }

    /// What the text holds while the site has an int3.
    fn armed(&self) -> [u8; JMP_LEN] {
        let mut armed = *self.region.covered();
        armed[0] = text::INT3;
        armed
    }
}

/// What a site needs to have a jmp; or why it cannot, by the name of the rule and in words.
pub(super) fn candidate(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Arc<Kernel>,
    rings: &mut Rings,
    site: &Site,
) -> Result<Candidate, Arc<str>> {
    let tasks = tasks(registry, kernel, site)?;
    let region = region(registry, kernel, site.at)?;
    let behind = region.end().0 - site.at.0;
    let mut inner = (1..behind).map(|offset| site.at.wrapping_add(offset));
    if let Some(other) = inner.find(|at| registry.sites.contains_key(at)) {
        return Err(format!("other-probe: another probe is at {other}").into());
    }
    let places = places(kernel, site.at).ok_or("not-mapped: its text is not mapped")?;
    let around = rings.surroundings(guest, kernel)?;
    let blocks = rings.blocks(guest.hidden(), tasks).ok_or("no-room: all counters are in use")?;
    let numbers: Vec<u16> = blocks.iter().map(|block| block.number).collect();
    let made = registry.optimizer.cells.place(guest.hidden(), |at| {
        Detour::assemble(&region, &blocks, &around, at)
            .map_err(|e| format!("assembler: {e}").into())
    });
    match made {
        Ok(Placed { detour, start, cells }) => {
            let end = start.wrapping_add(detour.bytes.len() as u64);
            let entry = start.wrapping_add(detour.entry as u64);
            let code = Code { start, end, cells, blocks: numbers };
            let mut jmp = Vec::with_capacity(JMP_LEN);
            insn::jump_to(site.at, &mut jmp, entry).map_err(|e| format!("assembler: {e}"))?;
            let jmp = jmp.try_into().expect("a jmp rel32 has five bytes");
            Ok(Candidate { at: site.at, places, jmp, region, code })
        }
        Err(why) => {
            numbers.iter().for_each(|number| rings.release(guest.hidden(), *number));
            Err(why)
        }
    }
}

/// What the site's probes want of its detour.
fn tasks(
    registry: &Registry,
    kernel: &Kernel,
    site: &Site,
) -> Result<Vec<(Arc<Probe>, Task)>, Arc<str>> {
    if !registry.optimizer.allowed {
        return Err("off: optimization is switched off".into());
    }
    if !registry.switched_on || !site.armed || site.enabled().next().is_none() {
        return Err("disabled: nothing there is enabled".into());
    }
    if site.clobbered {
        return Err("clobbered: the guest rewrote its text".into());
    }
    if !site.returning.is_empty() || !site.marks.is_empty() || is_mark(&kernel.symbols, site.at) {
        return Err("watched: the engine itself wants to know when it is reached".into());
    }
    if site.probes.iter().any(|probe| probe.post_handler().is_some()) {
        return Err("post-handler: it is to run behind the instruction".into());
    }
    let wanted = site.enabled().map(|probe| Ok((Arc::clone(probe), task(probe)?)));
    wanted.collect::<Result<_, &str>>().map_err(Arc::from)
}

/// What a probe wants, where code in the guest can do that.
fn task(probe: &Probe) -> Result<Task, &'static str> {
    match &probe.role {
        Role::Kretprobe(_) => return Err("return-probe: its calls are followed by the VMM"),
        Role::Kprobe { pre_handler: Some(_), .. } => {
            return Err("handler: its pre-handler runs in the VMM");
        }
        Role::Kprobe { .. } => {}
    }
    match probe.actions.as_slice() {
        [Action::Count] => Ok(Task::Count),
        [Action::Record] => {
            let values = probe.fields().map(|field| match field {
                Fetch::Register(register) => Ok(Value::Register(*register)),
                Fetch::StackPointer => Ok(Value::StackPointer),
                _ => Err("memory: an argument reads memory, which may not be there"),
            });
            values.collect::<Result<_, _>>().map(Task::Record)
        }
        _ => Err("actions: only `record` and `count` are done within the guest"),
    }
}

fn region(registry: &mut Registry, kernel: &Arc<Kernel>, at: Gva) -> Result<Arc<Region>, Arc<str>> {
    if let Some(checked) = registry.optimizer.checked.get(&at) {
        return checked.clone();
    }
    let ground = match &registry.optimizer.ground {
        Some(ground) => Arc::clone(ground),
        None => {
            let ground = Arc::new(KernelGround::new(registry, kernel));
            registry.optimizer.ground = Some(Arc::clone(&ground));
            ground
        }
    };
    let checked = check(registry, kernel, &ground, at).map(Arc::new);
    let checked = checked.map_err(|why| Arc::from(format!("{}: {why}", why.rule())));
    registry.optimizer.checked.insert(at, checked.clone());
    checked
}

fn check(
    registry: &Registry,
    kernel: &Kernel,
    ground: &KernelGround,
    at: Gva,
) -> Result<Region, Obstacle> {
    let short = Obstacle::TooShort { end: at };
    let bounds = kernel.symbols.function_at(at).ok_or_else(|| short.clone())?;
    let end = bounds.end.min(at.wrapping_add(REGION_MAX));
    let bytes = registry.original_text(kernel, at, end).map_err(|_| short)?;
    Region::check(&bytes, at, ground)
}

/// Where each byte of a jmp at `at` goes.
fn places(kernel: &Kernel, at: Gva) -> Option<[Gpa; JMP_LEN]> {
    let memory = kernel.memory();
    let first = memory.translate(at).ok()?.gpa;
    let mut places = [Gpa(0); JMP_LEN];
    for (offset, place) in (0u64..).zip(&mut places) {
        *place = match first.offset_in(PAGE_SIZE) + offset < PAGE_SIZE {
            true => first.wrapping_add(offset),
            false => memory.translate(at.wrapping_add(offset)).ok()?.gpa,
        };
    }
    Some(places)
}
