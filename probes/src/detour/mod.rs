//! Jump optimization: a probe whose hits never leave the guest (kprobes.rst, "How Does Jump
//! Optimization Work?").
//!
//! A jmp in place of the int3 leads to a detour in hidden memory. The detour does the work of the
//! probes, runs the instructions that the jmp replaces, and jumps back. [`Region`] checks where
//! that is safe, [`Obstacle`] is the reason why it is not, [`Targets`] lists the targets of jumps,
//! and [`Detour`] is the code.

#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, unused_imports, reason = "public with the feature `testing`")
)]

mod array;
mod assemble;
mod code;
mod filter;
mod follow;
mod loaded;
#[cfg(any(test, feature = "testing"))]
mod plain;
mod pool;
mod region;
mod ring;
mod spec;
mod targets;
mod text;

pub use assemble::Detour;
#[cfg(any(test, feature = "testing"))]
pub use plain::PlainWords;
pub use pool::{FollowedCall, Pool, PoolMemory, STUB_LEN};
pub use region::{JMP_LEN, Obstacle, Region, TextFacts};
pub use ring::{CorruptRing, GuestRecord, GuestRing, InBytes, RETURN_VALUES, RecordShape, Words};
pub use spec::{
    Block, BlockAction, COUNTER, Current, DetourEnv, DetourError, LOADS_MAX, Mapped, Value,
};
pub use targets::{BRANCHES_MAX, Targets};

#[cfg(all(test, not(miri)))]
mod model;
#[cfg(test)]
mod tests;
