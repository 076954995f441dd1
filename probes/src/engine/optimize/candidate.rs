//! What a site needs to be optimized, and why it cannot be.

use std::sync::Arc;

use exoprobe_guest::paging::PAGE_SIZE;
use exoprobe_guest::{Gpa, GuestRam, Gva};
use exoprobe_introspect::symbols::TextKind;

use crate::detour::{
    Block, Detour, JMP_LEN, Obstacle, Pool, PoolMemory, Region, STUB_LEN, Surroundings, Task,
};
use crate::engine::control::registry::Registry;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::ground::KernelGround;
use crate::engine::optimize::rings::Rings;
use crate::engine::optimize::space::Retired;
use crate::engine::optimize::wanted::{Wanted, wanted};
use crate::engine::patch::text;
use crate::engine::probe::code::Code;
use crate::engine::probe::follower::Follower;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::Site;
use crate::insn;
use exoprobe_guest::Guest;

/// Most bytes of text that a region is looked for in: its last instruction begins within the jmp, and has 15.
const REGION_MAX: u64 = 64;

/// A site that is to have a jmp, or has it.
pub(crate) struct Candidate {
    pub(crate) at: Gva,
    pub(crate) region: Arc<Region>,
    /// Where each byte of the jmp goes.
    pub(crate) places: [Gpa; JMP_LEN],
    /// Where the bytes behind it are that belong to the last instruction which it covers.
    pub(crate) rest: Vec<Gpa>,
    pub(crate) jmp: [u8; JMP_LEN],
    pub(crate) code: Code,
    /// The return probe there.
    pub(crate) follows: Option<(Arc<Probe>, Arc<Follower>)>,
}

impl Candidate {
    /// Puts the jmp in place of the int3; says whether that was there, with what should follow it. Every vCPU
    /// must stand still.
    pub(crate) fn write(&self, ram: &GuestRam) -> bool {
        self.hand_over()
            && text::replace(ram, &self.places, self.at, &self.armed(), &self.jmp).is_ok()
    }

    /// Puts the int3 back in place of the jmp; says whether that was there. Every vCPU must stand still.
    pub(crate) fn take_back(&self, ram: &GuestRam) -> bool {
        text::replace(ram, &self.places, self.at, &self.jmp, &self.armed()).is_ok()
    }

    /// From now on the return probe there takes its instances from within the guest; not while it has others in
    /// use, for all together must not be more than `maxactive`.
    fn hand_over(&self) -> bool {
        let Some((probe, follower)) = &self.follows else { return true };
        let Some(returns) = probe.returns() else { return false };
        if returns.follower().is_none() {
            if returns.active() > 0 {
                return false;
            }
            returns.follower.store(Some(Arc::clone(follower)));
        }
        true
    }

    /// Its detour once nothing leads there any more.
    pub(crate) fn retire(self, site: Option<Arc<Site>>) -> Retired {
        let follower = self.follows.map(|(_, follower)| follower);
        Retired::Detour { code: self.code, site, follower }
    }

    /// What the text holds while the site has an int3.
    fn armed(&self) -> [u8; JMP_LEN] {
        let mut armed = *self.region.covered();
        armed[0] = text::INT3;
        armed
    }
}

