//! Values in the syntax of the tracer's first version (kprobe-based event tracer, "Synopsis"):
//! `aN`, `sN`, `sa`, and at a return `rv`, `ra`.

use crate::definition::{Fetch, Register, STACK_WORDS};

/// Number of a call's arguments that are kept for its return.
pub(crate) const KEPT_MAX: usize = 16;

/// Registers of arguments, in order (System V ABI, AMD64, 3.2.3).
pub(super) const REGISTERS: [Register; 6] =
    [Register::Di, Register::Si, Register::Dx, Register::Cx, Register::R8, Register::R9];

/// The fetch argument of such a name.
pub(super) fn fetch(name: &str, at_return: bool) -> Option<Fetch> {
    match name {
        "sa" => return Some(Fetch::StackPointer),
        "rv" => return at_return.then_some(Fetch::ReturnValue),
        "ra" => return at_return.then_some(Fetch::Register(Register::Ip)),
        _ => {}
    }
    let number = |letter| {
        let digits: &str = name.strip_prefix(letter)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u16>().ok())?
    };
    match (number('a'), number('s')) {
        (Some(n), _) => argument(n),
        (None, Some(n)) => (n < STACK_WORDS).then_some(Fetch::Stack(n)),
        (None, None) => None,
    }
}

/// The function's argument `n`, from 0, at the entry: after those in registers, above the return
/// address.
pub(crate) fn argument(n: u16) -> Option<Fetch> {
    match REGISTERS.get(usize::from(n)) {
        Some(register) => Some(Fetch::Register(*register)),
        None => {
            let word = n - 6 + 1;
            (word < STACK_WORDS).then_some(Fetch::Stack(word))
        }
    }
}
