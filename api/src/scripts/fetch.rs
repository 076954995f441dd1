//! Reads of a script at a hit, as arguments of an ordinary probe. A probe whose arguments allow it
//! stays without exits.

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::btf::Btf;
use exoprobe_introspect::{TaskId, TaskLayout};
use exoprobe_probes::definition::{ARGS_MAX, ARRAY_MAX, ValueType, Width};
use exoprobe_probes::{Fetch, FetchArg, RawValue, RecordedHit, Register};
use exoprobe_script::{Attachment, AttachmentKind, Base, Chain, Datum, MemoryKind, Read};

use super::error::ScriptError;

/// Registers of a function's first arguments (System V ABI, AMD64, 3.2.3).
const ARGUMENTS: [Register; 6] =
    [Register::Di, Register::Si, Register::Dx, Register::Cx, Register::R8, Register::R9];
/// Offsets of a system call's arguments in `struct pt_regs`: rdi, rsi, rdx, r10, r8, r9.
const SYSCALL_ARGUMENTS: [i64; 6] = [112, 104, 96, 56, 72, 64];
/// The same of its number, orig_rax.
const SYSCALL_NUMBER: i64 = 120;
/// Bytes of `pid` in a task, which `tgid` follows.
const PID_BYTES: i64 = 4;

/// A task's credentials.
const CRED: (&str, &str) = ("struct task_struct", "cred");
/// The number of a task's control group in the second version's hierarchy, as the kernel's
/// bpf_get_current_cgroup_id() finds it.
const CGROUP: [(&str, &str); 4] = [
    ("struct task_struct", "cgroups"),
    ("struct css_set", "dfl_cgrp"),
    ("struct cgroup", "kn"),
    ("struct kernfs_node", "id"),
];

/// The kernel's structs that hits are read by.
#[derive(Clone, Copy)]
pub(super) struct Layouts<'a> {
    pub(super) task: Option<TaskLayout>,
    pub(super) types: Option<&'a Btf>,
}

/// The source of a value in a recorded hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An argument of the probe.
    Argument(usize),
    /// The first bytes of a text argument, at most so many.
    Text(usize, usize),
    /// The number of the task.
    Tid,
    /// The name of the task.
    Comm,
    /// The kernel's back-trace, at most so many frames.
    Stack(usize),
    /// The user's.
    UserStack(usize),
    /// The same for all hits.
    Constant(u64),
    /// The address that a symbol of the kernel had when the hit was taken.
    Symbol(Arc<str>),
}

impl Source {
    /// The value in a hit.
    pub(super) fn of<'a>(&self, hit: &'a RecordedHit) -> Datum<'a> {
        let value = match self {
            Self::Argument(index) => hit.value(*index).map(|value| match value {
                RawValue::Word(word) => Datum::Int(word),
                RawValue::Bytes(bytes) => Datum::Bytes(bytes),
            }),
            Self::Text(index, max) => hit.value(*index).map(|value| match value {
                RawValue::Word(word) => Datum::Int(word),
                RawValue::Bytes(bytes) => Datum::Bytes(&bytes[..bytes.len().min(*max)]),
            }),
            Self::Tid => hit.task().map(|task| Datum::Int(task.pid.into())),
            Self::Comm => hit.task().map(|task| Datum::Bytes(name(task))),
            Self::Stack(frames) => {
                let stack = hit.stack();
                Some(Datum::Stack(&stack[..stack.len().min(*frames)]))
            }
            Self::UserStack(frames) => {
                let stack = hit.user_stack();
                Some(Datum::Stack(&stack[..stack.len().min(*frames)]))
            }
            Self::Constant(number) => Some(Datum::Int(*number)),
            Self::Symbol(name) => {
                let address = hit.symbols().and_then(|symbols| symbols.address_of(name));
                address.map(|at| Datum::Int(at.0))
            }
        };
        value.unwrap_or(Datum::Fault)
    }
}

