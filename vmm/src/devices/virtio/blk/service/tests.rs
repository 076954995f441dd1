use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_queue::QueueT as _;

use super::*;
use crate::config::DiskMode::{self, Overlay, ReadWrite};
use crate::devices::virtio::bench::TestQueues;
use crate::devices::virtio::blk::pool::THREADS;

const RAM: u64 = 4 << 20;
const SIZE: u16 = 256;
/// Where each request's buffers are: header, data, outcome.
const BUFFERS: u64 = 0x10_0000;
const STEP: u64 = 0x4000;
const DATA: u64 = 0x1000;
const OUTCOME: u64 = 0x3800;
/// Sectors of the disk, in units of 4 KiB of which each request has one.
const UNIT: u64 = 8;
const UNITS: u64 = 64;
/// An outcome that is none.
const NONE: u8 = 0xee;
const OK: u8 = 0;
const IOERR: u8 = 1;
/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds requests of the pool until the test releases them.
#[derive(Default)]
struct Gate {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// Heads of those that wait.
    waiting: BTreeSet<u16>,
    released: BTreeSet<u16>,
    is_open: bool,
}

impl Gate {
    fn pass(&self, head: u16) {
        let mut state = self.state.lock().unwrap();
        state.waiting.insert(head);
        self.changed.notify_all();
        while !state.is_open && !state.released.remove(&head) {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting.remove(&head);
    }

    /// Waits until so many wait. Returns their heads.
    fn held(&self, count: usize) -> Vec<u16> {
        let state = self.state.lock().unwrap();
        let is_short = |held: &mut Held| held.waiting.len() < count;
        let (state, timeout) = self.changed.wait_timeout_while(state, PATIENCE, is_short).unwrap();
        assert!(!timeout.timed_out(), "{} of {count}", state.waiting.len());
        state.waiting.iter().copied().collect()
    }

    fn release(&self, head: u16) {
        self.state.lock().unwrap().released.insert(head);
        self.changed.notify_all();
    }

    fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_open = true;
        self.changed.notify_all();
    }
}

/// A disk whose driver is the test, and of which each read would wait.
struct Bench {
    rings: TestQueues,
    service: DiskService,
    disk: Arc<Disk>,
    gate: Arc<Gate>,
    heads: Vec<u16>,
}

impl Drop for Bench {
    /// A test that fails ends.
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// The content of a unit at the beginning.
fn content(unit: u64) -> u8 {
    u8::try_from(unit).unwrap() + 1
}

fn write_content(path: &Path) {
    let content: Vec<u8> = (0..UNITS).flat_map(|unit| [content(unit); 4096]).collect();
    std::fs::write(path, content).unwrap();
}

fn service(disk: &Arc<Disk>, gate: &Arc<Gate>, rings: &TestQueues) -> DiskService {
    let gate = Arc::clone(gate);
    let work = move |disk: &Disk, id: &str, job: &Job| {
        gate.pass(job.chain.head_index());
        carry_out(disk, id, job)
    };
    let (id, threads) = ("disk0".to_owned(), Threads::default());
    DiskService::with(Arc::clone(disk), id, rings.ram.clone(), &threads, work).unwrap()
}

impl Bench {
    fn new(path: &Path, mode: DiskMode) -> Self {
        write_content(path);
        let disk = Arc::new(Disk::open(path, mode).unwrap().without_nowait());
        let (rings, gate) = (TestQueues::new(RAM, 1, SIZE), Arc::<Gate>::default());
        let service = service(&disk, &gate, &rings);
        Self { rings, service, disk, gate, heads: Vec::new() }
    }

