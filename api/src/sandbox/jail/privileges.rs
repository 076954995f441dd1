//! Ids and capabilities: what is left is an ordinary user's.

use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::error::{JailError, step};
use super::identity::Identity;

/// Becomes the user, in no other groups if root chose it, and gives up all capabilities for good.
///
/// # Errors
/// [`JailError::Step`].
pub(super) fn drop_all(identity: Identity) -> Result<(), JailError> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(capability) {
            // Beyond the last one that the kernel has, or the set is not this user's to change.
            Err(Errno::INVAL | Errno::PERM) => break,
            removed => removed.map_err(step("give up capabilities"))?,
        }
    }
    clear_ambient_capability_set().map_err(step("give up capabilities"))?;
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
        setgroups(&[]).map_err(step("leave all groups"))?;
        setresgid(gid, gid, gid).map_err(step("change the group"))?;
        setresuid(uid, uid, uid).map_err(step("change the user"))?;
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).map_err(step("give up capabilities"))?;
    set_no_new_privs(true).map_err(step("give up privileges of programs"))
}
