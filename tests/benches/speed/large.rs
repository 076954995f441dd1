//! A guest with much RAM: 500 probes optimized and removed, and how long that stops it.
//!
//! [`SIZES_ENV`], [`LOOP_ENV`] and [`ROUNDS_ENV`] replace the usual sizes, time and rounds.

use std::hint::black_box;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exoprobe_guest::Gpa;
use exoprobe_introspect::Btf;
use exoprobe_probes::{KernelHints, ProbeDefinition, ProbeStatus, Selection, StopStatistics};
use exoprobe_tests::{TestGuest, TestKernel, guest_file, host, kernel_symbols};
use exoprobe_vmm::{Vm, VmConfig};

use crate::figure::{figure, milliseconds};
use crate::functions::{Functions, optimize};

const PROBES: usize = 500;
/// MiB of RAM, and after the colon MiB of them that the host has memory for. After two more, the
/// numbers of vCPUs and of tasks that sleep.
const SIZES: &str = "32:32 16384:0 16384:8192";
/// [`Size::vcpus`] if there is no other number.
const VCPUS: &str = "2";
const TINY_VCPUS: u8 = 4;
/// Replaces [`SIZES`].
const SIZES_ENV: &str = "EXOPROBE_BENCH_SIZES";
const PAGE: usize = 4096;
/// Pages of a MiB.
const PAGES: usize = (1 << 20) / PAGE;
/// Times that all probes are optimized and removed.
const ROUNDS: u64 = 5;
/// Replaces [`ROUNDS`].
const ROUNDS_ENV: &str = "EXOPROBE_BENCH_ROUNDS";
/// Times that the processes are listed, and the time between.
const LISTS: u32 = 10;
const LISTED_EACH: Duration = Duration::from_millis(100);
/// Milliseconds of the guest's loop: longer than the rounds.
const LOOP_MS: u64 = 20_000;
/// Replaces [`LOOP_MS`].
const LOOP_ENV: &str = "EXOPROBE_BENCH_LOOP_MS";

/// A guest.
struct Size {
    /// MiB of RAM, and how many of them the host has memory for.
    mib: u64,
    touched: usize,
    vcpus: u8,
    tasks: u32,
}

impl FromStr for Size {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (mib, rest) = text.split_once(':').unwrap_or((text, ""));
        let (touched, rest) = rest.split_once(':').unwrap_or((rest, VCPUS));
        let (vcpus, tasks) = rest.split_once(':').unwrap_or((rest, "0"));
        let (mib, touched) = (mib.parse()?, touched.parse()?);
        Ok(Self { mib, touched, vcpus: vcpus.parse()?, tasks: tasks.parse()? })
    }
}

/// Measures and prints.
pub(crate) fn run() {
    let sizes = std::env::var(SIZES_ENV);
    for size in sizes.as_deref().unwrap_or(SIZES).split_whitespace() {
        let Ok(parsed) = size.parse() else {
            refuse(&format!("{SIZES_ENV}: `{size}` is not MIB:TOUCHED, and perhaps :VCPUS:TASKS"))
        };
        measure(&parsed);
    }
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(2)
}

/// The number in a variable of the environment, if it has one.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| {
        text.parse().unwrap_or_else(|_| refuse(&format!("{name}: `{text}` is no number")))
    })
}

/// Boots a guest of this size, whose types are known. The tiny kernel has at most four CPUs.
fn boot(size: &Size) -> TestGuest {
    let Size { mib: memory_mib, vcpus, .. } = *size;
    let (kernel, given) = match vcpus {
        ..=TINY_VCPUS => (TestKernel::Tiny, hints_of_tiny()),
        // Its memory has its symbols and types.
        _ => (TestKernel::Linux6_12, KernelHints::default()),
    };
    let config = VmConfig { memory_mib, ..kernel.config(vcpus) };
    let vm = Vm::create(host(), &config).expect("the guest can be made");
    let guest = TestGuest::with_hints(vm, given);
    guest.power_on();
    guest.wait_for_prompt();
    guest
}

fn hints_of_tiny() -> KernelHints {
    let types = std::fs::read(guest_file("vmlinux.btf")).expect("`make guest` makes it");
    let types = Some(Btf::parse(&types).expect("BTF"));
    KernelHints { symbols: Some(kernel_symbols()), types, ..KernelHints::default() }
}

