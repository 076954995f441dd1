//! Limits of this host, checked before a machine is made.

use exoprobe_guest::hidden::REGION_MOST;
use exoprobe_guest::layout::{MMIO_GAP_END, MMIO_GAP_START};
use kvm_bindings::CpuId;

use super::error::CreateError;
use crate::config::VmConfig;
use crate::host::Host;

/// Sizes of addresses (Intel SDM vol. 2A, CPUID; AMD APM vol. 3, E.4.7).
const LEAF_ADDRESSES: u32 = 0x8000_0008;
/// Bits on a CPU without that leaf.
const ADDRESS_BITS: u32 = 36;

/// Checks a valid configuration.
///
/// # Errors
/// [`CreateError::Vcpus`] and [`CreateError::Addresses`].
pub(super) fn check(host: &Host, config: &VmConfig) -> Result<(), CreateError> {
    check_vcpus(config.vcpus, host.kvm().get_max_vcpus())?;
    check_memory(config.memory_mib, address_bits(host.supported_cpuid()))
}

fn check_vcpus(wanted: u8, most: usize) -> Result<(), CreateError> {
    if usize::from(wanted) > most {
        return Err(CreateError::Vcpus { wanted, most });
    }
    Ok(())
}

/// Bits of a guest-physical address.
fn address_bits(supported: &CpuId) -> u32 {
    let leaf = supported.as_slice().iter().find(|entry| entry.function == LEAF_ADDRESSES);
    let Some(leaf) = leaf else { return ADDRESS_BITS };
    // Bits 23:16, if not zero, are those that two-dimensional paging translates.
    match (leaf.eax & 0xff, leaf.eax >> 16 & 0xff) {
        (bits, 0) => bits,
        (bits, of_guests) => bits.min(of_guests),
    }
}

/// Hidden memory lies above RAM, and RAM is moved up by the gap.
fn check_memory(wanted: u64, bits: u32) -> Result<(), CreateError> {
    let above = MMIO_GAP_END - MMIO_GAP_START + REGION_MOST;
    let most = 1_u64.checked_shl(bits).unwrap_or(u64::MAX).saturating_sub(above) >> 20;
    if wanted > most {
        return Err(CreateError::Addresses { wanted, bits, most });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvm_bindings::kvm_cpuid_entry2;

    use super::*;

    #[test]
    fn more_vcpus_than_kvm_allows_are_refused_by_its_number() {
        check_vcpus(8, 8).unwrap();
        let error = check_vcpus(9, 8).unwrap_err().to_string();
        assert_eq!(error, "9 vCPUs: KVM on this host allows 8 (KVM_CAP_MAX_VCPUS); lower --vcpus");
    }

    #[test]
    fn all_memory_has_an_address() {
        let bits = |eax| {
            let entry = kvm_cpuid_entry2 { function: LEAF_ADDRESSES, eax, ..Default::default() };
            address_bits(&CpuId::from_entries(&[entry]).unwrap())
        };
        assert_eq!((bits(0x3027), bits(0x28_3030)), (39, 40));
        assert_eq!(address_bits(&CpuId::new(0).unwrap()), 36);
        let most = (1 << 19) - 1024 - 48;
        check_memory(most, 39).unwrap();
        let error = check_memory(most + 1, 39).unwrap_err().to_string();
        assert!(error.starts_with("523217 MiB of memory: guest-physical"), "{error}");
        assert!(
            error.ends_with("39 bits on this host; lower --memory to 523216 or less"),
            "{error}"
        );
    }
}
