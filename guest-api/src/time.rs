//! Guest time: the time since the guest's power-on, computed from the host's time-stamp counter, so
//! that a hit's time costs no exit. The guest's own counter cannot be its base: KVM starts that at
//! zero on some hosts and at the host's value on others.

/// A moment on the guest's clock: ticks of the time-stamp counter since power-on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct GuestTime(pub u64);

/// The clock of one guest. Like the guest's own, it continues while the guest is paused, and stands
/// still in a snapshot. The default one ticks at an unknown rate: for engines without a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestClock {
    offset: u64,
    khz: u32,
}

impl GuestClock {
    /// A clock that reads `now`, and ticks `khz` times per millisecond: the rate of the guest's
    /// counter (KVM_GET_TSC_KHZ), which must be the host's, as it is by KVM's default.
    ///
    /// ```
    /// use exoprobe_guest::{GuestClock, GuestTime};
    ///
    /// let clock = GuestClock::new(GuestTime(0), 2_000_000);
    /// assert_eq!(clock.nanos(2_000), 1_000);
    /// assert!(clock.now() <= clock.now());
    /// ```
    #[must_use]
    pub fn new(now: GuestTime, khz: u32) -> Self {
        Self { offset: now.0.wrapping_sub(host_tsc()), khz }
    }

    /// Ticks a millisecond.
    #[must_use]
    pub fn khz(&self) -> u32 {
        self.khz
    }

    /// The guest's present time.
    #[must_use]
    pub fn now(&self) -> GuestTime {
        GuestTime(host_tsc().wrapping_add(self.offset))
    }

    /// Seconds since the guest's power-on.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 ticks are 30 days at 3 GHz, to the tick")]
    pub fn seconds(&self, time: GuestTime) -> f64 {
        time.0 as f64 / (f64::from(self.khz.max(1)) * 1e3)
    }

    /// Whole nanoseconds of a number of ticks.
    #[must_use]
    pub fn nanos(&self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * 1_000_000 / u128::from(self.khz.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Whole microseconds since the guest's power-on.
    #[must_use]
    pub fn micros(&self, time: GuestTime) -> u64 {
        let micros = u128::from(time.0) * 1000 / u128::from(self.khz.max(1));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

fn host_tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and reads no memory.
    #[allow(unused_unsafe, reason = "safe in newer standard libraries")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}
