//! Scripts in the bpftrace language that run over a guest: their probes, their consumer, their
//! output.

mod arm;
mod commands;
#[cfg(feature = "testing")]
mod driven;
mod error;
mod fetch;
mod files;
mod fixed;
mod hits;
mod kernel;
mod output;
mod parameters;
mod rehearse;
mod running;
mod syscalls;
mod timers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoprobe_probes::Engine;
use exoprobe_script::{Attachment, MapBudget, Options, Program, Script};

pub(crate) use commands::{ShellCommand, ShellCommands};
#[cfg(feature = "testing")]
pub use driven::DrivenScript;
pub(crate) use error::ScriptError;
use kernel::GuestKernel;
pub(crate) use output::{Extent, ScriptOutput};
pub(crate) use rehearse::{ArmedBy, Arming};
pub(crate) use running::{NewScript, RunningScript, ScriptState, ScriptStatus};
pub(crate) use timers::run_timers;

/// Most scripts that run at once.
const RUNNING_MAX: usize = 64;
/// Most ended scripts whose output is kept.
const ENDED_MAX: usize = 16;
/// Most bytes of all maps of all scripts (`all_map_bytes`). When half of it is taken, a new script
/// has those that have ended forgotten.
const ALL_MAP_BYTES: usize = 256 << 20;

/// All scripts of a guest.
pub(crate) struct Scripts {
    engine: Arc<Engine>,
    cpus: u32,
    /// Memory of their maps.
    maps: Arc<MapBudget>,
    book: Mutex<Book>,
}

/// A script that was only checked.
pub(crate) struct CheckedScript {
    pub(crate) program: Program,
    /// By attachment: its arguments, each as `TYPE NAME`.
    pub(crate) arguments: Vec<Vec<String>>,
    /// By attachment: how its probes would be armed.
    pub(crate) arming: Vec<Vec<Arming>>,
}

#[derive(Default)]
struct Book {
    last: u32,
    /// Scripts that are about to run.
    starting: usize,
    scripts: BTreeMap<u32, Arc<RunningScript>>,
}

impl Scripts {
    /// No scripts yet, for a guest with so many CPUs.
    pub(crate) fn new(engine: Arc<Engine>, cpus: u32) -> Self {
        let maps = MapBudget::of_scripts(ALL_MAP_BYTES);
        Self { engine, cpus, maps, book: Mutex::default() }
    }

    /// Checks a script against the guest's kernel, and changes nothing. Waits for the engine.
    ///
    /// # Errors
    /// [`ScriptError::Script`].
    pub(crate) fn check(&self, new: &NewScript) -> Result<Program, ScriptError> {
        let script = Script::parse(&new.text, &new.params)?;
        let kernel = GuestKernel::of(&self.engine, self.cpus);
        let (allow_unsafe, has_shell) = (new.allow_unsafe, new.allow_unsafe);
        let options = Options { allow_unsafe, has_shell, ..Options::default() };
        Ok(exoprobe_script::check(&script, &kernel, &options)?)
    }

    /// Checks a script as [`Self::start`] does before it arms a probe, and finds what its probes'
    /// actions can use by name, and how each probe would be armed. Waits for the engine.
    ///
    /// # Errors
    /// As [`Self::start`], of a script with as many probes.
    pub(crate) fn examine(&self, new: &NewScript) -> Result<CheckedScript, ScriptError> {
        let program = self.check(new)?;
        let plans = arm::plan(&self.engine, running::GROUP, &program)?;
        let arming = rehearse::rehearse(&self.engine, &plans, program.runs_at_hits())?;
        let types = self.engine.types().ok();
        let attachments = program.attachments.iter();
        let of = |it: &Attachment| parameters::parameters(&it.kind, types.as_deref());
        let arguments = attachments.map(of).collect();
        Ok(CheckedScript { program, arguments, arming })
    }

    /// Starts a script: runs its BEGIN, and arms its probes. Waits for the engine.
    ///
    /// # Errors
    /// [`ScriptError`]; the guest is as before.
    pub(crate) fn start(&self, new: &NewScript) -> Result<Arc<RunningScript>, ScriptError> {
        let program = self.check(new)?;
        let place = self.reserve()?;
        let script = RunningScript::start(place.id, &self.engine, program, new, &self.maps)?;
        self.lock().scripts.insert(place.id, Arc::clone(&script));
        Ok(script)
    }

    /// The place of the next script.
    fn reserve(&self) -> Result<Place<'_>, ScriptError> {
        let mut book = self.lock();
        let running = book.scripts.values().filter(|script| !script.has_ended()).count();
        if running + book.starting >= RUNNING_MAX {
            return Err(ScriptError::TooMany(RUNNING_MAX));
        }
        let ended = book.scripts.iter().filter(|(_, script)| script.has_ended());
        let ended: Vec<u32> = ended.map(|(id, _)| *id).collect();
        for (index, id) in ended.iter().enumerate() {
            if ended.len() - index > ENDED_MAX || self.maps.is_short() {
                drop(book.scripts.remove(id));
            }
        }
        book.last += 1;
        book.starting += 1;
        Ok(Place { id: book.last, scripts: self })
    }

    /// All scripts, in order of their start.
    pub(crate) fn list(&self) -> Vec<Arc<RunningScript>> {
        self.lock().scripts.values().cloned().collect()
    }

    /// A script by its number.
    ///
    /// # Errors
    /// [`ScriptError::NoSuch`].
    pub(crate) fn find(&self, id: u32) -> Result<Arc<RunningScript>, ScriptError> {
        self.lock().scripts.get(&id).cloned().ok_or(ScriptError::NoSuch(id))
    }

    /// Ends a script that runs; forgets one that has ended. Waits for the engine.
    ///
    /// # Errors
    /// [`ScriptError::NoSuch`].
    pub(crate) fn remove(&self, id: u32) -> Result<ScriptStatus, ScriptError> {
        let script = self.find(id)?;
        if script.has_ended() {
            self.lock().scripts.remove(&id);
        } else {
            script.end(&self.engine);
        }
        Ok(script.status(&self.engine))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A script's place among those that run, until it is one of them.
struct Place<'a> {
    id: u32,
    scripts: &'a Scripts,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.scripts.lock().starting -= 1;
    }
}
