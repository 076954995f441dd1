//! A root of the process' own: a file system in memory, read-only once it is made, in which files
//! of the host and the jail's folder are mounted at their own paths.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, StatVfsMountFlags, Uid, chownat, fstat, fstatvfs,
    mknodat,
};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{pivot_root, umask};

use super::error::{JailError, step};
use super::folder;
use super::identity::Identity;
use super::path::{self, Found};
use super::reach::Access;

/// Mode of folders that lead to files.
const FOLDERS: Mode = Mode::from_bits_retain(0o022);

/// A file of the host that gets a place in the new root.
struct Placed {
    path: PathBuf,
    what: What,
}

enum What {
    /// A mount of the file or folder, with the flags that it gets.
    Mount { tree: OwnedFd, is_folder: bool, flags: MountFlags },
    /// A device of this number, of the jail's user alone.
    Device(Stat),
}

/// Makes the root and goes there. Nothing of the old one can be reached by a path then.
///
/// # Errors
/// [`JailError`].
pub(super) fn enter(files: &[Found<'_>], own: &Path, identity: Identity) -> Result<(), JailError> {
    // No mount of this process is to be seen elsewhere.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(step("make mounts private"))?;
    let mut all = files.iter().map(placed).collect::<Result<Vec<_>, _>>()?;
    let own_tree = tree(&folder::open(own, identity)?)?;
    all.push(mounted(own.to_owned(), own_tree, MountFlags::NODEV)?);
    // Over the jail's folder: the place that is certainly there.
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("exoprobe", own, "tmpfs", flags, c"mode=755").map_err(step("mount the jail's root"))?;
    rustix::process::chdir(own).map_err(step("enter the jail's root"))?;
    let mask = umask(FOLDERS);
    let placed = all.iter().try_for_each(|it| place(it, identity));
    umask(mask);
    placed?;
    let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
    mount_remount(".", flags, c"").map_err(step("make the jail's root read-only"))?;
    // The old root is put on top of the new one (pivot_root(2)), and taken away.
    pivot_root(".", ".").map_err(step("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("unmount the old root"))?;
    rustix::process::chdir("/").map_err(step("enter the new root"))
}

/// The place that a file gets.
fn placed(found: &Found<'_>) -> Result<Placed, JailError> {
    let (path, access) = (&found.entry.path, found.entry.access);
    let opened = path::open(&found.source)?;
    let stat = fstat(&opened).map_err(step("look at a file of the jail"))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    // Root makes a device of the jail's own, to which the user has access whatever its groups.
    let is_device = kind == FileType::CharacterDevice && access == Access::Device;
    if is_device && nix::unistd::geteuid().is_root() {
        return Ok(Placed { path: path.clone(), what: What::Device(stat) });
    }
    let mut flags = match access {
        Access::Read | Access::ReadFolder => MountFlags::RDONLY,
        Access::Write | Access::Device | Access::Connect => MountFlags::empty(),
    };
    let is_any_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    flags.set(MountFlags::NODEV, !is_any_device);
    mounted(path.clone(), tree(&opened)?, flags)
}

fn tree(opened: &OwnedFd) -> Result<OwnedFd, JailError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(opened, c"", flags).map_err(step("mount a file in the jail"))
}

fn mounted(path: PathBuf, tree: OwnedFd, flags: MountFlags) -> Result<Placed, JailError> {
    let failed = || step("look at a mount of the jail");
    let stat = fstat(&tree).map_err(failed())?;
    let has = fstatvfs(&tree).map_err(failed())?.f_flag;
    let mut flags = flags | MountFlags::NOSUID | MountFlags::NOEXEC;
    // What the host's mount forbids a user namespace may not allow.
    for (there, here) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
    ] {
        flags.set(here, flags.contains(here) || has.contains(there));
    }
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(Placed { path, what: What::Mount { tree, is_folder, flags } })
}

/// Puts a file at its path below the present folder, the new root.
fn place(placed: &Placed, identity: Identity) -> Result<(), JailError> {
    let failed = |source| JailError::Path { path: placed.path.clone(), source };
    let place = placed.path.strip_prefix("/").unwrap_or(&placed.path);
    let above = place.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let io = |errno: rustix::io::Errno| failed(errno.into());
    match &placed.what {
        What::Device(stat) => {
            let mode = Mode::RUSR | Mode::WUSR;
            let number = stat.st_rdev;
            mknodat(CWD, place, FileType::CharacterDevice, mode, number).map_err(io)?;
            let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
            chownat(CWD, place, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(io)
        }
        What::Mount { tree, is_folder, flags } => {
            match is_folder {
                true => fs::create_dir_all(place).map_err(failed)?,
                false => drop(File::create(place).map_err(failed)?),
            }
            let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(tree, c"", CWD, place, empty).map_err(io)?;
            mount_remount(place, *flags | MountFlags::BIND, c"").map_err(io)
        }
    }
}
