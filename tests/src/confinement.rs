//! The host's means to confine a process: namespaces, landlock, cgroups.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::succeeds;

/// Least `systemd-analyze` that judges unit files (`security --offline`).
const SYSTEMD: u32 = 250;
/// Where cgroup v2 may be.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Whether root may make the namespaces of a jail, and change its root.
pub(crate) fn namespaces() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_first_root = |line: &str| line.contains(" / / ") && line.contains(" - rootfs ");
    !mounts.lines().any(is_first_root) && succeeds("unshare", &["-m", "-i", "-n", "true"])
}

/// Whether an ordinary user may make a user namespace.
pub(crate) fn user_namespaces() -> bool {
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    succeeds("setpriv", &[&user[..], &["unshare", "-U", "-m", "true"]].concat())
}

/// Whether the kernel has landlock, of any version.
pub(crate) fn landlock() -> bool {
    const VERSION: libc::c_int = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag and without attributes it only returns the version
    // (landlock_create_ruleset(2)).
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    version > 0
}

/// A limit that a cgroup of this host can have, `FILE=VALUE`, far above what tests need, and where
/// cgroup v2 is.
#[must_use]
pub fn cgroup() -> Option<(PathBuf, &'static str)> {
    let limits = ["memory.max=8589934592", "pids.max=4000", "hugetlb.2MB.max=8589934592"];
    CGROUPS.iter().find_map(|mount| {
        let has = std::fs::read_to_string(Path::new(mount).join("cgroup.controllers")).ok()?;
        let limit = limits.into_iter().find(|limit| {
            has.split_whitespace().any(|controller| limit.split('.').next() == Some(controller))
        })?;
        Some((PathBuf::from(mount), limit))
    })
}

/// The program of systemd.
const SYSTEMD_PROGRAM: &str = "/lib/systemd/systemd";

/// Returns true if systemd can be process 1 of namespaces, over an overlay of this root, with
/// cgroup v2.
pub(crate) fn systemd() -> bool {
    let mounts = "mount -t tmpfs exoprobe /mnt && cd /mnt && mkdir up work root groups && \
        mount -t overlay exoprobe -o lowerdir=/,upperdir=up,workdir=work root && \
        mount -t cgroup2 exoprobe groups";
    let unshare = ["-m", "-p", "-f", "-C", "-i", "-u", "sh", "-c", mounts];
    Path::new(SYSTEMD_PROGRAM).exists() && cgroup_mount().is_some() && succeeds("unshare", &unshare)
}

/// Where cgroup v2 is mounted.
#[must_use]
pub fn cgroup_mount() -> Option<&'static Path> {
    let is_v2 = |mount: &&Path| mount.join("cgroup.controllers").exists();
    CGROUPS.map(Path::new).into_iter().find(is_v2)
}

/// Whether `systemd-analyze` can judge a unit file.
pub(crate) fn systemd_analyze() -> bool {
    let Ok(output) = Command::new("systemd-analyze").arg("--version").output() else {
        return false;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(1).and_then(|word| word.parse::<u32>().ok());
    version.is_some_and(|version| version >= SYSTEMD)
}
