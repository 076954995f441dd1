//! System calls: their functions, and their parameters as the formats of the kernel's tracepoints
//! `syscalls:sys_enter_*` have them.

use std::sync::Arc;

use exoprobe_script::{Parameter, RecordRef, Type};

/// Beginning of the name of a system call's function, which takes a `struct pt_regs *` (Linux from
/// 4.17 on).
pub(super) const PREFIX: &str = "__x64_sys_";
/// Functions of that beginning that are no calls.
const NO_CALLS: [&str; 1] = ["ni_syscall"];

/// A line for each: its name, then `PARAMETER:TYPE`. A type is a number (`i4`: 4 bytes with a sign,
/// `u8`: 8 without), `char`, `void`, or a struct's name, after a `*` for each pointer.
const CALLS: &str = include_str!("syscalls.txt");

/// Returns true for the name of a call, without `sys_`.
pub(super) fn is_call(name: &str) -> bool {
    !NO_CALLS.contains(&name)
}

/// The parameters of a call; `None` if they are not known.
pub(super) fn parameters(name: &str) -> Option<Vec<Parameter>> {
    let mut lines = CALLS.lines().map(|line| line.split(' '));
    let words = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.map(parameter).collect()
}

fn parameter(text: &str) -> Option<Parameter> {
    let (name, ty) = text.split_once(':')?;
    Some(Parameter { name: name.into(), ty: type_of(ty)? })
}

fn type_of(text: &str) -> Option<Type> {
    if let Some(to) = text.strip_prefix('*') {
        return Some(Type::Pointer(Arc::new(type_of(to)?)));
    }
    let number = |signed| {
        let bytes = text.get(1..)?.parse().ok().filter(|bytes| [1, 2, 4, 8].contains(bytes))?;
        Some(Type::Integer { bytes, signed })
    };
    let of_number = match text.as_bytes().first()? {
        b'i' => number(true),
        b'u' => number(false),
        _ => None,
    };
    Some(match (of_number, text) {
        (Some(number), _) => number,
        (None, "void") => Type::Void,
        (None, "char") => Type::Integer { bytes: 1, signed: true },
        (None, name) => Type::Record(RecordRef::Named(name.into())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_can_be_read_and_they_are_in_order() {
        let names: Vec<&str> = CALLS.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.is_sorted() && names.len() > 300, "{}", names.len());
        for name in names {
            assert!(parameters(name).is_some(), "{name}");
        }
        assert_eq!(parameters("nothing"), None);
    }

    #[test]
    fn parameters_have_names_and_types() {
        let shown = |name| {
            let parameters = parameters(name).unwrap().into_iter();
            let shown = parameters.map(|one| format!("{}: {}", one.name, one.ty));
            shown.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(shown("openat"), "dfd: int32, filename: int8 *, flags: int32, mode: uint16");
        assert_eq!(shown("getpid"), "");
        assert_eq!(shown("execve"), "filename: int8 *, argv: int8 * *, envp: int8 * *");
    }
}