    /// Gives a request of so many bytes, of which a read's are 0xaa before.
    fn give(&mut self, kind: u32, sector: u64, data: &[u8]) {
        let at = BUFFERS + STEP * self.heads.len() as u64;
        let header = [kind.to_le_bytes(), [0; 4]].concat();
        self.rings.write(at, &[header, sector.to_le_bytes().to_vec()].concat());
        self.rings.write(at + DATA, data);
        self.rings.write(at + OUTCOME, &[NONE]);
        let is_read = matches!(kind, VIRTIO_BLK_T_IN | VIRTIO_BLK_T_GET_ID);
        let len = u32::try_from(data.len()).unwrap();
        let request = [(at, 16, false), (at + DATA, len, is_read), (at + OUTCOME, 1, true)];
        self.heads.push(self.rings.give(0, &request));
    }

    fn read(&mut self, unit: u64) {
        self.give(VIRTIO_BLK_T_IN, unit * UNIT, &[0xaa; 4096]);
    }

    fn serve(&mut self, event: Event) {
        let TestQueues { ram, queues, .. } = &mut self.rings;
        self.service.serve(event, queues, ram.as_memory()).unwrap();
    }

    /// Has the device take what it takes.
    fn kick(&mut self) {
        self.serve(Event::Kick(0));
        while self.rings.is_kicked(0) {
            self.serve(Event::Kick(0));
        }
    }

    fn used(&self) -> Vec<u32> {
        self.rings.used(0).into_iter().map(|(head, _)| head).collect()
    }

    /// Has a request of the pool carried out, and waits until it was given back.
    fn let_pass(&mut self, head: u16) {
        let before = self.used().len();
        self.gate.release(head);
        let tries = PATIENCE.as_micros() / 100;
        for _ in 0..tries {
            self.serve(Event::Source);
            if self.used().len() > before {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        panic!("{head} never came back");
    }

    fn outcome(&self, request: usize) -> u8 {
        self.rings.bytes(BUFFERS + STEP * request as u64 + OUTCOME, 1)[0]
    }

    fn data(&self, request: usize) -> Vec<u8> {
        self.rings.bytes(BUFFERS + STEP * request as u64 + DATA, 4096)
    }

    /// The disk's content by units, as another request reads it.
    fn on_disk(&self) -> Vec<u8> {
        let mut found = vec![0; 4096 * usize::try_from(UNITS).unwrap()];
        let buffers = vec![vm_memory::VolatileSlice::from(&mut found[..])];
        self.disk.read(0, &buffers.into(), Waiting::Allowed).unwrap();
        found
    }

    fn finish(&mut self) {
        self.service.finish(&mut self.rings.queues).unwrap();
    }
}

fn path(dir: &tempfile::TempDir) -> std::path::PathBuf {
    dir.path().join("disk")
}

#[test]
fn requests_that_do_not_wait_come_back_at_once_past_those_that_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    bench.read(3);
    bench.give(VIRTIO_BLK_T_GET_ID, 0, &[0; 20]);
    bench.give(VIRTIO_BLK_T_OUT, UNIT, &[0x55; 4096]);
    bench.give(VIRTIO_BLK_T_FLUSH, 0, &[]);
    bench.give(99, 0, &[]);
    bench.kick();
    let [first, id, write, flush, unknown] = bench.heads[..] else { panic!("five") };
    assert_eq!(bench.used(), [id, write, unknown].map(u32::from));
    assert_eq!(bench.gate.held(2), [first, flush]);
    assert_eq!(bench.outcome(0), NONE);
    bench.let_pass(flush);
    bench.let_pass(first);
    assert_eq!(bench.used()[3..], [flush, first].map(u32::from));
    assert_eq!((bench.data(0), bench.outcome(0)), (vec![content(3); 4096], OK));
    assert_eq!(bench.rings.written(0), [21, 1, 1, 1, 4097]);
    assert_eq!(bench.rings.interrupts(), 5);
}

#[test]
fn a_request_that_waits_alone_is_carried_out_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    bench.read(3);
    bench.kick();
    assert_eq!((bench.used().len(), bench.data(0)), (1, vec![content(3); 4096]), "at once");
    bench.read(4);
    bench.read(5);
    bench.kick();
    assert_eq!(bench.gate.held(2), bench.heads[1..], "these are two");
    bench.read(6);
    bench.kick();
    assert_eq!(bench.gate.held(3), bench.heads[1..], "and this is not alone");
    assert_eq!(bench.used().len(), 1);
    bench.gate.open();
    bench.finish();
    assert!((0..4).all(|at| bench.data(at) == [content(at as u64 + 3); 4096]));
}

#[test]
fn a_file_in_memory_never_waits() {
    let file = memfd_create("disk", MemfdFlags::CLOEXEC).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    write_content(Path::new(&path));
    let disk = Arc::new(Disk::open(Path::new(&path), ReadWrite).unwrap());
    let (rings, gate) = (TestQueues::new(RAM, 1, SIZE), Arc::<Gate>::default());
    let service = service(&disk, &gate, &rings);
    let mut bench = Bench { rings, service, disk, gate, heads: Vec::new() };
    for unit in 0..20 {
        bench.read(unit);
    }
    bench.give(VIRTIO_BLK_T_OUT, 1, &[0x55; 512]);
    bench.kick();
    assert_eq!(bench.used().len(), 21);
    assert!((0..20).all(|at| bench.data(at) == [content(at as u64); 4096]));
}

#[test]
fn no_more_requests_are_taken_than_there_are_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    (0..40).for_each(|unit| bench.read(unit));
    bench.kick();
    let held = bench.gate.held(THREADS);
    assert_eq!(held, bench.heads[..THREADS]);
    // Neither the driver's kicks nor the device's change that.
    bench.kick();
    bench.serve(Event::Source);
    assert_eq!((bench.service.pool.has_room(0), bench.used().len()), (false, 0));
    let mut rest = bench.heads.clone();
    while let Some(head) = rest.pop() {
        if !bench.gate.held(1).contains(&head) {
            rest.insert(0, head);
            continue;
        }
        bench.let_pass(head);
        assert_eq!(bench.rings.is_kicked(0), bench.used().len() <= 25, "it takes the next");
        bench.kick();
        bench.gate.held(THREADS.min(40 - bench.used().len()));
    }
    assert_eq!(bench.used().iter().collect::<BTreeSet<_>>().len(), 40);
    assert!((0..40).all(|at| bench.data(at) == [content(at as u64); 4096]));
}

