//! Namespaces of the process' own.

use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::error::{JailError, step};

/// Enters namespaces of mounts and of IPC, and one without a network unless the host's is needed.
/// Another user than root gets them in a user namespace, in which it has its own number.
///
/// # Errors
/// [`JailError::NoUserNamespaces`]: nothing has changed. Else [`JailError::Step`].
pub(super) fn enter(host_network: bool) -> Result<(), JailError> {
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    flags.set(CloneFlags::CLONE_NEWNET, !host_network);
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() {
        return unshare(flags).map_err(step("make namespaces"));
    }
    unshare(flags | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| JailError::NoUserNamespaces { uid: uid.as_raw(), source: errno.into() })?;
    let map = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
    let mapped = || -> io::Result<()> {
        // A user may map its group only once no process here can leave its other groups.
        map("setgroups", "deny".to_owned())?;
        map("uid_map", format!("{uid} {uid} 1"))?;
        map("gid_map", format!("{gid} {gid} 1"))
    };
    mapped().map_err(step("map ids of the user namespace"))
}