/// What a site needs to have a jmp; or why it cannot, by the name of the rule and in words.
pub(crate) fn candidate(
    registry: &mut Registry,
    guest: &dyn Guest,
    kernel: &Arc<Kernel>,
    rings: &mut Rings,
    site: &Site,
) -> Result<Candidate, Arc<str>> {
    if kernel.symbols.text_kind(site.at) == Some(TextKind::Module) {
        return Err(
            "module: nobody knows what jumps into the middle of a module's functions".into()
        );
    }
    let around = rings.surroundings(guest, kernel)?;
    let wanted = wanted(registry, kernel, site, &around)?;
    let region = region(registry, kernel, site.at)?;
    let behind = region.end().0 - site.at.0;
    let mut inner = (1..behind).map(|offset| site.at.wrapping_add(offset));
    if let Some(other) = inner.find(|at| registry.sites.contains_key(at)) {
        return Err(format!("other-probe: another probe is at {other}").into());
    }
    let (places, rest) =
        places(kernel, site.at, behind).ok_or("not-mapped: its text is not mapped")?;
    let (mut tasks, mut follows) = (Vec::with_capacity(wanted.len()), None);
    for (probe, wanted) in wanted {
        match wanted {
            Wanted::AtHit(task) => tasks.push((probe, task)),
            Wanted::AtReturn(task) => {
                let follower = follower(registry, guest, rings, (&probe, task), &around)?;
                tasks.push((Arc::clone(&probe), Task::Follow(follower.pool.pool)));
                follows = Some((probe, follower));
            }
        }
    }
    let hidden = guest.hidden();
    let blocks = rings.blocks(hidden, tasks).ok_or("no-room: all counters are in use")?;
    let own = blocks.iter().filter(|block| !matches!(block.task, Task::Follow(_)));
    let numbers: Vec<u16> = own.map(|block| block.number).collect();
    let space = &mut registry.optimizer.space;
    let made = space.place(hidden, numbers.clone(), |at| {
        Detour::assemble(&region, &blocks, &around, at).map_err(assembler)
    });
    let code = made.inspect_err(|_| numbers.iter().for_each(|n| rings.release(hidden, *n)))?;
    let mut jmp = Vec::with_capacity(JMP_LEN);
    insn::jump_to(site.at, &mut jmp, code.entry).map_err(assembler)?;
    let jmp = jmp.try_into().expect("a jmp rel32 has five bytes");
    Ok(Candidate { at: site.at, places, rest, jmp, region, code, follows })
}

fn assembler(error: impl std::fmt::Display) -> Arc<str> {
    format!("assembler: {error}").into()
}

/// The pool of a return probe and the code its calls return to, made on first use.
fn follower(
    registry: &mut Registry,
    guest: &dyn Guest,
    rings: &mut Rings,
    (probe, task): (&Arc<Probe>, Task),
    around: &Surroundings,
) -> Result<Arc<Follower>, Arc<str>> {
    if let Some((_, follower)) = registry.optimizer.followers.get(&probe.id) {
        return Ok(Arc::clone(follower));
    }
    let (hidden, space) = (guest.hidden(), &mut registry.optimizer.space);
    let capacity = probe.returns().map_or(1, |returns| returns.maxactive);
    let piece = space.pools.take(hidden, Pool::bytes(capacity));
    let piece = piece.ok_or("no-room: the memory for instances is full")?;
    let pool = Pool { at: piece.gva, capacity };
    let blocks = rings.blocks(hidden, vec![(Arc::clone(probe), task)]);
    let placed =
        blocks.ok_or_else(|| Arc::from("no-room: all counters are in use")).and_then(|b| {
            let block: &Block = &b[0];
            let placed = space.place(hidden, vec![block.number], |at| {
                Detour::assemble_returns(block, pool, around, at).map_err(assembler)
            });
            placed.inspect_err(|_| rings.release(hidden, block.number))
        });
    let mut code = match placed {
        Ok(code) => code,
        Err(why) => {
            space.pools.free(hidden, piece);
            return Err(why);
        }
    };
    let stubs = Gva(code.end.0 - u64::from(capacity) * STUB_LEN as u64);
    let memory = PoolMemory::new(hidden, piece.offset, pool, stubs);
    rings.set_pool(code.blocks[0], memory);
    code.pool = Some(piece);
    let follower = Arc::new(Follower { pool: memory, code, stubs, clock: rings.clock() });
    let both = (Arc::clone(probe), Arc::clone(&follower));
    registry.optimizer.followers.insert(probe.id, both);
    Ok(follower)
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

/// Where each of `len` bytes at `at` goes: those of a jmp, and the others.
fn places(kernel: &Kernel, at: Gva, len: u64) -> Option<([Gpa; JMP_LEN], Vec<Gpa>)> {
    let memory = kernel.memory();
    let first = memory.translate(at).ok()?.gpa;
    let place = |offset: u64| match first.offset_in(PAGE_SIZE) + offset < PAGE_SIZE {
        true => Some(first.wrapping_add(offset)),
        false => Some(memory.translate(at.wrapping_add(offset)).ok()?.gpa),
    };
    let all: Vec<Gpa> = (0..len).map(place).collect::<Option<_>>()?;
    let (jmp, rest) = all.split_first_chunk()?;
    Some((*jmp, rest.to_vec()))
}
