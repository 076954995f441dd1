//! Takes the counts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use exoprobe_guest::{ExitHook, Gva};
use exoprobe_probes::{Action, ProbeDefinition, Selection, StatusFlag};
use exoprobe_tests::counts::{Clock, Column, HostKind, Report, RowCounts, SCHEMA};
use exoprobe_tests::loops::{Loops, TURN_INSNS};
use exoprobe_tests::{OwnEvent, TestGuest, definition, unfiltered_host};
use exoprobe_vmm::{ExitCounts, HostSides, Vm};

use crate::bare::Bare;
use crate::rows::{BARE, BODIES, Body, CALLEE, FILTERED, FOUR, OWN_EVENT, Place, ROWS, Row};
use crate::{crowd, script};

/// The first round after stepping has begun may have a step too many (seen in Bochs).
const STEP_ROUNDS: RangeInclusive<u32> = 3..=3;
/// How much later than the round before each begins: 32 of them are about one tick of the lab's
/// timer, so that some rounds have none.
const PAUSES: u32 = 4_000;
/// How many times the planned rounds are run at most, until the least count is sure.
const PATIENCE: u32 = 4;
/// How many rounds of each length must have taken the fewest ticks.
const AGREEING: u32 = 4;
const KVM_EXITS: &str = "exits";
const KVM_EMULATED: &str = "insn_emulation";
const EVENT: &str = "counted";

/// How to measure.
pub(crate) struct Plan {
    pub(crate) turns: u32,
    pub(crate) rounds: u32,
    pub(crate) tsc_counts_instructions: bool,
    pub(crate) single_step: bool,
    pub(crate) quick: bool,
    pub(crate) software_kvm: bool,
}

/// The counters of the vCPU's thread at one end of a loop.
struct Moment {
    /// Before the other counters are read, and after: a loop lies between one's last and the next's
    /// first.
    tsc: [u64; 2],
    exits: ExitCounts,
    kvm: BTreeMap<String, u64>,
}

pub(crate) fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and Linux lets programs run it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Counters of one round, or the least of several.
struct Counts {
    tsc: u64,
    exits: [(&'static str, u64); 7],
    kvm: BTreeMap<String, u64>,
}

impl Counts {
    fn between(before: &Moment, after: &Moment) -> Self {
        let increase = |(name, value): (&String, &u64)| {
            (name.clone(), value.saturating_sub(before.kvm.get(name).copied().unwrap_or(0)))
        };
        Self {
            tsc: after.tsc[0] - before.tsc[1],
            exits: after.exits.since(&before.exits).kinds(),
            kvm: after.kvm.iter().map(increase).collect(),
        }
    }

    /// Lowers each counter to that of another round.
    fn lower(&mut self, other: &Self) {
        self.tsc = self.tsc.min(other.tsc);
        for (mine, (_, value)) in self.exits.iter_mut().zip(other.exits) {
            mine.1 = mine.1.min(value);
        }
        for (name, value) in &mut self.kvm {
            *value = other.kvm.get(name).map_or(0, |other| (*value).min(*other));
        }
    }

    /// Subtracts a shorter run's counts from a longer one's: the ends of both cancel out.
    fn more_than(mut self, shorter: &Self) -> Self {
        self.tsc = self.tsc.saturating_sub(shorter.tsc);
        for (mine, (_, value)) in self.exits.iter_mut().zip(shorter.exits) {
            mine.1 = mine.1.saturating_sub(value);
        }
        for (name, value) in &mut self.kvm {
            *value = value.saturating_sub(shorter.kvm.get(name).copied().unwrap_or(0));
        }
        self
    }

    fn exits(&self, kind: &str) -> u64 {
        self.exits.iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| *count)
    }
}

/// The least counters of several rounds of one length.
struct Least {
    counts: Counts,
    /// How many rounds took so many ticks.
    ticks: BTreeMap<u64, u32>,
}

impl Least {
    fn of(round: Counts) -> Self {
        Self { ticks: BTreeMap::from([(round.tsc, 1)]), counts: round }
    }

    fn add(&mut self, round: &Counts) {
        *self.ticks.entry(round.tsc).or_default() += 1;
        self.counts.lower(round);
    }

