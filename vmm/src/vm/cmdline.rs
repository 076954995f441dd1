//! The kernel command line as the guest gets it.

use crate::config::with_kernel_words;
use crate::profile::HostProfile;

/// Adds the words that the host needs for a guest with so many vCPUs to `cmdline`.
pub(super) fn final_cmdline(cmdline: &str, vcpus: u8, profile: HostProfile) -> String {
    match profile.software {
        None => cmdline.to_owned(),
        Some(quirk) => with_kernel_words(cmdline, &quirk.cmdline(cmdline, vcpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::BreakpointExit;
    use exoprobe_guest::kvm::Reinjection;
    use exoprobe_guest::quirks::SoftwareKvm;

    #[test]
    fn what_the_host_needs_goes_before_the_arguments_of_init() {
        let mut profile = HostProfile {
            breakpoint: BreakpointExit::Debug,
            reinjection: Reinjection::OnInt3,
            software: None,
            dirty_log: true,
        };
        assert_eq!(final_cmdline("quiet -- -v", 64, profile), "quiet -- -v");
        profile.software = Some(SoftwareKvm { syscall_faults: true, host_cpuid: false });
        let line = final_cmdline("quiet -- -v", 8, profile);
        assert!(line.starts_with("quiet noxsave") && line.ends_with(" -- -v"), "{line}");
        assert!(final_cmdline("quiet", 1, profile).starts_with("quiet noxsave"));
        let one_by_one =
            |vcpus| final_cmdline("quiet", vcpus, profile).contains(" cpuhp.parallel=0");
        assert_eq!([8, 9, 64].map(one_by_one), [false, true, true]);
    }
}
