//! All state of a vCPU, to and from a snapshot, and back to power-on.

use kvm_bindings::{
    CpuId, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Error, VcpuFd};

/// A step that KVM refused, and its error.
pub(crate) type Refusal = (&'static str, Error);

pub(super) fn at(step: &'static str) -> impl Fn(Error) -> Refusal {
    move |source| (step, source)
}

/// A vCPU's registers and unit states.
#[derive(Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct VcpuState {
    regs: kvm_regs,
    sregs: kvm_sregs,
    msrs: Vec<kvm_msr_entry>,
    xsave: kvm_xsave,
    xcrs: kvm_xcrs,
    lapic: kvm_lapic_state,
    debugregs: kvm_debugregs,
    events: kvm_vcpu_events,
    mp_state: kvm_mp_state,
    cpuid: Vec<kvm_cpuid_entry2>,
}

impl VcpuState {
    /// Reads all state. The vCPU must be out of the guest with no I/O half done.
    pub(crate) fn save(fd: &VcpuFd, msr_indices: &[u32]) -> Result<Self, Error> {
        let cpuid = fd.get_cpuid2(kvm_bindings::KVM_MAX_CPUID_ENTRIES)?;
        Ok(Self {
            // First: KVM may move a finished start-up message into the registers (api.rst, 4.38).
            mp_state: fd.get_mp_state()?,
            regs: fd.get_regs()?,
            sregs: fd.get_sregs()?,
            msrs: read_msrs(fd, msr_indices)?,
            xsave: fd.get_xsave()?,
            xcrs: fd.get_xcrs()?,
            lapic: fd.get_lapic()?,
            debugregs: fd.get_debug_regs()?,
            events: fd.get_vcpu_events()?,
            cpuid: cpuid.as_slice().to_vec(),
        })
    }

    /// A saved model-specific register; `None` if this vCPU did not have it.
    pub(crate) fn msr(&self, index: u32) -> Option<u64> {
        self.msrs.iter().find(|msr| msr.index == index).map(|msr| msr.data)
    }

    /// Writes all state to a fresh vCPU. The error contains the step that KVM refused.
    pub(crate) fn restore(&self, fd: &VcpuFd) -> Result<(), Refusal> {
        let cpuid = CpuId::from_entries(&self.cpuid).map_err(|_| Error::new(libc::EINVAL));
        cpuid.and_then(|cpuid| fd.set_cpuid2(&cpuid)).map_err(at("restore a vCPU's CPUID"))?;
        self.restore_registers(fd)
    }

    /// Writes all state but CPUID, which cannot be changed once the vCPU has run.
    pub(super) fn restore_registers(&self, fd: &VcpuFd) -> Result<(), Refusal> {
        fd.set_mp_state(self.mp_state).map_err(at("restore a vCPU's run state"))?;
        fd.set_sregs(&self.sregs).map_err(at("restore a vCPU's special registers"))?;
        // A host without XSAVE returns none and refuses even an empty list.
        if self.xcrs.nr_xcrs > 0 {
            fd.set_xcrs(&self.xcrs).map_err(at("restore a vCPU's extended control registers"))?;
        }
        // SAFETY: `kvm_xsave` is the fixed 4 KiB form of the same KVM's KVM_GET_XSAVE; larger
        // states exist only where a dynamic feature was enabled, which this crate never does.
        unsafe { fd.set_xsave(&self.xsave) }.map_err(at("restore a vCPU's XSAVE state"))?;
        fd.set_debug_regs(&self.debugregs).map_err(at("restore a vCPU's debug registers"))?;
        // Before the MSRs: the deadline timer's needs the APIC in its deadline mode.
        fd.set_lapic(&self.lapic).map_err(at("restore a vCPU's local APIC"))?;
        write_msrs(fd, &self.msrs).map_err(at("restore a vCPU's MSRs"))?;
        fd.set_regs(&self.regs).map_err(at("restore a vCPU's registers"))?;
        fd.set_vcpu_events(&self.events).map_err(at("restore a vCPU's events"))
    }
}

/// Reads those of `indices` that KVM has for this vCPU; KVM stops at each one that it does not
/// have.
fn read_msrs(fd: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, Error> {
    let mut found = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(kvm_bindings::KVM_MAX_MSR_ENTRIES)];
        let entries: Vec<_> = batch
            .iter()
            .map(|index| kvm_msr_entry { index: *index, ..kvm_msr_entry::default() })
            .collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| Error::new(libc::E2BIG))?;
        let got = fd.get_msrs(&mut msrs)?;
        found.extend_from_slice(&msrs.as_slice()[..got]);
        rest = &rest[(got + usize::from(got < batch.len())).min(rest.len())..];
    }
    Ok(found)
}

/// Writes all; skips a register that KVM reads but does not set (it is read-only).
fn write_msrs(fd: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<(), Error> {
    let mut rest = entries;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(kvm_bindings::KVM_MAX_MSR_ENTRIES)];
        let msrs = Msrs::from_entries(batch).map_err(|_| Error::new(libc::E2BIG))?;
        let set = fd.set_msrs(&msrs)?;
        if set < batch.len() {
            tracing::debug!(msr = format!("{:#x}", batch[set].index), "not restored");
        }
        rest = &rest[(set + usize::from(set < batch.len())).min(rest.len())..];
    }
    Ok(())
}