    /// How many rounds took the fewest ticks.
    fn agreeing(&self) -> u32 {
        self.ticks.first_key_value().map_or(0, |(_, rounds)| *rounds)
    }
}

impl fmt::Display for Least {
    /// Each number of ticks, with the rounds that took so many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ticks.iter().try_for_each(|(ticks, rounds)| write!(f, " {ticks}x{rounds}"))
    }
}

/// A guest at its loops.
struct Bench<'a> {
    plan: &'a Plan,
    loops: Loops<Moment>,
    missing: BTreeMap<Column, String>,
    /// Turns of all rounds since the row's event was set.
    turns: Cell<u64>,
}

/// Measures all rows: those with probes in one guest, the bare breakpoint and a hit with filters of
/// system calls in others.
pub(crate) fn all(plan: &Plan) -> Report {
    let mut bench = Bench::new(plan, TestGuest::restored_unfiltered(1), kvm_stats, |_| {});
    bench.find_missing();
    let is_alone = |row: &&Row| row.probe.as_ref().is_none_or(|probe| probe.others == 0);
    let wanted = ROWS.iter().filter(|row| !plan.quick || is_alone(row));
    let mut rows: Vec<RowCounts> = wanted.map(|row| bench.row(row)).collect();
    let missing = std::mem::take(&mut bench.missing);
    drop(bench);
    rows.insert(1, bare_row(plan, missing.clone()));
    rows.push(filtered_row(plan, missing.clone()));
    if !plan.quick {
        rows.push(own_event_row(plan, missing.clone()));
    }
    Report {
        schema: SCHEMA,
        host: HostKind::here(plan.software_kvm),
        clock: if plan.tsc_counts_instructions { Clock::Instructions } else { Clock::Time },
        turns: plan.turns,
        rounds: plan.rounds,
        missing,
        rows,
    }
}

/// KVM's statistics of the vCPU; none where the host has none.
fn kvm_stats(vm: &Vm) -> BTreeMap<String, u64> {
    vm.kvm_stats(0).unwrap_or_default()
}

/// The row [`FILTERED`], in a guest whose vCPU's thread has its filter. That forbids to read KVM's
/// statistics.
fn filtered_row(plan: &Plan, mut missing: BTreeMap<Column, String>) -> RowCounts {
    for column in [Column::KvmExits, Column::KvmEmulated] {
        missing.insert(column, "filters forbid to read KVM's statistics".to_owned());
    }
    let mut bench = Bench::new(plan, TestGuest::restored(1), |_| BTreeMap::new(), |_| {});
    bench.missing = missing;
    bench.row(&FILTERED)
}

/// The row [`BARE`], in a guest whose breakpoint there no engine sees.
fn bare_row(plan: &Plan, missing: BTreeMap<Column, String>) -> RowCounts {
    let vm = Vm::restore(&unfiltered_host(), &TestGuest::snapshot(1), &HostSides::default())
        .expect("it was restored before");
    let guest = TestGuest::new(vm);
    let hook = Arc::new(Bare::new(guest.engine.exit_hook()));
    let started = guest.vm.start(Arc::clone(&hook) as Arc<dyn ExitHook>);
    started.expect("a new machine starts");
    let mut bench = Bench::new(plan, guest, kvm_stats, |body| hook.pass_over(body));
    bench.missing = missing;
    bench.row(&BARE)
}

/// The row [`OWN_EVENT`], in a guest whose kernel has kprobe events.
fn own_event_row(plan: &Plan, missing: BTreeMap<Column, String>) -> RowCounts {
    let (guest, event) = OwnEvent::boot(CALLEE, &FOUR);
    let mut bench = Bench::new(plan, guest, kvm_stats, |_| {});
    bench.missing = missing;
    bench.row_of(&OWN_EVENT, |present| event.set(bench.loops.guest(), present))
}

impl<'a> Bench<'a> {
    /// Takes a guest to its loops; `int3` receives the bare one's address before any runs, and
    /// `stats` reads KVM's counters on the vCPU's thread.
    fn new(
        plan: &'a Plan,
        guest: TestGuest,
        stats: fn(&Vm) -> BTreeMap<String, u64>,
        int3: impl FnOnce(Gva),
    ) -> Self {
        let callee = guest.engine.address_of(CALLEE).expect("every kernel has it");
        let codes = BODIES.map(|body| body.code(callee));
        let vm = Arc::clone(&guest.vm);
        let bodies: Vec<&[u8]> = codes.iter().map(Vec::as_slice).collect();
        let loops = Loops::new(guest, &bodies, move || {
            let first = tsc();
            let (exits, kvm) = (vm.exit_counts(), stats(&vm));
            Moment { exits, kvm, tsc: [first, tsc()] }
        });
        int3(loops.body(Body::Int3.index()));
        Self { plan, loops, missing: BTreeMap::new(), turns: Cell::new(0) }
    }

