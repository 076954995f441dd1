//! Stops of the guest, and how long they take.

#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "public with the feature `testing`")
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_guest::dirty::{DirtyLog, DirtyLogError};
use exoprobe_guest::{Guest, GuestRam, HiddenMemory, Registers, VcpuError, kvm_sregs};

/// A guest whose stops are timed.
pub struct TimedGuest {
    guest: Arc<dyn Guest>,
    stops: AtomicU64,
    /// The longest, in nanoseconds.
    longest: AtomicU64,
}

impl TimedGuest {
    /// Times the stops of `guest` from now on.
    #[must_use]
    pub fn new(guest: Arc<dyn Guest>) -> Self {
        Self { guest, stops: AtomicU64::new(0), longest: AtomicU64::new(0) }
    }

    /// Their number, and the longest from the first kick to the last vCPU's release.
    #[must_use]
    pub fn stops(&self) -> (u64, Duration) {
        let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        (self.stops.load(Ordering::Relaxed), longest)
    }
}

impl Guest for TimedGuest {
    fn ram(&self) -> &GuestRam {
        self.guest.ram()
    }

    fn hidden(&self) -> &HiddenMemory {
        self.guest.hidden()
    }

    fn vcpus(&self) -> u8 {
        self.guest.vcpus()
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        self.guest.sregs()
    }

    fn msr(&self, index: u32) -> Result<u64, VcpuError> {
        self.guest.msr(index)
    }

    fn tsc_offset(&self) -> Result<u64, VcpuError> {
        self.guest.tsc_offset()
    }

    fn sync_vcpus(&self) -> Result<(), VcpuError> {
        self.guest.sync_vcpus()
    }

    fn with_vcpus_still(&self, access: &mut dyn FnMut(&[Registers])) -> Result<(), VcpuError> {
        let begun = Instant::now();
        let still = self.guest.with_vcpus_still(access);
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.longest.fetch_max(took, Ordering::Relaxed);
        self.stops.fetch_add(1, Ordering::Relaxed);
        still
    }

    fn log_writes(&self) -> Result<Box<dyn DirtyLog + '_>, DirtyLogError> {
        self.guest.log_writes()
    }

    fn stopped(&self) -> bool {
        self.guest.stopped()
    }

    fn paused(&self) -> bool {
        self.guest.paused()
    }
}