fn name(task: &TaskId) -> &[u8] {
    task.comm.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The arguments of an attachment's probe. Values that several bodies read are fetched once.
pub(super) struct Fetches<'a> {
    attachment: &'a Attachment,
    layouts: Layouts<'a>,
    pub(super) args: Vec<FetchArg>,
    pub(super) wants_stack: bool,
    /// The back-trace goes on in user mode.
    pub(super) user_stack: bool,
}

impl<'a> Fetches<'a> {
    pub(super) fn new(attachment: &'a Attachment, layouts: Layouts<'a>) -> Self {
        Self { attachment, layouts, args: Vec::new(), wants_stack: false, user_stack: false }
    }

    /// Adds what a body reads. Returns the source of each value.
    ///
    /// # Errors
    /// [`ScriptError::Unserved`], [`ScriptError::Unknown`], [`ScriptError::TooManyValues`].
    pub(super) fn add(&mut self, reads: &[Read]) -> Result<Vec<Source>, ScriptError> {
        reads.iter().map(|read| self.read(read)).collect()
    }

    fn read(&mut self, read: &Read) -> Result<Source, ScriptError> {
        let whole = ValueType::Unsigned(Width::Quad);
        match read {
            Read::Base(Base::Address(address)) => Ok(Source::Constant(*address)),
            Read::Base(Base::Symbol(name)) => Ok(Source::Symbol(Arc::clone(name))),
            Read::Base(base) => {
                let body = self.base(base)?;
                self.argument(body, whole, None).map(Source::Argument)
            }
            Read::Comm => Ok(Source::Comm),
            Read::Tid => Ok(Source::Tid),
            Read::Pid => self.pid(),
            Read::Uid => self.of_task(&[CRED, ("struct cred", "uid.val")], Width::Double, "uid"),
            Read::Gid => self.of_task(&[CRED, ("struct cred", "gid.val")], Width::Double, "gid"),
            // A guest has one node.
            Read::NumaNode => Ok(Source::Constant(0)),
            Read::KernelStack(frames) => {
                self.wants_stack = true;
                Ok(Source::Stack(*frames as usize))
            }
            Read::UserStack(frames) => {
                (self.wants_stack, self.user_stack) = (true, true);
                Ok(Source::UserStack(*frames as usize))
            }
            Read::Cgroup => self.of_task(&CGROUP, Width::Quad, "cgroup"),
            Read::Memory { address, what } => self.memory(address, *what),
        }
    }

    fn memory(&mut self, address: &Chain, what: MemoryKind) -> Result<Source, ScriptError> {
        let body = self.chain(address)?;
        match what {
            MemoryKind::Text(max) => {
                let index = self.argument(body, ValueType::Text, None)?;
                Ok(Source::Text(index, max as usize))
            }
            MemoryKind::Int { bytes, signed } => {
                let Some(width) = Width::of_bytes(bytes.into()) else {
                    return Err(self.unserved(format!("{what} at {address}")));
                };
                let kind =
                    if signed { ValueType::Signed(width) } else { ValueType::Unsigned(width) };
                self.argument(body, kind, None).map(Source::Argument)
            }
            MemoryKind::Bytes(len) => {
                let (width, count) = match len % 8 {
                    0 => (Width::Quad, len / 8),
                    _ => (Width::Byte, len),
                };
                let count =
                    u8::try_from(count).ok().filter(|count| (1..=ARRAY_MAX).contains(count));
                let Some(count) = count else {
                    return Err(self.unserved(format!("{what} at {address}")));
                };
                let kind = ValueType::Unsigned(width);
                self.argument(body, kind, Some(count)).map(Source::Argument)
            }
        }
    }

    fn pid(&mut self) -> Result<Source, ScriptError> {
        let layout = self.layouts.task.ok_or_else(|| self.unknown("pid"))?;
        let offset = i64::from(layout.pid) + PID_BYTES;
        let body = deref(offset, Fetch::CurrentTask);
        self.argument(body, ValueType::Unsigned(Width::Double), None).map(Source::Argument)
    }

