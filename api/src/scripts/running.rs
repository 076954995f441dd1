//! A script from its start to its end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use exoprobe_probes::{Engine, HitConsumer, ProbeStatus, Registration, Selection};
use exoprobe_script::{Format, MapBudget, Program};
use tokio::sync::watch;

use super::arm::{self, Armed, Plan, Sampler};
use super::error::ScriptError;
use super::hits::Actions;
use super::output::{ScriptOutput, Warnings};

/// Beginning of the name of a script's group of probes.
pub(super) const GROUP: &str = "script_";

/// A script as a client gives it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewScript {
    /// Its text.
    pub(crate) text: String,
    /// Values of `$1` and on.
    pub(crate) params: Vec<String>,
    /// The form of its output.
    pub(crate) format: Format,
    /// It may change what the guest does.
    pub(crate) allow_unsafe: bool,
}

/// A script that was started.
pub(crate) struct RunningScript {
    id: u32,
    text: String,
    format: Format,
    actions: Arc<Actions>,
    armed: Mutex<Armed>,
    ending: Mutex<Option<Ended>>,
}

/// How far a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptState {
    /// Its probes are armed.
    Running,
    /// It has called exit(), and is about to end.
    Ending,
    /// Its probes are gone.
    Ended,
}

/// The counts at a script's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ended {
    lost: u64,
    nmissed: u64,
}

/// A script and its counts, now.
#[derive(Clone, Debug)]
pub(crate) struct ScriptStatus {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) state: ScriptState,
    /// Of exit().
    pub(crate) exit_status: i32,
    pub(crate) probes: usize,
    pub(crate) optimized: usize,
    /// Functions of a pattern that cannot be probed, each with the reason.
    pub(crate) refused: Vec<String>,
    pub(crate) run: u64,
    pub(crate) filtered: u64,
    pub(crate) limited: u64,
    pub(crate) late: u64,
    pub(crate) lost: u64,
    pub(crate) nmissed: u64,
    pub(crate) warnings: Warnings,
}

impl RunningScript {
    /// Runs BEGIN and arms the probes.
    ///
    /// # Errors
    /// [`ScriptError`]; nothing is armed.
    pub(super) fn start(
        id: u32,
        engine: &Engine,
        program: Program,
        new: &NewScript,
        maps: &Arc<MapBudget>,
    ) -> Result<Arc<Self>, ScriptError> {
        let plans: Vec<Plan> = arm::plan(engine, &format!("{GROUP}{id}"), &program)?;
        let missing = program.missing.clone();
        let at_hit = program.runs_at_hits();
        let actions = Arc::new(Actions::new(program, plans, new.format, engine, maps));
        let consumer = Arc::clone(&actions) as Arc<dyn HitConsumer>;
        actions.begin(engine);
        let mut armed = match actions.exit().borrow().is_some() {
            // BEGIN was all of it.
            true => Armed::default(),
            false => {
                let armed = arm::arm(engine, actions.plans(), &consumer, at_hit)?;
                match arm::add_samplers(engine, actions.plans(), &consumer, at_hit) {
                    Ok(samplers) => Armed { samplers, ..armed },
                    Err(error) => {
                        let probes = Selection::from(armed.registered.as_slice());
                        // The guest may have changed the text meanwhile: they are gone anyway.
                        let _ = engine.unregister(probes);
                        return Err(error);
                    }
                }
            }
        };
        armed.refused.splice(0..0, missing);
        let (armed, ending) = (Mutex::new(armed), Mutex::default());
        let (text, format) = (new.text.clone(), new.format);
        Ok(Arc::new(Self { id, text, format, actions, armed, ending }))
    }

    /// Ends it: removes its probes, runs END for all their hits, shows the maps. Waits for the
    /// engine. A second call waits for the first.
    pub(crate) fn end(&self, engine: &Engine) {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if ending.is_some() {
            return;
        }
        let probes = self.selection();
        // So that no hit is under way when the counts are read.
        if let Err(error) = engine.set_enabled(probes.clone(), false) {
            self.actions.output.warn(&error.to_string());
        }
        let samplers = self.samplers().into_iter();
        let lost: u64 = samplers.map(|it| engine.remove_sampler(it.id).lost).sum();
        let mut ended = self.counts(engine);
        ended.lost += lost;
        if let Err(error) = engine.unregister(probes) {
            self.actions.output.warn(&error.to_string());
        }
        self.actions.end(engine);
        *ending = Some(ended);
    }

    /// Has it ended?
    pub(crate) fn has_ended(&self) -> bool {
        self.actions.output.extent().borrow().is_complete
    }

    /// The form of its output.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Its output.
    pub(crate) fn output(&self) -> &Arc<ScriptOutput> {
        &self.actions.output
    }

    /// Its maps as JSON.
    pub(crate) fn maps(&self) -> String {
        self.actions.maps()
    }

    /// Its counts. Waits for the engine.
    pub(crate) fn status(&self, engine: &Engine) -> ScriptStatus {
        let has_ended = self.has_ended();
        let counts = match has_ended {
            true => *self.ending.lock().unwrap_or_else(PoisonError::into_inner),
            false => None,
        };
        let Ended { lost, nmissed } = counts.unwrap_or_else(|| self.counts(engine));
        let exit = *self.exit().borrow();
        let state = match (has_ended, exit) {
            (true, _) => ScriptState::Ended,
            (false, Some(_)) => ScriptState::Ending,
            (false, None) => ScriptState::Running,
        };
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.actions.counts;
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        ScriptStatus {
            id: self.id,
            text: self.text.clone(),
            state,
            exit_status: exit.unwrap_or_default(),
            probes: armed.registered.len(),
            optimized: statuses(engine, &armed.registered).iter().filter(|it| it.optimized).count(),
            refused: armed.refused.clone(),
            run: counter(&counts.run),
            filtered: counter(&counts.filtered),
            limited: counter(&counts.limited),
            late: counter(&counts.late),
            lost,
            nmissed,
            warnings: self.actions.output.warnings(),
        }
    }

    pub(super) fn actions(&self) -> &Arc<Actions> {
        &self.actions
    }

    pub(super) fn exit(&self) -> watch::Receiver<Option<i32>> {
        self.actions.exit()
    }

    /// Its samplers.
    pub(super) fn samplers(&self) -> Vec<Sampler> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).samplers.clone()
    }

    fn selection(&self) -> Selection {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        Selection::from(armed.registered.as_slice())
    }

    fn counts(&self, engine: &Engine) -> Ended {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = Ended::default();
        for status in statuses(engine, &armed.registered) {
            counts.lost += status.lost;
            counts.nmissed += status.nmissed;
        }
        counts.lost +=
            armed.samplers.iter().map(|it| engine.sample_counts(it.id).lost).sum::<u64>();
        counts
    }
}

/// The statuses of probes that are registered.
fn statuses(engine: &Engine, probes: &[Registration]) -> Vec<ProbeStatus> {
    if probes.is_empty() {
        return Vec::new();
    }
    let ids: HashSet<u32> = probes.iter().map(|probe| probe.id).collect();
    engine.list().into_iter().filter(|status| ids.contains(&status.id)).collect()
}