#[test]
fn the_end_waits_for_requests_under_way_and_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    (0..THREADS as u64 + 5).for_each(|unit| bench.read(unit));
    bench.kick();
    bench.gate.held(THREADS);
    let gate = Arc::clone(&bench.gate);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        gate.open();
    });
    bench.finish();
    opener.join().unwrap();
    let mut used = bench.used();
    used.sort_unstable();
    let taken: Vec<u32> = bench.heads[..THREADS].iter().copied().map(u32::from).collect();
    assert_eq!(used, taken, "all of those, and none twice");
    assert!((0..THREADS).all(|at| bench.outcome(at) == OK));
    assert!((THREADS..THREADS + 5).all(|at| bench.outcome(at) == NONE));
    // A snapshot's device goes on where the queue stands.
    bench.service = service(&bench.disk, &bench.gate, &bench.rings);
    bench.kick();
    bench.finish();
    assert_eq!(bench.used().iter().collect::<BTreeSet<_>>().len(), THREADS + 5);
    assert!((0..THREADS + 5).all(|at| bench.data(at) == [content(at as u64); 4096]));
}

#[test]
fn a_file_that_shrinks_under_a_request_is_an_io_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    bench.read(3);
    bench.give(VIRTIO_BLK_T_OUT, 3 * UNIT + 1, &[0x55; 512]);
    let zeroes = [(3 * UNIT).to_le_bytes().to_vec(), vec![8, 0, 0, 0, 0, 0, 0, 0]].concat();
    bench.give(VIRTIO_BLK_T_WRITE_ZEROES, 0, &zeroes);
    bench.read(0);
    bench.kick();
    bench.gate.held(4);
    let file = std::fs::File::options().write(true).open(path(&dir)).unwrap();
    file.set_len(4096).unwrap();
    bench.gate.open();
    bench.finish();
    assert_eq!([0, 1, 2, 3].map(|at| bench.outcome(at)), [IOERR, IOERR, IOERR, OK]);
    assert_eq!(file.metadata().unwrap().len(), 4096);
}

