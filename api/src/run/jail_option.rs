//! `--jail DIR` and its kin.

use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

use crate::sandbox::jail::{Identity, Jail, JailError, Method, Setting, resolve};

/// Largest `--rlimit-fsize`, in MiB.
const FILE_MIB_MAX: u64 = 1 << 40;
/// Least and largest `--rlimit-nofile`.
const FILES: std::ops::RangeInclusive<u64> = 64..=1 << 20;

/// The arguments of a jail.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Jail")]
pub struct JailArgs {
    /// Reach nothing of the host but the files that these arguments name, and DIR, which is made if
    /// it is not there. Sockets are made in DIR, and clients' snapshots and dumps written there.
    /// Root gives --uid and --gid as well; other users need user namespaces or landlock
    /// (docs/security.md)
    #[arg(long, value_name = "DIR")]
    pub jail: Option<PathBuf>,
    /// How: `namespaces`, a root of its own; `landlock`, rules of the kernel's alone; or `auto`,
    /// namespaces where the host allows them. Landlock is always added where the kernel has it
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto", requires = "jail")]
    pub jail_with: Method,
    /// Number of the user to become
    #[arg(long, value_name = "UID", requires = "jail", value_parser = id)]
    pub uid: Option<u32>,
    /// Number of the group to become; it is in no other group then
    #[arg(long, value_name = "GID", requires = "jail", value_parser = id)]
    pub gid: Option<u32>,
    /// Take --uid 0
    #[arg(long, requires = "uid")]
    pub allow_root: bool,
    /// Most files that may be open (RLIMIT_NOFILE)
    #[arg(long, value_name = "N", requires = "jail", value_parser = clap::value_parser!(u64).range(FILES))]
    pub rlimit_nofile: Option<u64>,
    /// Largest file that may be written, in MiB (RLIMIT_FSIZE): disks, snapshots and dumps
    #[arg(long, value_name = "MIB", requires = "jail", value_parser = clap::value_parser!(u64).range(1..=FILE_MIB_MAX))]
    pub rlimit_fsize: Option<u64>,
    /// Limit of a cgroup of its own (cgroup v2), as in `memory.max=1G`; for root. May be given
    /// several times
    #[arg(long, value_name = "FILE=VALUE", requires = "jail")]
    pub cgroup: Vec<Setting>,
}

/// A jail's folder, as it was given and where it is.
#[derive(Debug)]
pub(super) struct JailFolder {
    given: PathBuf,
    found: PathBuf,
}

impl JailFolder {
    pub(super) fn path(&self) -> &Path {
        &self.found
    }

