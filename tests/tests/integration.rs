//! The end-to-end tests: one program, so that the guest is booted once for all of them.

mod suite;
