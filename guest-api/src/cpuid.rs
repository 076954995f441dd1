//! CPUID without the features that do not go with probes.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

use crate::quirks::SoftwareKvm;

const LEAF_FEATURES: u32 = 1;
const LEAF_EXTENDED_FEATURES: u32 = 7;
const LEAF_XSAVE: u32 = 0xd;
const LEAF_AMD_FEATURES: u32 = 0x8000_0001;
/// Nested virtualization: an int3 of a nested guest would be taken for this guest's.
const ECX_VMX: u32 = 1 << 5;
const ECX_SVM: u32 = 1 << 2;
/// Shadow stacks and indirect branch tracking (CET): an int3 or an emulated endbr64 at the target
/// of an indirect branch would be a control-protection fault, and calls from slots push no shadow.
const ECX_SHADOW_STACKS: u32 = 1 << 7;
const EDX_BRANCH_TRACKING: u32 = 1 << 20;
const XSS_CET: u32 = 0b11 << 11;
/// FRED, in subleaf 1 of leaf 7: its events do not go through the table whose gates have stubs.
const EAX_FRED: u32 = 1 << 17;
const LEAF_KVM_FEATURES: u32 = 0x4000_0001;
/// Page faults that are messages of KVM's (KVM_FEATURE_ASYNC_PF). Before Linux 5.8, whose KVM has
/// KVM_FEATURE_ASYNC_PF_INT, too, the kernel itself gets them, also at a guarded load.
const EAX_ASYNC_PF: u32 = 1 << 4;
const EAX_ASYNC_PF_INT: u32 = 1 << 14;

/// Hides nested virtualization, shadow stacks and indirect branch tracking, FRED, page faults that
/// are messages, and what software-only KVM lacks. Every VMM with the engine calls it on what KVM
/// supports, before KVM_SET_CPUID2.
pub fn hide_unfit_features(cpuid: &mut CpuId, software: Option<SoftwareKvm>) {
    cpuid.as_mut_slice().iter_mut().for_each(hide);
    if let Some(quirk) = software {
        quirk.adjust_cpuid(cpuid);
    }
}

fn hide(entry: &mut kvm_cpuid_entry2) {
    match (entry.function, entry.index) {
        (LEAF_FEATURES, _) => entry.ecx &= !ECX_VMX,
        (LEAF_EXTENDED_FEATURES, 0) => {
            entry.ecx &= !ECX_SHADOW_STACKS;
            entry.edx &= !EDX_BRANCH_TRACKING;
        }
        (LEAF_EXTENDED_FEATURES, 1) => entry.eax &= !EAX_FRED,
        (LEAF_KVM_FEATURES, _) if entry.eax & EAX_ASYNC_PF_INT == 0 => entry.eax &= !EAX_ASYNC_PF,
        (LEAF_XSAVE, 1) => entry.ecx &= !XSS_CET,
        (LEAF_AMD_FEATURES, _) => entry.ecx &= !ECX_SVM,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_break_breakpoints_are_hidden_and_no_others() {
        let entry = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            eax: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..kvm_cpuid_entry2::default()
        };
        let all = [(1, 0), (7, 0), (7, 1), (0xd, 0), (0xd, 1), (0x8000_0001, 0)];
        let mut cpuid = CpuId::from_entries(&all.map(|(leaf, sub)| entry(leaf, sub))).unwrap();
        hide_unfit_features(&mut cpuid, None);
        let seen: Vec<_> = cpuid.as_slice().iter().map(|e| (!e.ecx, !e.edx)).collect();
        let cet = (ECX_SHADOW_STACKS, EDX_BRANCH_TRACKING);
        assert_eq!(seen, [(ECX_VMX, 0), cet, (0, 0), (0, 0), (XSS_CET, 0), (ECX_SVM, 0)]);
        let seen: Vec<_> = cpuid.as_slice().iter().map(|e| !e.eax).collect();
        assert_eq!(seen, [0, 0, EAX_FRED, 0, 0, 0]);
    }

    #[test]
    fn a_page_fault_is_a_message_only_where_the_kernel_gets_none() {
        for (offered, seen) in [(0xff, 0xef), (0x40ff, 0x40ff), (0xef, 0xef)] {
            let entry = kvm_cpuid_entry2 {
                function: LEAF_KVM_FEATURES,
                eax: offered,
                ..Default::default()
            };
            let mut cpuid = CpuId::from_entries(&[entry]).unwrap();
            hide_unfit_features(&mut cpuid, None);
            assert_eq!(cpuid.as_slice()[0].eax, seen, "{offered:#x}");
        }
    }
}
