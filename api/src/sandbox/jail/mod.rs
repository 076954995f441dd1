//! The jail of `exoprobe run --jail DIR`: the service reaches the files that its configuration
//! names, and DIR, and nothing else of the host.
//!
//! `reach` is the policy: it derives what is reachable from the configuration, once. The other
//! files are the mechanism: mount namespaces, landlock, ids, limits. A path means the same inside
//! and outside, so the configuration, messages and snapshots need no translation.

mod cgroup;
mod descriptors;
mod error;
mod folder;
mod identity;
mod landlock;
mod limits;
mod namespaces;
mod path;
mod privileges;
mod reach;
mod root;

use std::fmt;
use std::path::PathBuf;

pub use cgroup::Setting;
pub use error::JailError;
pub(crate) use identity::Identity;
use path::Found;
pub(crate) use path::resolve;
pub(crate) use reach::Reach;

/// The way that the service is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Method {
    /// Namespaces; for an ordinary user on a host that allows none, landlock alone.
    Auto,
    /// A mount namespace with a root of its own; for an ordinary user in a user namespace.
    Namespaces,
    /// Landlock alone.
    Landlock,
}

impl Method {
    /// Its name, as the option has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
        }
    }
}

/// A jail, as it was asked for and checked.
#[derive(Clone, Debug)]
pub(crate) struct Jail {
    /// The folder that the service may write to; absolute, and no part of it is a link.
    pub(crate) folder: PathBuf,
    pub(crate) method: Method,
    /// Whose the service is. Another user than the present one can only be root's choice.
    pub(crate) identity: Identity,
    /// Most open files.
    pub(crate) most_files: Option<u64>,
    /// Largest file that may be written, in bytes.
    pub(crate) file_size: Option<u64>,
    /// Limits of a cgroup of its own.
    pub(crate) cgroup: Vec<Setting>,
}

/// The means that keep the service in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    identity: Identity,
    namespaces: bool,
    network: bool,
    landlock: landlock::Enforced,
}

impl Jail {
    /// Enters the jail: after this the process reaches nothing else. To be called before there is
    /// a second thread, and before any file is open but standard input, output and error.
    ///
    /// # Errors
    /// [`JailError`]. The process may be confined by a part then: end it.
    pub(crate) fn enter(&self, reach: &Reach) -> Result<Entered, JailError> {
        descriptors::close_all()?;
        folder::make(&self.folder, self.identity)?;
        if !self.cgroup.is_empty() {
            cgroup::join(&self.cgroup)?;
        }
        limits::set(self.most_files, self.file_size)?;
        let files = path::find_all(reach)?;
        let namespaces = self.enter_namespaces(&files, reach.needs_network())?;
        privileges::drop_all(self.identity)?;
        // In a root of its own each file is at the path that it was named by.
        let place = |found: &'_ Found<'_>| match namespaces {
            true => found.entry.path.clone(),
            false => found.source.clone(),
        };
        let places = files.iter().map(|found| (place(found), found.entry.access));
        let landlock = landlock::restrict(places, &self.folder, reach.listen)?;
        if !namespaces && landlock == landlock::Enforced::Not {
            return Err(JailError::NoLandlock);
        }
        self.point_the_environment_here();
        Ok(Entered {
            identity: self.identity,
            namespaces,
            network: !namespaces || reach.needs_network(),
            landlock,
        })
    }

    /// Returns whether there are namespaces.
    fn enter_namespaces(&self, files: &[Found<'_>], network: bool) -> Result<bool, JailError> {
        if self.method == Method::Landlock {
            return Ok(false);
        }
        match namespaces::enter(network) {
            Ok(()) => {}
            Err(JailError::NoUserNamespaces { .. }) if self.method == Method::Auto => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        root::enter(files, &self.folder, self.identity)?;
        Ok(true)
    }

    /// Has temporary files, and the folder of sockets' locks, be in the jail.
    fn point_the_environment_here(&self) {
        for name in ["TMPDIR", "XDG_RUNTIME_DIR"] {
            // SAFETY: `descriptors::close_all` has checked that there is no other thread, which
            // could read the environment meanwhile.
            unsafe { std::env::set_var(name, &self.folder) };
        }
    }
}

impl fmt::Display for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { uid, gid } = self.identity;
        write!(f, "uid {uid}, gid {gid}, ")?;
        f.write_str(match (self.namespaces, self.network) {
            (true, true) => "a root and namespaces of its own (the host's network), ",
            (true, false) => "a root and namespaces of its own (no network), ",
            (false, _) => "the host's root, ",
        })?;
        self.landlock.fmt(f)
    }
}