/// Has the guest run `tasks` more tasks, which sleep.
fn crowd(guest: &TestGuest, tasks: u32) {
    if tasks > 0 {
        for (limit, most) in [("pid_max", 32_768), ("threads-max", 2 * tasks)] {
            guest.work(&format!("put /proc/sys/kernel/{limit} {most}"));
        }
        assert_eq!(guest.work(&format!("crowd {tasks}")), u64::from(tasks));
    }
}

fn measure(size: &Size) {
    let rounds = number(ROUNDS_ENV, ROUNDS);
    let begun = Instant::now();
    let guest = boot(size);
    let Size { mib, touched, vcpus, tasks } = *size;
    let name = match tasks {
        0 => format!("{mib} MiB, {touched} touched, {vcpus} vCPUs"),
        _ => format!("{mib} MiB, {vcpus} vCPUs, {tasks} tasks"),
    };
    figure(&format!("{name}: booted"), &format!("{:.1} s", begun.elapsed().as_secs_f64()), "");
    touch(&guest, touched);
    crowd(&guest, tasks);
    let probes = definitions(&guest);
    let before = guest.engine.stop_statistics();
    figure(&format!("{name}: the guest's longest gap, without"), &gap(&guest, || ()), "");
    let (mut optimized, mut took) = (0, [Duration::ZERO; 2]);
    let with = gap(&guest, || {
        for _ in 0..rounds {
            let begun = Instant::now();
            guest.engine.register(probes.clone()).expect("taken");
            optimize(&guest);
            took[0] = took[0].max(begun.elapsed());
            optimized = guest.engine.list().iter().filter(|probe| probe.optimized).count();
            let begun = Instant::now();
            guest.engine.unregister(Selection::all()).expect("they are there");
            took[1] = took[1].max(begun.elapsed());
        }
    });
    figure(&format!("  with {PROBES} probes, {optimized} optimized, {rounds} times"), &with, "");
    let StopStatistics { stops, longest, .. } = guest.engine.stop_statistics();
    figure("  stops", &(stops - before.stops).to_string(), "");
    figure("  the longest stop", &milliseconds(longest), "<= 2 ms");
    figure("  longest to register and optimize", &milliseconds(took[0]), "");
    figure("  longest to remove", &milliseconds(took[1]), "");
    let with = gap(&guest, || (0..LISTS).for_each(|_| read_tasks(&guest, tasks)));
    let name = format!("  patrolled, processes listed, the last looked up, {LISTS} times");
    figure(&name, &with, "<= 2 ms");
    guest.assert_unharmed();
}

/// Patrols, lists the processes and reads the stack of the last, which is looked for by its number.
fn read_tasks(guest: &TestGuest, tasks: u32) {
    std::thread::sleep(LISTED_EACH);
    guest.engine.patrol();
    let listed = guest.engine.processes().expect("the kernel has a list of them");
    assert!(listed.len() > tasks as usize);
    let last = listed.last().expect("there is init").task.id.pid;
    assert!(!guest.engine.task_stack(last).expect("it is there").is_empty());
}

/// Has the host give memory to `mib` MiB of the guest, without a change to any of it.
fn touch(guest: &TestGuest, mib: usize) {
    let ram = guest.vm.ram();
    let all = ram.ranges().into_iter();
    let pages = all.flat_map(|range| (range.start.0..range.start.0 + range.len).step_by(PAGE));
    for at in pages.take(mib * PAGES) {
        // Writes back what is there. `fetch_or(0)` would do as well, but compilers leave it out.
        let word = ram.word(Gpa(at)).expect("in RAM");
        let _ = black_box(word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed));
    }
}

/// The first functions of the kernel whose probes would be optimized.
fn definitions(guest: &TestGuest) -> Vec<ProbeDefinition> {
    let all = Functions::of(guest);
    let rehearsal = all.rehearse(guest);
    let would_be = |probe: &ProbeStatus| probe.unoptimized_reason.is_none();
    all.accepted(&rehearsal, would_be).take(PROBES).collect()
}

/// The longest time that a loop in the guest's user mode was not run, while the host does `act`.
fn gap(guest: &TestGuest, act: impl FnOnce()) -> String {
    let ms = number(LOOP_ENV, LOOP_MS);
    let ticks = std::thread::scope(|scope| {
        let guest_loop = scope.spawn(|| guest.work(&format!("gap {ms}")));
        act();
        if guest_loop.is_finished() {
            refuse(&format!("the guest's loop of {ms} ms ended first: give {LOOP_ENV} more"));
        }
        guest_loop.join().expect("the loop ends")
    });
    let khz = u64::from(guest.vm.clock().khz());
    milliseconds(Duration::from_micros(ticks * 1000 / khz))
}
