//! Guest time: the guest's own time-stamp counter, read from the host without an exit.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

const MSR_TSC: u32 = 0x10;

/// A moment on the guest's clock: ticks of its time-stamp counter since power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestTime(pub u64);

/// Turns the host's time-stamp counter into the guest's. Valid while the guest runs at the host's
/// rate, which is KVM's default and never changed by this crate. The default is the host's own counter,
/// for an engine without a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GuestClock {
    offset: u64,
    khz: u32,
}

impl GuestClock {
    /// Reads a vCPU's counter and rate.
    ///
    /// # Errors
    /// What KVM said.
    pub(crate) fn of(vcpu: &VcpuFd) -> Result<Self, kvm_ioctls::Error> {
        let entry = kvm_msr_entry { index: MSR_TSC, ..kvm_msr_entry::default() };
        let mut msrs = Msrs::from_entries(&[entry]).expect("one entry");
        let before = host_tsc();
        vcpu.get_msrs(&mut msrs)?;
        let host = before.wrapping_add(host_tsc().wrapping_sub(before) / 2);
        let guest = msrs.as_slice()[0].data;
        Ok(Self { offset: guest.wrapping_sub(host), khz: vcpu.get_tsc_khz()? })
    }

    /// Now, for the guest.
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
}

fn host_tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and reads no memory.
    #[allow(unused_unsafe, reason = "safe in newer standard libraries")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}
