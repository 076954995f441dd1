//! The library without the program.

pub(super) mod embed;
