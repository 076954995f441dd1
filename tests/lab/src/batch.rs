//! Machines side by side: prepared one after the other, then as many at once as are allowed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use exoprobe_tests::harness;

use crate::artifacts::{self, HostKernel, INIT, Program};
use crate::bochs::Bochs;
use crate::build::Build;
use crate::error::{LabError, at};
use crate::machine::MSRS;
use crate::plan::{Plan, Run};
use crate::watch::{self, Limits};
use crate::{counts, image, times};

/// The steps to run, and how.
pub(crate) struct Batch {
    pub(crate) runs: Vec<Run>,
    /// Machines at a time, at least one.
    pub(crate) at_once: usize,
    pub(crate) limits: Limits,
    /// Cargo's profile that the programs are built with.
    pub(crate) profile: &'static str,
    /// Whether the tests' records are kept for `lab places`.
    pub(crate) reports: bool,
}

/// How a run ended, and the records of its tests.
type Ended = (Vec<harness::Record>, Result<(), LabError>);

impl Batch {
    /// Runs all, also when some fail; what each says is shown as it comes.
    ///
    /// # Errors
    /// The names of those that failed and their errors, when all have ended.
    pub(crate) fn carry_out(mut self) -> Result<(), LabError> {
        let mut plans: Vec<Plan> = self.runs.iter().map(|run| run.plan).collect();
        plans.dedup();
        // What an earlier run left must not pass for this one's.
        if self.reports {
            plans.iter().try_for_each(|plan| remove(&report(*plan)))?;
        }
        times::timed("lab: its emulator", || {
            self.choose_emulators();
            Ok(())
        })?;
        let kernels: BTreeSet<HostKernel> = self.runs.iter().map(Run::host_kernel).collect();
        let images = || kernels.into_iter().map(|kernel| Ok((kernel, kernel.image()?))).collect();
        let images: BTreeMap<HostKernel, PathBuf> = times::timed("lab: its kernel", images)?;
        println!("lab: building the programs");
        let programs = self.runs.iter().flat_map(|run| run.programs()).copied();
        let programs: BTreeSet<Program> = programs.chain([INIT]).collect();
        let folder = target().join("lab/bin");
        let build = || artifacts::build(&programs, self.profile, &folder);
        times::timed("lab: programs", build)?;
        let prepare = |run: &Run| self.prepare(run, &images[&run.host_kernel()], &folder);
        self.runs.iter().try_for_each(prepare)?;
        let ended = self.side_by_side();
        if self.reports {
            plans.iter().try_for_each(|plan| self.write_report(*plan, &ended))?;
        }
        self.judge(&ended)
    }

    /// Has the quick emulator built for the machines that want it. Without its source they run in
    /// Debian's: they take twice the time, and prove the same.
    fn choose_emulators(&mut self) {
        let wants = |run: &Run| run.machine.build == Build::Quick;
        let built = self.runs.iter().any(wants).then(|| Build::Quick.program());
        if let Some(Err(error)) = built {
            eprintln!("lab: {error}: Debian's Bochs runs in its place, and takes twice the time");
            self.runs.iter_mut().for_each(|run| run.machine.build = Build::Debian);
        }
    }

    /// Builds the CD and the configuration in the folder of `run`.
    fn prepare(&self, run: &Run, kernel: &Path, programs: &Path) -> Result<(), LabError> {
        let (dir, machine) = (folder(run), run.machine);
        remove(&dir)?;
        std::fs::create_dir_all(&dir).map_err(at(&dir))?;
        let mut contents = run.contents(programs)?;
        let file = dir.join("job.json");
        let text = serde_json::to_vec_pretty(&run.job);
        let text = text.map_err(|source| LabError::Json { path: file.clone(), source })?;
        std::fs::write(&file, text).map_err(at(&file))?;
        contents.push(("job.json".to_owned(), file));
        let initramfs = dir.join("initrd");
        image::initramfs(&contents, &initramfs)?;
        image::iso(&dir, kernel, &initramfs, &machine.cmdline())?;
        let bochsrc = dir.join("bochsrc");
        std::fs::write(&bochsrc, machine.bochsrc(run.disk()?.as_deref())).map_err(at(bochsrc))?;
        if let Some(text) = machine.msrs() {
            let msrs = dir.join(MSRS);
            std::fs::write(&msrs, text).map_err(at(msrs))?;
        }
        let rc = dir.join("rc");
        std::fs::write(&rc, "continue\n").map_err(at(rc))
    }

