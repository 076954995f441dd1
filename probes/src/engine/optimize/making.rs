//! Makes a detour for a site, or returns the reason why the site cannot have one.

use std::sync::Arc;

use crate::engine::optimize::candidate::{assembler, check, places};
use exoprobe_guest::Gva;
use exoprobe_guest::hidden::HiddenError;

use crate::detour::{
    Block, BlockAction, Detour, DetourEnv, JMP_LEN, Pool, PoolMemory, Region, STUB_LEN, Value,
};
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::candidate::OptimizedSite;
use crate::engine::optimize::known_texts::{Unjudged, check_module};
use crate::engine::optimize::optimizer::Optimizer;
use crate::engine::optimize::rings::Rings;
use crate::engine::optimize::space::Where;
use crate::engine::optimize::wanted::wanted;
use crate::engine::optimize::wanted::{Wanted, Work};
use crate::engine::patch::view::GuestText;
use crate::engine::probe::in_guest::InGuestReturns;
use crate::engine::probe::registered::Probe;
use crate::engine::probe::site::InternalBreakpoint;
use crate::engine::probe::site::Site;
use crate::engine::probe::site::Sites;
use crate::insn;
use exoprobe_guest::Guest;

impl Optimizer {
    /// Prepares a site for its jmp. The error is the reason why it cannot have one: the name of the
    /// rule, then an explanation.
    pub(crate) fn candidate(
        &mut self,
        sites: &Sites,
        switched_on: bool,
        guest: &dyn Guest,
        kernel: &Arc<Kernel>,
        rings: &mut Rings,
        site: &Site,
    ) -> Result<OptimizedSite, Arc<str>> {
        // Before the memory of the rings is mapped.
        check_module(kernel, site.at).map_err(|why| of_module(&why))?;
        let env = rings.detour_env(guest, kernel)?;
        let (wanted, region) = self.plan(sites, switched_on, kernel, &env, site)?;
        let covered = region.end().0 - site.at.0;
        let (places, rest) =
            places(kernel, site.at, covered).ok_or("not-mapped: its text is not mapped")?;
        let (mut tasks, mut follows) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (probe, wanted) in wanted {
            match wanted {
                Wanted::AtHit(task) => tasks.push((probe, task)),
                Wanted::AtReturn { task, kept } => {
                    let words = count_of(&kept);
                    let in_guest = self.in_guest_of(guest, rings, (&probe, task, words), &env)?;
                    let follow = BlockAction::Follow { pool: in_guest.pool.pool, kept };
                    tasks.push((Arc::clone(&probe), follow));
                    follows.push((probe, in_guest));
                }
            }
        }
        let hidden = guest.hidden();
        let place = match tasks.iter().any(|(_, task)| task.is_guarded()) {
            true => Where::First,
            false => Where::Anywhere,
        };
        let is_full = place == Where::Anywhere && !self.space.has_room(hidden);
        let needs_more = is_full || rings.needs_more(hidden, tasks.len());
        map_more(guest, kernel, needs_more)?;
        let blocks = rings.blocks(hidden, tasks).ok_or("no-room: all counters are in use")?;
        let own = blocks.iter().filter(|block| !block.task.is_follow());
        let numbers: Vec<u16> = own.map(|block| block.number).collect();
        let space = &mut self.space;
        let made = space.place(hidden, place, numbers.clone(), |at| {
            Detour::assemble(&region, &blocks, &env, at).map_err(assembler)
        });
        let code = made.inspect_err(|_| numbers.iter().for_each(|n| rings.release(hidden, *n)))?;
        let mut jmp = Vec::with_capacity(JMP_LEN);
        insn::jump_to(site.at, &mut jmp, code.entry).map_err(assembler)?;
        let jmp = jmp.try_into().expect("a jmp rel32 has five bytes");
        Ok(OptimizedSite { at: site.at, places, rest, jmp, region, code, follows })
    }

    /// Finds the work of a site's probes and the text that its jmp would cover, which no other
    /// probe may be in. Changes nothing in the guest. The error is as of [`Self::candidate`].
    fn plan(
        &mut self,
        sites: &Sites,
        switched_on: bool,
        kernel: &Arc<Kernel>,
        env: &DetourEnv,
        site: &Site,
    ) -> Result<(Work, Arc<Region>), Arc<str>> {
        let wanted = wanted(self.allowed, switched_on, kernel, site, env)?;
        let region = self.region(sites, kernel, site.at)?;
        let covered = region.end().0 - site.at.0;
        let mut inner = (1..covered).map(|offset| site.at.wrapping_add(offset));
        match inner.find(|at| sites.contains_key(at)) {
            Some(other) => Err(format!("other-probe: another probe is at {other}").into()),
            None => Ok((wanted, region)),
        }
    }

