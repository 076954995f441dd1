//! System calls that threads may make, as data.

use libc::c_long;

/// A named number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) name: &'static str,
    pub(super) value: u64,
}

/// A [`Value`] of a constant of libc's.
macro_rules! value {
    ($constant:ident) => {
        $crate::sandbox::seccomp::call::Value {
            name: stringify!($constant),
            value: libc::$constant as u64,
        }
    };
}
pub(super) use value;

/// The arguments with which a call is allowed. Arguments are numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arguments {
    /// Any.
    Any,
    /// This one is one of these, in its lower 32 bits.
    OneOf(u8, &'static [Value]),
    /// This one has none of these bits.
    Without(u8, Value),
    /// The first is this process.
    OwnProcess,
}

/// A system call that is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: c_long,
    pub(super) arguments: Arguments,
    /// Why it is allowed.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for docs/security.md, which a test compares")
    )]
    pub(super) reason: &'static str,
}

pub(super) const fn any(number: c_long, reason: &'static str) -> Call {
    Call { number, arguments: Arguments::Any, reason }
}

pub(super) const fn one_of(
    number: c_long,
    argument: u8,
    values: &'static [Value],
    reason: &'static str,
) -> Call {
    Call { number, arguments: Arguments::OneOf(argument, values), reason }
}

pub(super) const fn without(
    number: c_long,
    argument: u8,
    bits: Value,
    reason: &'static str,
) -> Call {
    Call { number, arguments: Arguments::Without(argument, bits), reason }
}

pub(super) const fn own_process(number: c_long, reason: &'static str) -> Call {
    Call { number, arguments: Arguments::OwnProcess, reason }
}
