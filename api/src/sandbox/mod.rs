//! Least privilege of the running service.

pub(crate) mod jail;
pub mod seccomp;
