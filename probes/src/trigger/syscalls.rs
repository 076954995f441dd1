//! Names of system calls on x86-64, as the kernel's tracer has them.

use syscalls::Sysno;

/// Functions that have another name than their call (syscall_64.tbl).
const FUNCTIONS: [(&str, &str); 6] = [
    ("stat", "newstat"),
    ("fstat", "newfstat"),
    ("lstat", "newlstat"),
    ("uname", "newuname"),
    ("sendfile", "sendfile64"),
    ("umount2", "umount"),
];

/// The name of a call's function in the tracer, `sys_` first; `unknown_syscall` for a number that
/// is no call's.
#[must_use]
pub fn syscall_name(number: u64) -> String {
    let call = usize::try_from(number).ok().and_then(Sysno::new);
    let Some(call) = call.map(|call| call.name()) else { return "unknown_syscall".to_owned() };
    let other = FUNCTIONS.iter().find(|(name, _)| *name == call);
    format!("sys_{}", other.map_or(call, |(_, function)| function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_functions() {
        let named =
            [(0, "sys_read"), (4, "sys_newstat"), (63, "sys_newuname"), (257, "sys_openat")];
        for (number, name) in named {
            assert_eq!(syscall_name(number), name);
        }
        for number in [400, u64::MAX] {
            assert_eq!(syscall_name(number), "unknown_syscall");
        }
    }
}
