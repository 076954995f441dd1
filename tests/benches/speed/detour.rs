//! The cost of a detour where code runs natively: the code that guests get, in this program, over a
//! ring in its own memory; and how fast its records are read.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_guest::Gva;
use exoprobe_probes::Register;
use exoprobe_probes::detour::{
    Block, BlockAction, Current, Detour, DetourEnv, GuestRing, JMP_LEN, Mapped, RecordShape,
    Region, TextFacts, Value, Words,
};
use exoprobe_probes::insn::Assurances;

use crate::figure::{figure, least};

const SIZE: usize = 8 << 20;
/// Offsets in the mapping.
const FUNCTION: usize = 0;
const STORE: usize = 0x100;
const DETOUR: usize = 0x200;
const COUNTER: usize = 0x1000;
const CPU: usize = 0x1008;
const CURRENT: usize = 0x1010;
const STAMP: usize = 0x1018;
/// Stands for the current task.
const TASK: usize = 0x1020;
const RING: usize = 0x2000;
/// As in a guest with one vCPU.
const RING_LEN: u64 = 1 << 22;
/// Calls that fill no ring: 64 bytes are the longest records here.
const CALLS: u32 = 4000;
const ROUNDS: usize = 200;
/// nop; ret
const BODY: [u8; 8] = [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3, 0xcc, 0xcc];
/// push rax; push rdx; rdtsc; shl rdx,32; or rax,rdx; mov [abs32],rax; pop rdx; pop rax; ret
const STAMPED: [u8; 21] = [
    0x50, 0x52, 0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0x04, 0x25, 0, 0,
    0, 0, 0x5a, 0x58,
];
/// As many arguments as make a record of 64 bytes.
const FOUR: [Register; 4] = [Register::Di, Register::Si, Register::Dx, Register::Cx];
/// Their records.
const SHAPE: RecordShape<'static> = RecordShape { args: FOUR.len(), in_bytes: &[] };

/// A text of one function without anything special.
struct Plain;

impl TextFacts for Plain {
    fn assurances(&self) -> Assurances {
        Assurances::ALL
    }
    fn is_target(&self, _: Gva) -> bool {
        false
    }
    fn follows_call(&self, _: Gva) -> bool {
        false
    }
    fn is_reserved(&self, _: Gva) -> bool {
        false
    }
    fn indirect_jump(&self, _: Gva) -> Option<(String, Gva)> {
        None
    }
    fn may_fault(&self, _: Gva) -> bool {
        false
    }
    fn is_rewritten(&self, _: Gva, _: usize) -> bool {
        false
    }
}

/// Memory below 2 GiB that holds code and what it writes.
struct Mapping(*mut u8);

// SAFETY: all accesses are atomic words or happen before any other thread has it.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), SIZE, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self(base.cast())
    }

    fn at(&self, offset: usize) -> u64 {
        self.0 as u64 + offset as u64
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: inside the mapping as just checked.
        let to = unsafe { self.0.add(offset) };
        // SAFETY: as checked, and `&mut self` makes the access exclusive.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        let offset = usize::try_from(offset).expect("an offset");
        assert!(offset + 8 <= SIZE && offset % 8 == 0);
        // SAFETY: inside the mapping as just checked.
        let at = unsafe { self.0.add(offset) };
        // SAFETY: aligned, initialised by mmap, and only accessed as an atomic while it is lent.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Calls the code at `offset` so many times. Returns nanoseconds a call.
    fn time(&self, offset: usize, calls: u32) -> f64 {
        // SAFETY: code was written there that keeps to the C calling convention.
        let function: extern "C" fn(u64, u64, u64, u64, u64) =
            unsafe { std::mem::transmute(self.at(offset)) };
        let begun = Instant::now();
        for call in 0..calls {
            function(u64::from(call), 2, 3, 4, 5);
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    }
}

impl Words for Mapping {
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: u64, word: u64) {
        self.word(offset).store(word, Ordering::Release);
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let swapped =
            self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        swapped.map(|_| ())
    }
}