    /// Columns that this host cannot fill, and why.
    fn find_missing(&mut self) {
        match self.loops.guest().vm.kvm_stats(0) {
            Err(error) => {
                self.miss(Column::KvmExits, error.to_string());
                self.miss(Column::KvmEmulated, error.to_string());
            }
            Ok(stats) => {
                for (column, name) in
                    [(Column::KvmExits, KVM_EXITS), (Column::KvmEmulated, KVM_EMULATED)]
                {
                    if !stats.contains_key(name) {
                        self.miss(column, format!("KVM's statistics have no `{name}`"));
                    }
                }
            }
        }
        if let Err(reason) = self.try_steps() {
            self.miss(Column::Guest, reason);
        }
        if !self.plan.tsc_counts_instructions {
            let reason = "the time stamp counter is time here, not instructions";
            self.miss(Column::All, reason.to_owned());
        }
        for needed in [Column::All, Column::Guest] {
            if let Some(reason) = self.missing.get(&needed) {
                let reason = format!("all less guest, and there are no {needed}: {reason}");
                self.missing.entry(Column::Host).or_insert(reason);
            }
        }
    }

    fn miss(&mut self, column: Column, reason: String) {
        self.missing.insert(column, reason);
    }

    fn try_steps(&self) -> Result<(), String> {
        if !self.plan.single_step {
            return Err("not single-stepped, because of --no-single-step".to_owned());
        }
        let vm = &self.loops.guest().vm;
        vm.single_step(0, true).map_err(|e| e.to_string())?;
        let steps = self.least(STEP_ROUNDS, Body::Nothing).exits("step");
        vm.single_step(0, false).map_err(|e| e.to_string())?;
        match u64::from(self.plan.turns) * TURN_INSNS {
            least if steps < least => {
                Err(format!("KVM took {steps} single steps in a loop of {least} instructions"))
            }
            _ => Ok(()),
        }
    }

    fn has(&self, column: Column) -> bool {
        !self.missing.contains_key(&column)
    }

    /// Counters of `turns` turns of a loop, from rounds of so many and of twice as many: of the
    /// least of `rounds` each, and of more until [`Self::is_sure`].
    fn least(&self, rounds: RangeInclusive<u32>, body: Body) -> Counts {
        let lengths = [self.plan.turns, 2 * self.plan.turns];
        let mut least = lengths.map(|turns| Least::of(self.round(0, turns, body)));
        for number in 1..*rounds.end() {
            if number >= *rounds.start() && self.is_sure(&least) {
                break;
            }
            for (least, turns) in least.iter_mut().zip(lengths) {
                least.add(&self.round(number, turns, body));
            }
        }
        if rounds != STEP_ROUNDS && !self.is_sure(&least) {
            let [short, long] = &least;
            eprintln!("not sure of {body:?}: instructions x rounds:{short}; of the double:{long}");
        }
        let [short, long] = least;
        long.counts.more_than(&short.counts)
    }

    fn round(&self, number: u32, turns: u32, body: Body) -> Counts {
        let (before, after) = self.loops.run_later(body.index(), u64::from(turns), number * PAUSES);
        self.turns.set(self.turns.get() + u64::from(turns));
        Counts::between(&before, &after)
    }

    /// Returns true if more rounds would find nothing less: each turn takes the same number of
    /// instructions, so the difference of the lengths is a multiple of the turns. It is not if the
    /// host's interrupts were in all rounds of a length, but by chance.
    fn is_sure(&self, least: &[Least; 2]) -> bool {
        let [short, long] = least;
        let more = long.counts.tsc.saturating_sub(short.counts.tsc);
        !self.plan.tsc_counts_instructions
            || (least.iter().all(|least| least.agreeing() >= AGREEING)
                && more.is_multiple_of(u64::from(self.plan.turns)))
    }

