//! Runs each fuzz target on its seeds, and for a second on blind changes to them: a quick look
//! in each `make test`, without the coverage that guides `make fuzz`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use exoprobe_fuzz::{TARGETS, Target};
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Seconds for each target.
const SECONDS_ENV: &str = "EXOPROBE_FUZZ_SECONDS";
const SECONDS: u64 = 1;
/// Makes the same changes again.
const SEED_ENV: &str = "EXOPROBE_FUZZ_SEED";
/// One input may not take longer, also on a machine that does other work.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST: usize = 16 << 10;

/// A change to an input.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Set(Index, u8),
    /// An integer near the end of what its bytes can hold, or near zero.
    Number(Index, u64, usize),
    Cut(Index, Index),
    Repeat(Index, Index),
    /// The rest of another seed.
    Splice(Index, Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    let near = prop_oneof![
        (0..16_u64),
        (0..16_u64).prop_map(u64::wrapping_neg),
        (0..64_u32).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ];
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(place, bit)| Edit::Flip(place, bit)),
        (at(), any::<u8>()).prop_map(|(place, byte)| Edit::Set(place, byte)),
        (at(), near, prop_oneof![Just(1), Just(2), Just(4), Just(8)])
            .prop_map(|(place, number, bytes)| Edit::Number(place, number, bytes)),
        (at(), at()).prop_map(|(from, to)| Edit::Cut(from, to)),
        (at(), at()).prop_map(|(from, to)| Edit::Repeat(from, to)),
        (at(), at(), at()).prop_map(|(place, seed, from)| Edit::Splice(place, seed, from)),
    ]
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let place = |index: &Index| index.index(input.len() + 1);
        let between = |a: &Index, b: &Index| {
            let (a, b) = (place(a), place(b));
            a.min(b)..a.max(b)
        };
        match self {
            Self::Flip(at, bit) => {
                let at = place(at);
                input.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
            }
            Self::Set(at, new) => {
                let at = place(at);
                input.get_mut(at).into_iter().for_each(|byte| *byte = *new);
            }
            Self::Number(at, number, bytes) => {
                let at = place(at);
                let old = input.iter_mut().skip(at).take(*bytes);
                old.zip(number.to_le_bytes()).for_each(|(old, new)| *old = new);
            }
            Self::Cut(from, to) => {
                let range = between(from, to);
                input.drain(range);
            }
            Self::Repeat(from, to) => {
                let range = between(from, to);
                let part = input[range.clone()].to_vec();
                input.splice(range.end..range.end, part);
            }
            Self::Splice(at, seed, from) => {
                let at = place(at);
                let seed = seed.get(seeds);
                input.truncate(at);
                input.extend_from_slice(&seed[from.index(seed.len() + 1)..]);
            }
        }
        input.truncate(LONGEST);
    }
}

/// All seeds of the target; at least an empty one.
fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    [Vec::new()].into_iter().chain(paths.into_iter().map(read)).collect()
}

fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: '{text}' is no number")))
}

/// Sends each input to `tried` before the target runs on it, until the time is over.
fn run(target: Target, random: u64, tried: &Sender<Vec<u8>>) {
    let seeds = seeds(&target);
    let try_one = |input: Vec<u8>| {
        // Its receiver is gone when it has waited too long.
        let _ = tried.send(input.clone());
        (target.run)(&input);
    };
    seeds.iter().cloned().for_each(try_one);
    let seconds = env_number(SECONDS_ENV).unwrap_or(SECONDS);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&random.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let changes = (any::<Index>(), prop::collection::vec(edit(), 1..8));
    while Instant::now() < end {
        let (seed, edits) = changes.new_tree(&mut runner).expect("it filters nothing").current();
        let mut input = seed.get(&seeds).clone();
        edits.iter().for_each(|edit| edit.apply(&mut input, &seeds));
        try_one(input);
    }
}

/// Runs a target in a thread of its own, and keeps an input that it panics or hangs on.
fn supervise(target: Target, random: u64) -> Result<(), Failed> {
    let (tried, inputs) = channel();
    let thread = std::thread::spawn(move || {
        catch_unwind(AssertUnwindSafe(|| run(target, random, &tried))).is_ok()
    });
    let (mut last, mut count) = (Vec::new(), 0_u64);
    let fault = loop {
        match inputs.recv_timeout(PATIENCE) {
            Ok(input) => (last, count) = (input, count + 1),
            Err(RecvTimeoutError::Timeout) => break "does not end",
            Err(RecvTimeoutError::Disconnected) if thread.join().unwrap_or(false) => {
                eprintln!("fuzz: {}: {count} runs, no fault", target.name);
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => break "panics",
        }
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target.name);
    let file = folder.join("found");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(&file, last)?;
    Err(format!("{fault} on {} ({SEED_ENV}={random})", file.display()).into())
}

fn main() {
    let since = std::time::UNIX_EPOCH.elapsed().expect("it is later than 1970");
    let random = env_number(SEED_ENV).unwrap_or(since.as_secs());
    let trials = TARGETS.iter().map(|target| {
        let target = *target;
        Trial::test(target.name, move || supervise(target, random))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
