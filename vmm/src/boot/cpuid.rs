//! CPUID as the guest sees it: the features that KVM supports, without those that would harm it
//! here, with each vCPU's own APIC id and topology.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

const LEAF_FEATURES: u32 = 1;
const LEAF_CACHE: u32 = 4;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_TOPOLOGY_V2: u32 = 0x1f;
/// Number of cores, on AMD's CPUs (APM vol. 3, appendix E).
const LEAF_AMD_CORES: u32 = 0x8000_0008;
/// APIC id, core and node, on AMD's CPUs alone.
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;
const ECX_HYPERVISOR: u32 = 1 << 31;
const ECX_TSC_DEADLINE: u32 = 1 << 24;
const EDX_HTT: u32 = 1 << 28;
/// Levels of leaf 0xb (Intel SDM vol. 2A, CPUID): one thread a core, all cores in one package.
const LEVEL_SMT: u32 = 1 << 8;
const LEVEL_CORE: u32 = 2 << 8;

/// The table for vCPU `id` of `vcpus`, from what KVM `supported`.
pub(crate) fn for_vcpu(supported: &CpuId, id: u8, vcpus: u8) -> CpuId {
    let highest = supported.as_slice().iter().find(|e| e.function == 0).map_or(0, |e| e.eax);
    let is_amd = supported.as_slice().iter().any(|e| e.function == LEAF_AMD_TOPOLOGY);
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
            LEAF_AMD_CORES if is_amd => {
                // Bits 15:12: bits of the APIC id within the package; 7:0: cores less one.
                entry.ecx = package_bits(vcpus) << 12 | u32::from(vcpus - 1);
            }
            LEAF_AMD_TOPOLOGY => {
                // KVM gives no ids. One thread a core, one node.
                (entry.eax, entry.ebx, entry.ecx) = (id.into(), id.into(), 0);
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

/// Bits of the APIC id that number the cores of the package.
fn package_bits(vcpus: u8) -> u32 {
    u32::from(vcpus).next_power_of_two().trailing_zeros()
}

fn topology(id: u8, vcpus: u8) -> [kvm_cpuid_entry2; 2] {
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
    [level(0, 0, 1, LEVEL_SMT), level(1, package_bits(vcpus), u32::from(vcpus), LEVEL_CORE | 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MAX_VCPUS;

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

    #[test]
    fn the_last_of_the_most_vcpus_has_the_last_id_everywhere() {
        let last = MAX_VCPUS - 1;
        let leaves = [(0, 0), (1, 0), (4, 3), (LEAF_AMD_CORES, 0), (LEAF_AMD_TOPOLOGY, 0)];
        let supported = CpuId::from_entries(&leaves.map(|(leaf, index)| entry(leaf, index)));
        let all = for_vcpu(&supported.unwrap(), last, MAX_VCPUS);
        let [_, features, cache, cores, amd, _, core] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((features.ebx >> 24, (features.ebx >> 16) & 0xff), (63, 64));
        assert_eq!(cache.eax, 63 << 26 | 0x1f, "the field is full, and its neighbours are kept");
        assert_eq!((cores.eax, cores.ecx), (0x1f, 6 << 12 | 63));
        assert_eq!((amd.eax, amd.ebx, amd.ecx), (63, 63, 0));
        assert_eq!((core.eax, core.ebx, core.edx), (6, 64, 63));
        // Intel's leaf has no cores.
        let intel = CpuId::from_entries(&[entry(0, 0), entry(LEAF_AMD_CORES, 0)]).unwrap();
        assert_eq!(for_vcpu(&intel, last, MAX_VCPUS).as_slice()[1].ecx, u32::MAX);
    }
}