    /// A path as the jail has it: absolute and without `..`. Links are kept: they are looked at
    /// when the jail is made.
    ///
    /// # Errors
    /// [`JailError::Path`].
    pub(super) fn plain(&self, path: &Path) -> Result<PathBuf, JailError> {
        let failed = |source| JailError::Path { path: path.to_owned(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        let path = match path.strip_prefix(&self.given) {
            Ok(below) => self.found.join(below),
            Err(_) => path,
        };
        match path.components().any(|part| part == std::path::Component::ParentDir) {
            true => resolve(&path),
            false => Ok(path),
        }
    }

    /// The same of a socket, which must be in the folder.
    ///
    /// # Errors
    /// [`JailError`].
    pub(super) fn socket(&self, option: &'static str, path: &Path) -> Result<PathBuf, JailError> {
        let path = self.plain(path)?;
        if path.parent() == Some(&self.found) {
            return Ok(path);
        }
        Err(JailError::Outside { option, path, folder: self.found.clone() })
    }
}

impl JailArgs {
    /// The jail's folder, if there is to be one.
    ///
    /// # Errors
    /// [`JailError`].
    pub(super) fn folder(&self) -> Result<Option<JailFolder>, JailError> {
        let Some(folder) = &self.jail else { return Ok(None) };
        let refused =
            |reason: &str| JailError::Folder { path: folder.clone(), reason: reason.to_owned() };
        let failed = |source| JailError::Path { path: folder.clone(), source };
        let given = std::path::absolute(folder).map_err(failed)?;
        let (Some(above), Some(name)) = (given.parent(), given.file_name()) else {
            return Err(refused("give a folder that has a name"));
        };
        let found = resolve(above)?.join(name);
        Ok(Some(JailFolder { given, found }))
    }

    /// The jail in this folder.
    ///
    /// # Errors
    /// [`JailError`]: this user cannot have it.
    pub(super) fn jail(&self, folder: &JailFolder) -> Result<Jail, JailError> {
        Ok(Jail {
            folder: folder.found.clone(),
            method: self.jail_with,
            identity: self.identity(geteuid().as_raw(), getegid().as_raw())?,
            most_files: self.rlimit_nofile,
            file_size: self.rlimit_fsize.map(|mib| mib << 20),
            cgroup: self.cgroup.clone(),
        })
    }

    fn identity(&self, uid: u32, gid: u32) -> Result<Identity, JailError> {
        let own = Identity { uid, gid };
        if uid != 0 {
            let asked = Identity { uid: self.uid.unwrap_or(uid), gid: self.gid.unwrap_or(gid) };
            return if asked == own { Ok(own) } else { Err(JailError::Foreign { uid, gid }) };
        }
        match (self.uid, self.gid) {
            (Some(0), Some(_)) if !self.allow_root => Err(JailError::Root),
            (Some(uid), Some(gid)) => Ok(Identity { uid, gid }),
            _ => Err(JailError::NoIdentity),
        }
    }
}

/// A number of a user or a group. Names are not looked up: the C library of a static program
/// cannot.
fn id(text: &str) -> Result<u32, String> {
    match text.parse() {
        // It stands for "leave it as it is" in the system calls.
        Ok(u32::MAX) => Err("there is no such number".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("give a number, such as that of `id -u USER`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(uid: Option<u32>, gid: Option<u32>, allow_root: bool) -> JailArgs {
        JailArgs {
            jail: None,
            jail_with: Method::Auto,
            uid,
            gid,
            allow_root,
            rlimit_nofile: None,
            rlimit_fsize: None,
            cgroup: Vec::new(),
        }
    }

    #[test]
    fn users_and_groups_are_numbers() {
        assert_eq!((id("0"), id("7")), (Ok(0), Ok(7)));
        assert!(id("4294967295").unwrap_err().contains("no such number"));
        for text in ["root", "4294967296", "7x", "-1", ""] {
            assert!(id(text).unwrap_err().contains("`id -u USER`"), "{text}");
        }
    }

    #[test]
    fn root_becomes_another_user_and_others_stay() {
        let identity = |uid, gid| Identity { uid, gid };
        assert_eq!(args(Some(7), Some(8), false).identity(0, 0).unwrap(), identity(7, 8));
        assert_eq!(args(Some(0), Some(0), true).identity(0, 0).unwrap(), identity(0, 0));
        assert_eq!(args(None, None, false).identity(7, 8).unwrap(), identity(7, 8));
        assert_eq!(args(Some(7), None, false).identity(7, 8).unwrap(), identity(7, 8));
        for (args, own, reason) in [
            (args(None, None, false), 0, "needs --uid and --gid"),
            (args(Some(7), None, false), 0, "needs --uid and --gid"),
            (args(None, Some(7), true), 0, "needs --uid and --gid"),
            (args(Some(0), Some(7), false), 0, "--allow-root"),
            (args(Some(8), None, false), 7, "this is uid 7"),
            (args(None, Some(0), false), 7, "this is uid 7"),
        ] {
            let error = args.identity(own, own).unwrap_err().to_string();
            assert!(error.contains(reason), "{args:?}: {error}");
        }
    }

    #[test]
    fn paths_in_the_jail_are_plain() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("real/sub")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        let mut args = args(None, None, false);
        assert!(args.folder().unwrap().is_none());
        args.jail = Some(dir.join("link/jail"));
        let folder = args.folder().unwrap().unwrap();
        assert_eq!(folder.path(), dir.join("real/jail"));
        let plain = |path: &str| folder.plain(&dir.join(path)).unwrap();
        assert_eq!(plain("link/jail/disk"), dir.join("real/jail/disk"));
        assert_eq!(plain("link/sub"), dir.join("link/sub"), "links stay");
        assert_eq!(plain("link/sub/../sub"), dir.join("real/sub"));
        assert!(folder.plain(Path::new("Cargo.toml")).unwrap().is_absolute());
        let socket = folder.socket("--socket", &dir.join("link/jail/s")).unwrap();
        assert_eq!(socket, dir.join("real/jail/s"));
        for path in ["s", "real/jail", "real/jail/deeper/s"] {
            let error = folder.socket("--socket", &dir.join(path)).unwrap_err().to_string();
            assert!(error.starts_with("--socket /") && error.contains("real/jail"), "{error}");
        }
        args.jail = Some("/".into());
        assert!(args.folder().unwrap_err().to_string().contains("has a name"));
    }
}