    /// A field that pointers lead to from the current task: each a struct, and a field of it.
    fn of_task(
        &mut self,
        path: &[(&str, &str)],
        width: Width,
        name: &str,
    ) -> Result<Source, ScriptError> {
        let mut body = Fetch::CurrentTask;
        for (of, field) in path {
            let place = self.layouts.types.and_then(|types| types.field_of(of, field).ok());
            let offset = place.and_then(|place| i64::try_from(place.offset()).ok());
            body = deref(offset.ok_or_else(|| self.unknown(name))?, body);
        }
        self.argument(body, ValueType::Unsigned(width), None).map(Source::Argument)
    }

    /// The address at the end of a chain, read once more.
    fn chain(&self, chain: &Chain) -> Result<Fetch, ScriptError> {
        let mut offsets = chain.offsets.iter();
        let first = *offsets.next().unwrap_or(&0);
        let start = match &chain.base {
            Base::Address(at) => Fetch::Memory(Gva(at.wrapping_add_signed(first))),
            Base::Symbol(name) => Fetch::Symbol { name: name.to_string(), offset: first },
            base => deref(first, self.base(base)?),
        };
        Ok(offsets.fold(start, |inner, offset| deref(*offset, inner)))
    }

    fn base(&self, base: &Base) -> Result<Fetch, ScriptError> {
        use AttachmentKind as Kind;
        let unserved = || self.unserved(base.to_string());
        let index = |number: u8| usize::from(number);
        match (base, &self.attachment.kind) {
            (Base::Arg(number), Kind::SyscallEnter { .. }) => {
                let offset = SYSCALL_ARGUMENTS.get(index(*number)).ok_or_else(unserved)?;
                Ok(deref(*offset, Fetch::Register(Register::Di)))
            }
            (Base::Arg(number), Kind::Fexit { .. }) => Ok(Fetch::Argument(u16::from(*number) + 1)),
            (Base::Arg(number), Kind::Kprobe { .. } | Kind::Fentry { .. }) => {
                match ARGUMENTS.get(index(*number)) {
                    Some(register) => Ok(Fetch::Register(*register)),
                    // After the return address.
                    None => Ok(Fetch::Stack(u16::from(*number) - 5)),
                }
            }
            (Base::StackArg(number), Kind::Kprobe { .. } | Kind::Fentry { .. }) => {
                Ok(Fetch::Stack(number.checked_add(1).ok_or_else(unserved)?))
            }
            (
                Base::Retval,
                Kind::Kretprobe { .. } | Kind::Fexit { .. } | Kind::SyscallExit { .. },
            ) => Ok(Fetch::ReturnValue),
            (Base::SyscallNumber, Kind::SyscallEnter { .. }) => {
                Ok(deref(SYSCALL_NUMBER, Fetch::Register(Register::Di)))
            }
            (Base::SyscallNumber, Kind::SyscallExit { .. }) => {
                Ok(deref(SYSCALL_NUMBER, Fetch::Argument(1)))
            }
            (Base::Register(name), _) => Ok(Fetch::Register(register(name).ok_or_else(unserved)?)),
            (Base::Task, _) => Ok(Fetch::CurrentTask),
            (Base::Address(at), _) => Ok(Fetch::Constant(*at)),
            _ => Err(unserved()),
        }
    }

    /// The index of an argument, which is new if none is the same.
    fn argument(
        &mut self,
        body: Fetch,
        kind: ValueType,
        count: Option<u8>,
    ) -> Result<usize, ScriptError> {
        let is_same =
            |arg: &FetchArg| (&arg.body, arg.kind, arg.count) == (&body, Some(kind), count);
        if let Some(index) = self.args.iter().position(is_same) {
            return Ok(index);
        }
        let index = self.args.len();
        if index == ARGS_MAX {
            let (place, max) = (self.attachment.name.to_string(), ARGS_MAX);
            return Err(ScriptError::TooManyValues { place, count: index + 1, max });
        }
        self.args.push(FetchArg { name: Some(format!("v{index}")), body, kind: Some(kind), count });
        Ok(index)
    }

    fn unserved(&self, what: String) -> ScriptError {
        ScriptError::Unserved { place: self.attachment.name.to_string(), what }
    }

    fn unknown(&self, what: &str) -> ScriptError {
        ScriptError::Unknown { place: self.attachment.name.to_string(), what: what.to_owned() }
    }
}

