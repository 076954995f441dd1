//! CPUID as the guest sees it: what KVM supports, with each vCPU's own APIC id and topology.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

const LEAF_FEATURES: u32 = 1;
const LEAF_CACHE: u32 = 4;
const LEAF_TOPOLOGY: [u32; 2] = [0xb, 0x1f];
const ECX_HYPERVISOR: u32 = 1 << 31;
const ECX_TSC_DEADLINE: u32 = 1 << 24;
const EDX_HTT: u32 = 1 << 28;
/// Levels of leaf 0xb (Intel SDM vol. 2A, CPUID): one thread a core, all cores in one package.
const LEVEL_SMT: u32 = 1 << 8;
const LEVEL_CORE: u32 = 2 << 8;

/// The table for vCPU `id` of `vcpus`, from what KVM `supported`.
pub(crate) fn for_vcpu(supported: &CpuId, id: u8, vcpus: u8) -> CpuId {
    let mut cpuid = supported.clone();
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            LEAF_FEATURES => features(entry, id, vcpus),
            LEAF_CACHE => {
                // Bits 31:26: cores in the package less one.
                entry.eax = (entry.eax & !(0x3f << 26)) | (u32::from(vcpus - 1) << 26);
            }
            leaf if LEAF_TOPOLOGY.contains(&leaf) => topology(entry, id, vcpus),
            _ => {}
        }
    }
    cpuid
}

fn features(entry: &mut kvm_cpuid_entry2, id: u8, vcpus: u8) {
    entry.ebx = (entry.ebx & 0xffff) | (u32::from(vcpus) << 16) | (u32::from(id) << 24);
    entry.ecx |= ECX_HYPERVISOR | ECX_TSC_DEADLINE;
    if vcpus > 1 {
        entry.edx |= EDX_HTT;
    }
}

fn topology(entry: &mut kvm_cpuid_entry2, id: u8, vcpus: u8) {
    let package_bits = u32::from(vcpus).next_power_of_two().trailing_zeros();
    entry.edx = u32::from(id);
    (entry.eax, entry.ebx, entry.ecx) = match entry.index {
        0 => (0, 1, LEVEL_SMT),
        1 => (package_bits, u32::from(vcpus), LEVEL_CORE | 1),
        index => (0, 0, index),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vcpu_sees_its_own_apic_id() {
        let entry = |function, index| kvm_cpuid_entry2 { function, index, ..Default::default() };
        let supported = CpuId::from_entries(&[entry(1, 0), entry(0xb, 0), entry(0xb, 1)]).unwrap();
        let second = for_vcpu(&supported, 1, 2);
        let e = second.as_slice();
        assert_eq!(e[0].ebx >> 24, 1);
        assert_eq!((e[0].ebx >> 16) & 0xff, 2);
        assert_eq!((e[1].eax, e[1].ebx, e[1].ecx, e[1].edx), (0, 1, LEVEL_SMT, 1));
        assert_eq!((e[2].eax, e[2].ebx, e[2].ecx, e[2].edx), (1, 2, LEVEL_CORE | 1, 1));
    }
}
