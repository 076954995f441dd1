//! The user that this process runs as.

/// The effective user id.
pub(crate) fn id() -> u32 {
    nix::unistd::geteuid().as_raw()
}
