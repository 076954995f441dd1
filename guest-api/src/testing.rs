//! A guest made by hand, for tests: RAM without a CPU. The feature `testing` has it; no product
//! enables it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use kvm_bindings::kvm_sregs;
use vmm_sys_util::errno::Error;

use crate::addr::Gpa;
use crate::dirty::{DirtyLog, DirtyLogError, PageRun, PageSet};
use crate::guest::Guest;
use crate::hidden::HiddenMemory;
use crate::hook::SregsSource;
use crate::memory::{GuestRam, ram_ranges};
use crate::paging::PAGE_SIZE;
use crate::registers::{Registers, VcpuError};

/// A machine with one vCPU that executes nothing. A test writes its RAM, sets its registers, and
/// calls the engine's hook as a vCPU's thread would.
pub struct FakeGuest {
    /// The guest's RAM.
    pub ram: GuestRam,
    /// Its hidden memory.
    pub hidden: HiddenMemory,
    /// CR3, with 4-level paging on; 0 while paging is off.
    pub root: AtomicU64,
    /// IA32_LSTAR, and every other model-specific register.
    pub lstar: AtomicU64,
    /// Number of calls of [`Guest::sync_vcpus`].
    pub syncs: AtomicU64,
    /// The machine has stopped.
    pub stopped: AtomicBool,
    /// The machine is paused.
    pub paused: AtomicBool,
    /// Where [`Guest::sync_vcpus`] waits while a test keeps it closed.
    pub gate: Gate,
    /// Called when the log of the guest's writes is read: gives the pages that the guest has
    /// written since. Without it the guest writes none, and what a test writes by [`Self::ram`] is
    /// the host's.
    pub writes: Mutex<Option<Writes>>,
    /// The host has no log of the guest's writes.
    pub is_logless: AtomicBool,
    /// The vCPU's registers where it stands still; CR3 is [`Self::root`].
    pub registers: Mutex<Registers>,
}

impl FakeGuest {
    /// A machine of `mib` MiB with zeroed RAM.
    ///
    /// # Panics
    /// If the host has no memory for it.
    #[must_use]
    pub fn new(mib: u64) -> Self {
        let ram = GuestRam::anonymous(&ram_ranges(mib)).expect("the host has memory");
        Self {
            hidden: HiddenMemory::new(&ram, 1).expect("the host has memory"),
            ram,
            root: AtomicU64::new(0),
            lstar: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            gate: Gate::default(),
            registers: Mutex::default(),
            writes: Mutex::default(),
            is_logless: AtomicBool::new(false),
        }
    }

    /// The registers that decide how [`Self::root`] is walked.
    #[must_use]
    pub fn sregs_now(&self) -> kvm_sregs {
        match self.root.load(Ordering::SeqCst) {
            0 => kvm_sregs::default(),
            cr3 => kvm_sregs {
                cr0: 1 << 31 | 1,
                cr3,
                cr4: 1 << 5,
                efer: 1 << 10 | 1 << 8,
                ..kvm_sregs::default()
            },
        }
    }
}

/// Pages that the guest writes before the read with this number of one log, counted from 0.
pub type Writes = Box<dyn FnMut(u32) -> Vec<Gpa> + Send>;

/// The log of a [`FakeGuest`].
struct FakeLog<'a> {
    guest: &'a FakeGuest,
    reads: u32,
    written: Vec<Gpa>,
}

impl DirtyLog for FakeLog<'_> {
    fn read(&mut self, pages: &mut PageSet) -> Result<(), DirtyLogError> {
        if let Some(writes) = &mut *lock(&self.guest.writes) {
            self.written.extend(writes(self.reads));
        }
        self.reads += 1;
        self.written.iter().for_each(|page| pages.insert(*page));
        Ok(())
    }

    fn clear(&mut self, pages: &PageRun) -> Result<(), DirtyLogError> {
        let of_page = |at: Gpa| at.0 / PAGE_SIZE;
        let cleared: HashSet<u64> = pages.pages().map(of_page).collect();
        self.written.retain(|at| !cleared.contains(&of_page(*at)));
        Ok(())
    }
}

impl SregsSource for FakeGuest {
    fn sregs(&self) -> Result<kvm_sregs, Error> {
        Ok(self.sregs_now())
    }
}

impl Guest for FakeGuest {
    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    fn hidden(&self) -> &HiddenMemory {
        &self.hidden
    }

    fn vcpus(&self) -> u8 {
        1
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        Ok(self.sregs_now())
    }

    fn msr(&self, _: u32) -> Result<u64, VcpuError> {
        Ok(self.lstar.load(Ordering::SeqCst))
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        Ok(0)
    }

    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.gate.pass();
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        let mut registers = *lock(&self.registers);
        registers.sregs.cr3 = self.root.load(Ordering::SeqCst);
        access(&[registers]);
        Ok(())
    }

    fn log_writes(&self) -> Result<Box<dyn DirtyLog + '_>, DirtyLogError> {
        if self.is_logless.load(Ordering::SeqCst) {
            return Err(DirtyLogError::Unsupported("a host without a log"));
        }
        Ok(Box::new(FakeLog { guest: self, reads: 0, written: Vec::new() }))
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }
}

/// A gate that a test closes before a thread comes to it.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    has_visitor: bool,
}

impl Gate {
    /// Makes threads wait at the gate.
    pub fn close(&self) {
        lock(&self.state).is_closed = true;
    }

    /// Lets waiting threads through.
    pub fn open(&self) {
        lock(&self.state).is_closed = false;
        self.changed.notify_all();
    }

    /// Waits until a thread has come to the closed gate.
    pub fn wait_for_visitor(&self) {
        let state = self.changed.wait_while(lock(&self.state), |state| !state.has_visitor);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn pass(&self) {
        let mut state = lock(&self.state);
        while state.is_closed {
            state.has_visitor = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if the mapping that contains `address` of this process has a flag: two letters of
/// `VmFlags` in `/proc/self/smaps` (Linux, Documentation/filesystems/proc.rst).
///
/// # Panics
/// If nothing is mapped there.
#[must_use]
pub fn has_vm_flag(address: usize, flag: &str) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let mut lines = smaps.lines();
    let found = lines.by_ref().any(|line| range(line).is_some_and(|it| it.contains(&address)));
    assert!(found, "nothing is mapped at {address:#x}");
    let flags =
        lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("each mapping has some");
    flags.split_whitespace().any(|other| other == flag)
}