    /// Counters of a loop, and its steps.
    fn side(&self, body: Body) -> (Counts, u64) {
        let rounds = self.plan.rounds;
        let counts = self.least(rounds..=PATIENCE * rounds, body);
        if !self.has(Column::Guest) {
            return (counts, 0);
        }
        let vm = &self.loops.guest().vm;
        vm.single_step(0, true).expect("it stepped before");
        let steps = self.least(STEP_ROUNDS, body).exits("step");
        vm.single_step(0, false).expect("it stepped before");
        (counts, steps)
    }

    fn row(&self, row: &Row) -> RowCounts {
        self.row_of(row, |present| {
            if present {
                self.place(row);
            }
        })
    }

    /// A row whose event `set` puts in place; a probe of the engine's is removed in the end.
    fn row_of(&self, row: &Row, set: impl Fn(bool)) -> RowCounts {
        eprintln!("counting: {}", row.name);
        set(false);
        let (plain, plain_steps) = self.side(row.plain);
        set(true);
        self.turns.set(0);
        let (with, with_steps) = self.side(row.body);
        if row.probe.is_some() {
            self.check_and_remove(row);
        }
        let per_hit = |with: u64, plain: u64| self.per_hit(with, plain);
        let exits =
            with.exits.iter().map(|(name, count)| (*name, per_hit(*count, plain.exits(name))));
        let kvm = |name: &str| per_hit(with.kvm[name], plain.kvm[name]);
        let stepped = self.has(Column::Guest).then(|| per_hit(with_steps, plain_steps));
        let guest = row.guest.or(stepped);
        let all = self.has(Column::All).then(|| per_hit(with.tsc, plain.tsc));
        RowCounts {
            name: row.name.to_owned(),
            displaced: row.probe.map(|probe| probe.displaced),
            registers: row.registers(),
            exits: exits.filter(|(_, n)| *n != 0.0).map(|(k, n)| (k.to_owned(), n)).collect(),
            kvm_exits: self.has(Column::KvmExits).then(|| kvm(KVM_EXITS)),
            kvm_emulated: self.has(Column::KvmEmulated).then(|| kvm(KVM_EMULATED)),
            guest_instructions: guest,
            all_instructions: all,
            host_instructions: all.zip(guest).map(|(all, guest)| all - guest),
        }
    }

    /// Registers the row's probe, and the others that it is to be among.
    fn place(&self, row: &Row) {
        let Some(probe) = &row.probe else { return };
        crowd::register(self.loops.guest(), probe.others);
        let wanted = |line: String| {
            let actions = if probe.counts_only { vec![Action::Count] } else { Vec::new() };
            ProbeDefinition { actions, ..definition(line.trim_end()) }
        };
        let register = |line: String| {
            let registered = self.loops.guest().engine.register(wanted(line));
            registered.unwrap_or_else(|e| panic!("{}: {e}", row.name));
        };
        let args = probe.args.join(" ");
        match probe.place {
            Place::Body => {
                let definition = wanted(format!("p:{EVENT} 0x1 {args}"));
                self.loops.probe_body(row.body.index(), definition, probe.post_handler);
            }
            Place::Entry if probe.script => {
                script::register(self.loops.guest(), wanted(format!("p:{EVENT} {CALLEE} {args}")));
            }
            Place::Entry => register(format!("p:{EVENT} {CALLEE} {args}")),
            Place::Return => register(format!("r:{EVENT} {CALLEE}")),
        }
        if probe.optimized {
            self.loops.guest().optimize(EVENT);
        }
    }

    /// Each turn was a hit, and ran as the row says.
    fn check_and_remove(&self, row: &Row) {
        let guest = self.loops.guest();
        let status = guest.status(EVENT);
        let turns = self.turns.get();
        assert_eq!((status.hits, status.lost), (turns, 0), "{}: {status:?}", row.name);
        assert_eq!(status.displaced, row.probe.map(|p| p.displaced), "{status:?}");
        let optimized = status.flags.contains(&StatusFlag::Optimized);
        assert_eq!(Some(optimized), row.probe.map(|p| p.optimized), "{status:?}");
        guest
            .engine
            .unregister(Selection::event("kprobes", EVENT))
            .unwrap_or_else(|e| panic!("{e}"));
        guest.engine.drain();
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn per_hit(&self, with: u64, plain: u64) -> f64 {
        with.wrapping_sub(plain).cast_signed() as f64 / f64::from(self.plan.turns)
    }
}