fn deref(offset: i64, base: Fetch) -> Fetch {
    Fetch::Deref { offset, base: Box::new(base), user: false }
}

/// A register by its name of x86-64.
fn register(name: &str) -> Option<Register> {
    let short =
        name.strip_prefix('r').filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    short.unwrap_or(name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kprobe() -> Attachment {
        let kind = AttachmentKind::Kprobe { module: None, symbol: "f".into(), offset: 0 };
        Attachment { kind, name: "kprobe:f".into(), is_of_pattern: false, bodies: vec![0] }
    }

    const LAYOUT: TaskLayout = TaskLayout { pid: 100, comm: 200, tasks: 300 };

    fn lines(
        attachment: &Attachment,
        reads: &[Read],
    ) -> Result<(Vec<String>, Vec<Source>), String> {
        let layouts = Layouts { task: Some(LAYOUT), types: None };
        let mut fetches = Fetches::new(attachment, layouts);
        let sources = fetches.add(reads).map_err(|error| error.to_string())?;
        Ok((fetches.args.iter().map(ToString::to_string).collect(), sources))
    }

    #[test]
    fn values_become_arguments_once_each() {
        let address = Chain { base: Base::Arg(1), offsets: vec![8, -16] };
        let of_symbol = Chain { base: Base::Symbol("jiffies".into()), offsets: vec![4] };
        let reads = [
            Read::Base(Base::Arg(2)),
            Read::Pid,
            Read::Tid,
            Read::Memory { address, what: MemoryKind::Text(64) },
            Read::Base(Base::Arg(2)),
            Read::Base(Base::Arg(7)),
            Read::Base(Base::Register("rsp".into())),
            Read::Base(Base::Register("r8".into())),
            Read::Base(Base::Symbol("jiffies".into())),
            Read::Memory { address: of_symbol, what: MemoryKind::Int { bytes: 8, signed: false } },
        ];
        let (args, sources) = lines(&kprobe(), &reads).unwrap();
        assert_eq!(
            args,
            [
                "v0=%dx:u64",
                "v1=+104($current):u32",
                "v2=-16(+8(%si)):string",
                "v3=$stack2:u64",
                "v4=%sp:u64",
                "v5=%r8:u64",
                "v6=@jiffies+4:u64"
            ]
        );
        let expected = [
            Source::Argument(0),
            Source::Argument(1),
            Source::Tid,
            Source::Text(2, 64),
            Source::Argument(0),
            Source::Argument(3),
            Source::Argument(4),
            Source::Argument(5),
            Source::Symbol("jiffies".into()),
            Source::Argument(6),
        ];
        assert_eq!(sources, expected);
    }

    #[test]
    fn a_system_call_has_its_arguments_in_saved_registers() {
        let kind = AttachmentKind::SyscallEnter { name: Some("openat".into()) };
        let name = "tracepoint:syscalls:sys_enter_openat".into();
        let enter = Attachment { kind, name, is_of_pattern: false, bodies: vec![0] };
        let reads = [Read::Base(Base::Arg(3)), Read::Base(Base::SyscallNumber)];
        let (args, _) = lines(&enter, &reads).unwrap();
        assert_eq!(args, ["v0=+56(%di):u64", "v1=+120(%di):u64"]);
    }

    #[test]
    fn what_is_not_served_is_named() {
        let error = lines(&kprobe(), &[Read::Base(Base::SyscallNumber)]).unwrap_err();
        assert!(error.starts_with("kprobe:f: the call's number is not served"), "{error}");
        for (read, name) in [(Read::Uid, "uid"), (Read::Cgroup, "cgroup")] {
            let error = lines(&kprobe(), &[read]).unwrap_err();
            assert!(error.starts_with(&format!("kprobe:f: {name} is not known")), "{error}");
            assert!(error.contains("no types (BTF)"), "{error}");
        }
        let many: Vec<Read> = (0..200).map(|n| Read::Base(Base::StackArg(n))).collect();
        let error = lines(&kprobe(), &many).unwrap_err();
        assert!(error.contains("a record holds 128"), "{error}");
    }
}
