//! Types of the kernel: BTF, which kernels with CONFIG_DEBUG_INFO_BTF have in their memory, and
//! which pahole generates for others (Documentation/bpf/btf.rst).
//!
//! The content is the guest's, or a user's: references are checked once, when it is parsed; chains
//! of them may still be circles, and every walk along them is bounded.

mod declare;
mod field;
mod find;
mod function;
mod id;
mod kind;
mod layout;
mod names;
mod parse;
#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod source;
mod table;
#[cfg(test)]
mod tests;

pub use field::{FieldError, FieldPlace};
pub use function::{ArgumentPlace, Parameter};
pub use id::TypeId;
pub use kind::{Composite, EnumValue, Kind, Member, Prototype, Qualifier};
pub use layout::{Layout, MemberLayout};
pub use parse::{BTF_MAX, BtfError, TYPES_MAX};
pub use source::{FileError, Foreign, NoTypes};
pub use table::Btf;
