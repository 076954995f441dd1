//! Words of the kernel command line that spare a guest much of its boot, for hosts where KVM
//! emulates guest kernels. Measured with Debian's kernels: docs/limits.md, Hosts.

/// Parts of the boot that are left out whole (`initcall_blacklist=`); a kernel that has no such
/// function ignores its name. Loadable modules still work: they need `param_sysfs_init`.
const INITCALLS: [&str; 6] = [
    // /sys/kernel/slab: some 50 files for each of 200 caches. The second name is of Linux 6.12.
    "slab_sysfs_init",
    "slab_late_init",
    // /sys/kernel/irq.
    "irq_sysfs_init",
    // Parameters of built-in modules in /sys/module (Linux 6.3 and later).
    "param_sysfs_builtin_init",
    // Names for constants in the guest's own trace events, and their files.
    "trace_eval_init",
    "tracer_init_tracefs",
];

/// Memory is not cleared when it is allocated; locks keep their prefix on one CPU; no watchdog
/// reports a stall that is the emulation's slowness, with back-traces that cost more of it.
const PARAMETERS: &str =
    "init_on_alloc=0 noreplace-smp nowatchdog rcupdate.rcu_cpu_stall_suppress=1";

/// All words.
pub(crate) fn words() -> String {
    format!("{PARAMETERS} initcall_blacklist={}", INITCALLS.join(","))
}
