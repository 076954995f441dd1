//! The interface of the lab's two programs: `lab`, which prepares and watches the emulated machine,
//! and `lab-init`, process 1 in it. See docs/testing.md.

pub mod job;
