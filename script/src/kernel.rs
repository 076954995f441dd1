//! Questions of the checker about the guest's kernel.

use std::sync::Arc;

use crate::types::{Parameter, Prototype, Record, RecordRef, Type};

/// The kernel of the guest that a script is for. [`crate::BtfTypes`] answers those about types.
pub trait Kernel {
    /// Names of the functions that match `pattern` (`*`, `?`, `[a-z]`), in order, each once; of
    /// one module (`vmlinux` for the kernel's own), or of all. An exact name is a pattern too.
    fn functions(&self, module: Option<&str>, pattern: &str) -> Vec<Arc<str>>;

    /// The parameters and the result of a function.
    fn prototype(&self, function: &str) -> Option<Prototype>;

    /// Members of a struct or union.
    fn record(&self, record: &RecordRef) -> Option<Record>;

    /// The type that `name` means in a cast: `struct file`, `union u`, `enum e`, or a typedef.
    fn named_type(&self, name: &str) -> Option<Type>;

    /// The value of an enum's constant.
    fn enumerator(&self, name: &str) -> Option<i64>;

    /// The constants of an enum, by its name.
    fn enumerators(&self, name: &str) -> Vec<(Arc<str>, i64)>;

    /// Address of a symbol.
    fn address(&self, symbol: &str) -> Option<u64>;

    /// Names of the system calls that can be probed, without `sys_`, in order.
    fn syscalls(&self) -> Vec<Arc<str>>;

    /// Parameters of a system call, as the kernel's own format of its tracepoint has them.
    fn syscall(&self, name: &str) -> Option<Vec<Parameter>>;

    /// Number of the guest's CPUs.
    fn cpus(&self) -> u32;
}

/// No kernel at all: for scripts of `BEGIN`, `END` and `interval` alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKernel;

impl Kernel for NoKernel {
    fn functions(&self, _: Option<&str>, _: &str) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn prototype(&self, _: &str) -> Option<Prototype> {
        None
    }

    fn record(&self, _: &RecordRef) -> Option<Record> {
        None
    }

    fn named_type(&self, _: &str) -> Option<Type> {
        None
    }

    fn enumerator(&self, _: &str) -> Option<i64> {
        None
    }

    fn enumerators(&self, _: &str) -> Vec<(Arc<str>, i64)> {
        Vec::new()
    }

    fn address(&self, _: &str) -> Option<u64> {
        None
    }

    fn syscalls(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn syscall(&self, _: &str) -> Option<Vec<Parameter>> {
        None
    }

    fn cpus(&self) -> u32 {
        1
    }
}
