//! Questions of the checker about the guest's kernel.

use std::sync::Arc;

use crate::types::{Parameter, Prototype, Record, RecordRef, Type};

/// The kernel of the guest that a script is for, of which nothing is known by default.
/// [`crate::BtfTypes`] answers the questions about types.
pub trait Kernel {
    /// Names of the functions that match `pattern` (`*`, `?`, `[a-z]`), in order, each once; of
    /// one module (`vmlinux` for the kernel's own), or of all. An exact name is a pattern too.
    fn functions(&self, _module: Option<&str>, _pattern: &str) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// The parameters and the result of a function.
    fn prototype(&self, _function: &str) -> Option<Prototype> {
        None
    }

    /// Members of a struct or union.
    fn record(&self, _record: &RecordRef) -> Option<Record> {
        None
    }

    /// The type that `name` means in a cast: `struct file`, `union u`, `enum e`, or a typedef.
    fn named_type(&self, _name: &str) -> Option<Type> {
        None
    }

    /// The value of an enum's constant.
    fn enumerator(&self, _name: &str) -> Option<i64> {
        None
    }

    /// The constants of an enum, by its name.
    fn enumerators(&self, _name: &str) -> Vec<(Arc<str>, i64)> {
        Vec::new()
    }

    /// Returns true if it has a symbol of this name. Its address may be another one at each boot.
    fn has_symbol(&self, _symbol: &str) -> bool {
        false
    }

    /// Names of the system calls that can be probed, without `sys_`, in order.
    fn syscalls(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// Parameters of a system call, as the kernel's own format of its tracepoint has them.
    fn syscall(&self, _name: &str) -> Option<Vec<Parameter>> {
        None
    }

    /// Number of the guest's CPUs.
    fn cpus(&self) -> u32 {
        1
    }
}

/// No kernel at all: for scripts of `BEGIN`, `END` and `interval` alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKernel;

impl Kernel for NoKernel {}