/// Code at `FUNCTION` with a detour for one probe.
fn detoured(mapping: &mut Mapping, task: BlockAction) {
    let at = |offset: usize| Gva(mapping.at(offset));
    let env = DetourEnv {
        rings: Gva(mapping.at(RING)),
        stride: 0x10000,
        mask: u32::try_from(RING_LEN - 1).expect("22 bits"),
        // A program's GS is 0, so that an offset is an address.
        cpu: Some(at(CPU)),
        current: Some(Current { task: at(CURRENT), pid: 0, comm: 8 }),
        mapped: Vec::new(),
        hidden: Mapped { start: at(0), len: SIZE as u64 },
        guards_loads: false,
        in_kernel: false,
    };
    let (home, at) = (mapping.at(FUNCTION), mapping.at(DETOUR));
    let block = Block { number: 1, counter: Gva(mapping.at(COUNTER)), task };
    let region = Region::check(&BODY, Gva(home), &Plain).expect("nothing is in its way");
    let detour = Detour::assemble(&region, &[block], &env, Gva(at)).expect("all is in reach");
    mapping.write(DETOUR, &detour.bytes);
    let distance = at + detour.entry as u64 - (home + JMP_LEN as u64);
    let mut jmp = vec![0xe9];
    jmp.extend(u32::try_from(distance).expect("near").to_le_bytes());
    mapping.write(FUNCTION, &jmp);
}

/// Measures and prints.
pub(crate) fn run() {
    let mut mapping = Mapping::new();
    mapping.write(FUNCTION, &BODY);
    let task = mapping.at(TASK).to_le_bytes();
    mapping.write(CURRENT, &task);
    let mut stamped = STAMPED.to_vec();
    let stamp = u32::try_from(mapping.at(STAMP)).expect("below 2 GiB").to_le_bytes();
    stamped[15..19].copy_from_slice(&stamp);
    stamped.push(0xc3);
    mapping.write(STORE, &stamped);
    let plain = least(ROUNDS, || mapping.time(FUNCTION, CALLS));
    let store = least(ROUNDS, || mapping.time(STORE, CALLS)) - plain;
    detoured(&mut mapping, BlockAction::Count);
    let count = least(ROUNDS, || mapping.time(FUNCTION, CALLS)) - plain;
    detoured(&mut mapping, BlockAction::record(FOUR.map(Value::Register).to_vec()));
    let mut ring = GuestRing::new(&mapping, RING as u64, RING_LEN);
    let (mut record, mut drain, mut taken) = (f64::INFINITY, f64::INFINITY, 0);
    for _ in 0..ROUNDS {
        record = record.min(mapping.time(FUNCTION, CALLS) - plain);
        let begun = Instant::now();
        let drained = ring.drain(&mapping, |_| Some(SHAPE), |_| taken += 1);
        drained.expect("no other writer");
        drain = drain.min(begun.elapsed().as_secs_f64() / f64::from(CALLS));
    }
    assert_eq!(taken, u64::from(CALLS) * ROUNDS as u64, "every call is a record");
    figure("detour, a record of 64 bytes", &format!("{record:.1} ns"), "<= 60 ns");
    figure("detour, count only", &format!("{count:.1} ns"), "<= 15 ns");
    figure("  a bare time-stamped store", &format!("{store:.1} ns"), "");
    figure("records read on one core", &format!("{:.1} M/s", 1e-6 / drain), ">= 5 M/s");
    let lost = at_a_million(&mapping, &mut ring);
    figure("  lost of a second's records at 1 M/s", &lost.to_string(), "0");
}

/// Records that are lost of those of a second, when a million come in it and are read at the same
/// time.
fn at_a_million(mapping: &Mapping, ring: &mut GuestRing) -> u64 {
    const BATCH: u32 = 1000;
    let before = mapping.load(COUNTER as u64);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            for batch in 1..=1000 {
                mapping.time(FUNCTION, BATCH);
                while begun.elapsed() < Duration::from_millis(batch) {
                    std::hint::spin_loop();
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            ring.drain(mapping, |_| Some(SHAPE), |_| {}).expect("no other writer");
        }
    });
    mapping.load(COUNTER as u64) - before
}