    /// Checks whether a site could get a jmp, as [`Self::candidate`] does: its code is assembled
    /// and dropped. Changes nothing in the guest.
    pub(crate) fn rehearse(
        &mut self,
        sites: &Sites,
        switched_on: bool,
        kernel: &Arc<Kernel>,
        env: &DetourEnv,
        site: &Site,
    ) -> Result<(), Arc<str>> {
        match check_module(kernel, site.at) {
            // The probes would have the breakpoint set.
            Err(Unjudged::Unwatched) if InternalBreakpoint::ModuleEnds.is_of(&kernel.symbols) => {}
            checked => checked.map_err(|why| of_module(&why))?,
        }
        let (wanted, region) = self.plan(sites, switched_on, kernel, env, site)?;
        // Any place of hidden memory is as good.
        let (at, mut blocks) = (env.hidden.start, Vec::with_capacity(wanted.len()));
        let block = |task| Block { number: 0, counter: at, task };
        for (_, wanted) in wanted {
            match wanted {
                Wanted::AtHit(task) => blocks.push(block(task)),
                Wanted::AtReturn { task, kept } => {
                    let pool = Pool { at, capacity: 1, kept: count_of(&kept) };
                    Detour::assemble_returns(&block(task), pool, env, at).map_err(assembler)?;
                    blocks.push(block(BlockAction::Follow { pool, kept }));
                }
            }
        }
        Detour::assemble(&region, &blocks, env, at).map(drop).map_err(assembler)
    }

    /// Returns the pool of a return probe, whose instances keep so many words, and the code its
    /// calls return to; makes them on first use.
    fn in_guest_of(
        &mut self,
        guest: &dyn Guest,
        rings: &mut Rings,
        (probe, task, kept): (&Arc<Probe>, BlockAction, u16),
        env: &DetourEnv,
    ) -> Result<Arc<InGuestReturns>, Arc<str>> {
        if let Some((_, in_guest)) = self.in_guest.get(&probe.id) {
            debug_assert_eq!(in_guest.pool.pool.kept, kept, "arguments stay as they are");
            return Ok(Arc::clone(in_guest));
        }
        let (hidden, space) = (guest.hidden(), &mut self.space);
        let capacity = probe.returns().map_or(1, |returns| returns.maxactive);
        let piece = space.pools.take(hidden, Pool::bytes(capacity, kept));
        let piece = piece.ok_or("no-room: the memory for instances is full")?;
        let pool = Pool { at: piece.gva, capacity, kept };
        let blocks = rings.blocks(hidden, vec![(Arc::clone(probe), task)]);
        let placed =
            blocks.ok_or_else(|| Arc::from("no-room: all counters are in use")).and_then(|b| {
                let block: &Block = &b[0];
                let placed = space.place(hidden, Where::First, vec![block.number], |at| {
                    Detour::assemble_returns(block, pool, env, at).map_err(assembler)
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
        let in_guest = Arc::new(InGuestReturns { pool: memory, code, stubs, clock: rings.clock() });
        let both = (Arc::clone(probe), Arc::clone(&in_guest));
        self.in_guest.insert(probe.id, both);
        Ok(in_guest)
    }

    fn region(
        &mut self,
        sites: &Sites,
        kernel: &Arc<Kernel>,
        at: Gva,
    ) -> Result<Arc<Region>, Arc<str>> {
        if let Some(checked) = self.checked.get(&at) {
            return checked.clone();
        }
        let text = GuestText::new(sites, &self.installed);
        let checked = match self.known_texts.learn(text, kernel, at) {
            Ok(ground) => check(text, kernel, ground, at)
                .map(Arc::new)
                .map_err(|why| Arc::from(format!("{}: {why}", why.rule()))),
            Err(why) => Err(of_module(&why)),
        };
        self.checked.insert(at, checked.clone());
        checked
    }
}

/// Number of words that an instance keeps: at most those that arguments can name.
fn count_of(kept: &[Value]) -> u16 {
    u16::try_from(kept.len()).expect("at most 16 arguments")
}

fn of_module(why: &Unjudged) -> Arc<str> {
    format!("module: {why}").into()
}

/// Maps the extension of hidden memory if it is needed, and checks it if it is mapped. Where it
/// cannot be mapped there is less room.
fn map_more(guest: &dyn Guest, kernel: &Kernel, is_needed: bool) -> Result<(), Arc<str>> {
    let hidden = guest.hidden();
    if !is_needed && hidden.more_code_window().is_none() {
        return Ok(());
    }
    match hidden.map_more(guest.ram(), kernel.view.mode) {
        Err(error @ HiddenError::Overwritten { .. }) => Err(format!("not-mapped: {error}").into()),
        Err(error) => {
            tracing::debug!(%error, "more memory for optimized probes");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
