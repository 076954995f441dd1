//! Why there is no jail.

use std::io;
use std::path::PathBuf;

/// Why a service is not jailed: it does not start then.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// Root that would stay root.
    #[error("--jail, run by root, needs --uid and --gid: the user that the service becomes")]
    NoIdentity,
    /// Root that would become root.
    #[error("--uid 0 is root, which can leave a jail: give another user, or --allow-root as well")]
    Root,
    /// Another user, without the right to become it.
    #[error(
        "--uid and --gid are for root: this is uid {uid}, gid {gid}, and stays so; leave them out"
    )]
    Foreign {
        /// The present user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// A socket that would be out of reach.
    #[error(
        "{option} {}: with --jail it is a path in {}", path.display(), folder.display()
    )]
    Outside {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
        /// The jail's folder.
        folder: PathBuf,
    },
    /// The folder is no fit place.
    #[error("--jail {}: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file that is not there, or a way to it that is not taken.
    #[error("{}: {source}", path.display())]
    Path {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A link that a user made who may not lead root anywhere.
    #[error(
        "{}: the link {} belongs to uid {owner}, and is not followed", path.display(), link.display()
    )]
    Link {
        /// The file.
        path: PathBuf,
        /// The link on the way to it.
        link: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The host has no user namespaces for this user.
    #[error(
        "this host allows uid {uid} no user namespace ({source}): run as root, or with --jail-with landlock"
    )]
    NoUserNamespaces {
        /// The user.
        uid: u32,
        /// The host's error.
        source: io::Error,
    },
    /// Neither namespaces nor landlock.
    #[error(
        "this kernel has no landlock, which a jail without namespaces needs: run as root, with --uid and --gid"
    )]
    NoLandlock,
    /// Landlock refused its rules.
    #[error("landlock: {0}")]
    Landlock(#[from] ::landlock::RulesetError),
    /// cgroup v2 without what was asked for.
    #[error("--cgroup {setting}: {reason}")]
    Cgroup {
        /// The file, or all of the setting.
        setting: String,
        /// Why.
        reason: String,
    },
    /// Other threads would not be jailed.
    #[error("a jail is entered before there are other threads; there are {0}")]
    Threads(usize),
    /// The host refused a step.
    #[error("cannot {step}: {source}")]
    Step {
        /// The step.
        step: &'static str,
        /// The host's error.
        source: io::Error,
    },
}

/// Names the step that failed.
pub(super) fn step<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> JailError {
    move |error| JailError::Step { step, source: error.into() }
}
