//! The probe engine: definitions, instruction analysis, arming, hits, records.
//!
//! A kprobe puts an int3 over the first byte of a guest kernel instruction. What happens to the
//! instruction under that byte, the displaced instruction, is decided in [`insn`].

pub mod insn;