    /// How each run ended, in their order. The longest start first: one that starts last would
    /// leave CPUs idle.
    fn side_by_side(&self) -> Vec<Ended> {
        let mut runs: Vec<(usize, &Run)> = self.runs.iter().enumerate().collect();
        runs.sort_by_key(|(_, run)| Reverse(run.seconds));
        let waiting = Mutex::new(VecDeque::from(runs));
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || {
            let take = || next().map(|(at, run)| (at, self.machine(run)));
            std::iter::from_fn(take).collect::<Vec<_>>()
        };
        let mut ended: Vec<(usize, Ended)> = std::thread::scope(|scope| {
            let machines = self.at_once.min(self.runs.len());
            let workers: Vec<_> = (0..machines).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().expect("it does not panic"))
                .collect()
        });
        ended.sort_by_key(|(at, _)| *at);
        ended.into_iter().map(|(_, ended)| ended).collect()
    }

    fn machine(&self, run: &Run) -> Ended {
        let (name, dir) = (&run.name, folder(run));
        let kvm = run.machine.kvm;
        println!("{name}: {kvm} in Bochs; console, results and logs are in {}", dir.display());
        let begun = Instant::now();
        let start = || Bochs::start(run.machine.build, &dir);
        let (tests, ended) = match watch::follow(name, &dir, self.limits, start) {
            Err(error) => (Vec::new(), Err(error)),
            Ok((mut outcome, ended)) => {
                let mut tests = std::mem::take(&mut outcome.tests);
                if let Err(error) = &ended {
                    tests.extend(outcome.unfinished(&error.to_string()));
                }
                let judged = ended.and_then(|()| outcome.judge(run, &tests));
                (tests, judged.and_then(|()| counts::check(run, &outcome.files, &dir)))
            }
        };
        if let Err(error) = &ended {
            eprintln!("{name}: {error}");
        }
        let kept = times::add(&format!("lab: {name}"), begun.elapsed(), ended.is_ok());
        (tests, ended.and(kept))
    }

    /// Keeps the tests' records where `lab places` finds them.
    fn write_report(&self, plan: Plan, ended: &[Ended]) -> Result<(), LabError> {
        let path = report(plan);
        let dir = path.parent().unwrap_or(&path);
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let mut text = String::new();
        let of_plan = self.runs.iter().zip(ended).filter(|(run, _)| run.plan == plan);
        for test in of_plan.flat_map(|(_, (tests, _))| tests) {
            let line = serde_json::to_string(test);
            text += &line.map_err(|source| LabError::Json { path: path.clone(), source })?;
            text.push('\n');
        }
        std::fs::write(&path, text).map_err(at(path))
    }

    /// Errors come at the end of the output again: where they happened, other machines print over
    /// them.
    fn judge(&self, ended: &[Ended]) -> Result<(), LabError> {
        let reasons = self.runs.iter().zip(ended).filter_map(|(run, (_, ended))| {
            ended.as_ref().err().map(|error| format!("\n{}: {error}", run.name))
        });
        let failed: String = reasons.collect();
        if failed.is_empty() { Ok(()) } else { Err(LabError::Runs(failed)) }
    }
}

fn target() -> PathBuf {
    artifacts::root().join("target")
}

/// The folder of a run.
fn folder(run: &Run) -> PathBuf {
    target().join("lab").join(&run.name)
}

/// The records of a plan's tests.
fn report(plan: Plan) -> PathBuf {
    target().join("tests").join(format!("lab-{}.jsonl", plan.name()))
}

fn remove(path: &Path) -> Result<(), LabError> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}
