//! Probes of files that the workload opens: their names, the tasks that open them, and the
//! back-traces.

use std::sync::Arc;

use exoprobe_probes::Event;

/// A probe that records opened files' names, by the kernel's types.
pub const OPENS: &str = "p:opens do_sys_openat2 dfd filename:string";
/// The outermost functions of a system call's stack.
pub const ENTRY: [&str; 2] = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"];

/// The events of [`OPENS`] are of so many times that the workload, which is process 1, opened
/// /dev/null.
///
/// # Panics
/// When they are not.
pub fn assert_opened(events: &[Arc<Event>], times: usize) {
    assert_eq!(events.len(), times);
    for event in events {
        let (dfd, name) = (&event.args["dfd"], &event.args["filename"]);
        assert_eq!((dfd, name), (&(-100).into(), &"/dev/null".into()));
        assert_eq!((event.pid, event.comm.as_deref()), (Some(1), Some("init")));
    }
}

/// The events of a probe at `do_sys_openat2` are so many, and have back-traces to where the system
/// call entered.
///
/// # Panics
/// When they have not.
pub fn assert_callers(events: &[Arc<Event>], times: usize) {
    assert_eq!(events.len(), times);
    for event in events {
        let stack = event.stack.as_ref().expect("it was asked for");
        let names: Vec<&str> = stack.iter().filter_map(|f| f.symbol_name.as_deref()).collect();
        assert_eq!(names[..2], ["do_sys_openat2", "__x64_sys_openat"], "{stack:?}");
        assert!(names.ends_with(&ENTRY), "{stack:?}");
    }
}
