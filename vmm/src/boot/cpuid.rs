//! CPUID as the guest sees it: the features that KVM supports, without those that would harm it
//! here, with each vCPU's own APIC id and topology.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

const LEAF_FEATURES: u32 = 1;
const LEAF_CACHE: u32 = 4;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_TOPOLOGY_V2: u32 = 0x1f;
const ECX_HYPERVISOR: u32 = 1 << 31;
const ECX_TSC_DEADLINE: u32 = 1 << 24;
const EDX_HTT: u32 = 1 << 28;
/// Levels of leaf 0xb (Intel SDM vol. 2A, CPUID): one thread a core, all cores in one package.
const LEVEL_SMT: u32 = 1 << 8;
const LEVEL_CORE: u32 = 2 << 8;

/// The table for vCPU `id` of `vcpus`, from what KVM `supported`.
pub(crate) fn for_vcpu(supported: &CpuId, id: u8, vcpus: u8) -> CpuId {
    let highest = supported.as_slice().iter().find(|e| e.function == 0).map_or(0, |e| e.eax);
    let mut entries: Vec<kvm_cpuid_entry2> = supported
        .as_slice()
        .iter()
        .filter(|entry| ![LEAF_TOPOLOGY, LEAF_TOPOLOGY_V2].contains(&entry.function))
        .copied()
        .collect();
    for entry in &mut entries {
        match entry.function {
            LEAF_FEATURES => features(entry, id, vcpus),
            // Bits 31:26: cores in the package less one.
            LEAF_CACHE => {
                entry.eax = (entry.eax & !(0x3f << 26)) | (u32::from(vcpus - 1) << 26);
            }
            _ => {}
        }
    }
    // KVM itself lists no levels.
    if highest >= LEAF_TOPOLOGY {
        entries.extend(topology(id, vcpus));
    }
    CpuId::from_entries(&entries).expect("KVM's own entries and two more fit its limit")
}

fn features(entry: &mut kvm_cpuid_entry2, id: u8, vcpus: u8) {
    entry.ebx = (entry.ebx & 0xffff) | (u32::from(vcpus) << 16) | (u32::from(id) << 24);
    entry.ecx |= ECX_HYPERVISOR | ECX_TSC_DEADLINE;
    if vcpus > 1 {
        entry.edx |= EDX_HTT;
    }
}

fn topology(id: u8, vcpus: u8) -> [kvm_cpuid_entry2; 2] {
    let package_bits = u32::from(vcpus).next_power_of_two().trailing_zeros();
    let level = |index, eax, ebx, ecx| kvm_cpuid_entry2 {
        function: LEAF_TOPOLOGY,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx,
        edx: u32::from(id),
        ..kvm_cpuid_entry2::default()
    };
    [level(0, 0, 1, LEVEL_SMT), level(1, package_bits, u32::from(vcpus), LEVEL_CORE | 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32) -> kvm_cpuid_entry2 {
        let (eax, ecx, edx) = (0x1f, u32::MAX, u32::MAX);
        kvm_cpuid_entry2 { function, index, eax, ecx, edx, ..Default::default() }
    }

    #[test]
    fn each_vcpu_sees_its_own_apic_id_and_place() {
        let supported = CpuId::from_entries(&[entry(0, 0), entry(1, 0), entry(0xb, 0)]).unwrap();
        let second = for_vcpu(&supported, 1, 2);
        let e = second.as_slice();
        assert_eq!((e[1].ebx >> 24, (e[1].ebx >> 16) & 0xff), (1, 2));
        assert_eq!(e.len(), 4, "KVM's own topology entry is replaced by two");
        assert_eq!((e[2].eax, e[2].ebx, e[2].ecx, e[2].edx), (0, 1, LEVEL_SMT, 1));
        assert_eq!((e[3].eax, e[3].ebx, e[3].ecx, e[3].edx), (1, 2, LEVEL_CORE | 1, 1));
    }
}