#[test]
fn a_damaged_queue_gets_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&path(&dir), ReadWrite);
    bench.read(0);
    bench.read(1);
    bench.kick();
    bench.gate.held(2);
    bench.rings.queues[0].1.queue.set_ready(false);
    bench.gate.open();
    bench.finish();
    assert!(bench.used().is_empty());
}

/// A request of the property test, on a unit of its own.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Read,
    /// Whole, or the first sector: that would wait.
    Write(bool),
    Zeroes,
    Flush,
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        4 => Just(Asked::Read),
        3 => any::<bool>().prop_map(Asked::Write),
        1 => Just(Asked::Zeroes),
        1 => Just(Asked::Flush),
    ]
}

impl Bench {
    /// Gives the request of a unit; changes `model`, the disk's content, as it will.
    fn ask(&mut self, asked: Asked, unit: u64, model: &mut [u8]) {
        let start = usize::try_from(unit * 4096).unwrap();
        match asked {
            Asked::Read => self.read(unit),
            Asked::Write(is_whole) => {
                let len = if is_whole { 4096 } else { 512 };
                self.give(VIRTIO_BLK_T_OUT, unit * UNIT, &vec![0x99; len]);
                model[start..][..len].fill(0x99);
            }
            Asked::Zeroes => {
                let sectors = [(unit * UNIT).to_le_bytes().to_vec(), vec![2, 0, 0, 0, 0, 0, 0, 0]];
                self.give(VIRTIO_BLK_T_WRITE_ZEROES, 0, &sectors.concat());
                model[start..][..1024].fill(0);
            }
            Asked::Flush => self.give(VIRTIO_BLK_T_FLUSH, 0, &[]),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In whatever order the pool's requests end, and whenever the device stops meanwhile: each
    /// comes back once, with its own data, and the disk has what was written.
    #[test]
    fn requests_come_back_in_any_order(
        all in prop::collection::vec(asked(), 1..60),
        order in prop::collection::vec(any::<u16>(), 60),
        (stops_after, is_overlay) in (0..60_usize, any::<bool>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mode = if is_overlay { Overlay } else { ReadWrite };
        let mut bench = Bench::new(&path(&dir), mode);
        let mut model = bench.on_disk();
        for (unit, asked) in (0..).zip(&all) {
            bench.ask(*asked, unit, &mut model);
        }
        bench.kick();
        let mut stopped = false;
        for choice in order {
            let held = bench.service.pool.under_way();
            prop_assert!(held <= THREADS);
            if held == 0 {
                break;
            }
            if !stopped && bench.used().len() >= stops_after {
                stopped = true;
                bench.gate.open();
                bench.finish();
                bench.gate.state.lock().unwrap().is_open = false;
                bench.service = service(&bench.disk, &bench.gate, &bench.rings);
            } else {
                let held = bench.gate.held(held);
                bench.let_pass(held[usize::from(choice) % held.len()]);
            }
            bench.kick();
        }
        bench.gate.open();
        bench.finish();
        let mut used = bench.used();
        used.sort_unstable();
        let heads: Vec<u32> = bench.heads.iter().copied().map(u32::from).collect();
        prop_assert_eq!(used, heads);
        for (unit, asked) in all.iter().enumerate() {
            prop_assert_eq!(bench.outcome(unit), OK);
            if matches!(asked, Asked::Read) {
                prop_assert!(bench.data(unit) == [content(unit as u64); 4096]);
            }
        }
        prop_assert!(bench.on_disk() == model);
        if is_overlay {
            let below = std::fs::read(path(&dir)).unwrap();
            prop_assert!(below.chunks(4096).zip(0..).all(|(unit, at)| unit == [content(at); 4096]));
        }
    }
}
