//! The guest's own tracers: its kprobes, its function tracer, its BPF programs.

use exoprobe_introspect::btf::Kind;
use exoprobe_probes::Guest;
use exoprobe_tests::TestGuest;

use super::ours::Function;

/// The tracer's files in the guest.
pub(super) const TRACER: &str = "/sys/kernel/tracing";

/// A tracer of the guest's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// An event on an instruction of the function. At its entry, it is called by the function
    /// tracer's call.
    Kprobe(u64),
    /// An event on the function's return.
    Kretprobe,
    /// The function tracer, which calls out of the function's first instruction.
    Function,
    /// A BPF program that a trampoline calls, which the function's first instruction calls.
    Fentry,
    /// A BPF program after the function's return. The trampoline calls the rest of the function.
    Fexit,
}

impl Own {
    /// Its name in the table of docs/kernels.md.
    pub(super) fn title(self) -> String {
        match self {
            Self::Kprobe(0) => "kprobe on the function's entry".to_owned(),
            Self::Kprobe(offset) => format!("kprobe on offset {offset}"),
            Self::Kretprobe | Self::Function => format!("{self:?}, on the function's entry"),
            Self::Fentry => "BPF program at the function's entry (fentry)".to_owned(),
            Self::Fexit => "BPF program at the function's return (fexit)".to_owned(),
        }
    }

    /// The name of its event; `None` if it has none.
    fn event(self) -> Option<&'static str> {
        match self {
            Self::Kprobe(_) => Some("own"),
            Self::Kretprobe => Some("own_return"),
            Self::Function | Self::Fentry | Self::Fexit => None,
        }
    }

    /// Returns true if each call writes an entry of its own into the tracer's buffer.
    pub(super) fn has_event(self) -> bool {
        self.event().is_some()
    }

    /// The word of the commands of guest/init.
    pub(super) fn end(self) -> &'static str {
        if self == Self::Fentry { "fentry" } else { "fexit" }
    }
}

/// One of these, counted.
pub(super) struct Theirs<'a> {
    guest: &'a TestGuest,
    own: Own,
    function: Function,
    hits: u64,
}

impl<'a> Theirs<'a> {
    pub(super) fn come(guest: &'a TestGuest, own: Own, function: Function) -> Self {
        let name = function.name;
        match own {
            Own::Kprobe(offset) => put(guest, "kprobe_events", &format!("p:own {name}+{offset}")),
            Own::Kretprobe => put(guest, "kprobe_events", &format!("r:own_return {name}")),
            Own::Function => put(guest, "set_ftrace_filter", &any_alias(name)),
            Own::Fentry | Own::Fexit => {}
        }
        match own.event() {
            Some(event) => put(guest, &format!("events/kprobes/{event}/enable"), "1"),
            None if own == Own::Function => put(guest, "current_tracer", "function"),
            None => {
                let attach = format!("attach {} {}", own.end(), type_number(guest, name));
                assert_eq!(guest.work(&attach), 1);
            }
        }
        let mut new = Self { guest, own, function, hits: 0 };
        new.hits = new.count();
        new
    }

    pub(super) fn own(&self) -> Own {
        self.own
    }

    /// Calls its function.
    pub(super) fn call(&self) -> u64 {
        self.function.call(self.guest)
    }

    fn count(&self) -> u64 {
        let command = match (self.own.event(), self.own) {
            (Some(event), _) => format!("number {TRACER}/kprobe_profile {event}"),
            (None, Own::Function) => {
                let of_cpu = |cpu| format!("number {TRACER}/per_cpu/cpu{cpu}/stats entries:");
                let cpus = 0..self.guest.vm.vcpus();
                return cpus.map(|cpu| self.guest.work(&of_cpu(cpu))).sum();
            }
            (None, own) => format!("calls {}", own.end()),
        };
        self.guest.work(&command)
    }

    /// The function tracer's buffer was emptied, as it is when an event that wrote there goes.
    pub(super) fn count_anew(&mut self) {
        if self.own == Own::Function {
            self.hits = self.count();
        }
    }

    /// So many calls more have been counted.
    pub(super) fn assert_more(&mut self, calls: u64, when: &str) {
        let now = self.count();
        assert_eq!(now - self.hits, calls, "{when}: the guest's own {:?}", self.own);
        self.hits = now;
    }

    pub(super) fn go(self) -> Own {
        let guest = self.guest;
        match (self.own.event(), self.own) {
            (Some(event), _) => {
                put(guest, &format!("events/kprobes/{event}/enable"), "0");
                put(guest, "kprobe_events", &format!("-:{event}"));
            }
            (None, Own::Function) => {
                put(guest, "current_tracer", "nop");
                put(guest, "set_ftrace_filter", &format!("!{}", any_alias(self.function.name)));
            }
            (None, own) => assert_eq!(guest.work(&format!("detach {}", own.end())), 1),
        }
        self.own
    }
}

/// A pattern for a system call's function, by whichever of its names the function tracer calls it.
fn any_alias(name: &str) -> String {
    name.replacen("__x64", "*", 1)
}

/// The number of a function among the kernel's types. Types have the name in the source; that of a
/// system call without parameters is another one than in the table of system calls.
pub(super) fn type_number(guest: &TestGuest, name: &str) -> u32 {
    let types = guest.engine.types().expect("Debian's kernels have types");
    let names = [name.to_owned(), name.replacen("__x64_", "__do_", 1)];
    let mut ids = names.iter().flat_map(|name| types.named(name));
    let function = ids.find(|id| matches!(types.kind(*id), Kind::Function(_)));
    function.unwrap_or_else(|| panic!("{name} is among the types")).0
}

pub(super) fn put(guest: &TestGuest, file: &str, text: &str) {
    assert_eq!(guest.work(&format!("put {TRACER}/{file} {text}")), 1);
}
