//! Names of events, groups, arguments and fields, and their limits.

/// Group of events whose definition names none (kprobe_events).
pub const DEFAULT_GROUP: &str = "kprobes";

/// Longest group or event name, in characters (MAX_EVENT_NAME_LEN less its NUL).
pub const NAME_MAX: usize = 63;

/// Most arguments of one probe (MAX_TRACE_ARGS).
pub const ARGS_MAX: usize = 128;

/// Most bytes of one event's values in a record of the tracer's (MAX_PROBE_EVENT_SIZE).
pub const RECORD_MAX: usize = 3072;

/// Longest argument name, in characters (MAX_ARG_NAME_LEN).
pub const ARG_NAME_MAX: usize = 32;

/// Largest maxactive (KRETPROBE_MAXACTIVE_MAX of the tracer).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Words of a kernel stack of 16 KiB: what `$stackN` can name.
pub(crate) const STACK_WORDS: u16 = 2048;

/// Field of a filter: number of the current task.
pub const PID_FIELD: &str = "common_pid";

/// Field of a filter: number of the event.
pub(crate) const TYPE_FIELD: &str = "common_type";

/// Field of a filter: name of the current task.
pub const COMM_FIELD: &str = "comm";

/// Field of a filter: number of the vCPU.
pub const CPU_FIELD: &str = "CPU";

/// Field of a filter: address of a kprobe.
pub(crate) const IP_FIELD: &str = "__probe_ip";

/// Field of a filter: address of a return probe's function.
pub(crate) const FUNCTION_FIELD: &str = "__probe_func";

/// Field of a filter: where a return probe's function returns to.
pub(crate) const RETURN_IP_FIELD: &str = "__probe_ret_ip";

/// Suffix of an address in a filter: the user's text at it.
pub(crate) const USER_TEXT: &str = ".ustring";

/// Name of argument `index`, which has none of its own.
pub(super) fn unnamed(index: usize) -> String {
    format!("arg{}", index + 1)
}

/// Names that the fields of every event have.
const RESERVED: [&str; 8] = [
    TYPE_FIELD,
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    IP_FIELD,
    RETURN_IP_FIELD,
    FUNCTION_FIELD,
];

pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Returns true if an argument's field can have the name.
pub(crate) fn is_arg_name(name: &str) -> bool {
    name.len() <= ARG_NAME_MAX && is_event_name(name) && !is_reserved(name)
}

/// Returns true if `name` is a C identifier of a length that the tracer accepts.
#[must_use]
pub fn is_event_name(name: &str) -> bool {
    name.len() <= NAME_MAX && is_identifier(name)
}

pub(super) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
