//! Names that are values: builtins, constants, `#define`s.

use super::checker::{Checked, Checker};
use super::constants;
use super::operand::{Form, Operand};
use super::place::Class;
use super::state::BodyState;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Call, Clock, Expr};
use crate::program::{Base, Chain, Read};
use crate::types::{RecordRef, StackMode, Type};

/// All builtins without numbers, for near names.
pub(super) const BUILTINS: [&str; 21] = [
    "pid", "tid", "uid", "gid", "comm", "nsecs", "elapsed", "cpu", "numaid", "ncpus", "args",
    "retval", "func", "probe", "curtask", "rand", "kstack", "ustack", "cgroup", "username",
    "jiffies",
];

/// Longest name of a task, with its zero byte.
pub(super) const COMM_SIZE: u32 = 16;

impl Checker<'_> {
    /// Checks a name alone.
    pub(super) fn ident(&mut self, name: &str, span: Span) -> Checked<Operand> {
        if let Some(found) = self.builtin(name, span)? {
            return Ok(found);
        }
        let define = self.script.tree.defines.iter().find(|define| *define.name.text == *name);
        if let Some(define) = define {
            // Its value is at another place: one level deeper, in case it names itself.
            return self.expr(&define.value);
        }
        if let Some((of, value)) = self.own.enumerator(name) {
            let ty = Type::Enum { name: of, bytes: 4, signed: false };
            return Ok(Operand { ty, ..Operand::int(value, span) });
        }
        if let Some(value) = self.kernel.enumerator(name).or_else(|| constants::constant(name)) {
            return Ok(Operand::int(value, span));
        }
        let error = Diagnostic::new(span, format!("unknown name `{name}`"));
        let defines = self.script.tree.defines.iter().map(|define| &*define.name.text);
        let near: Vec<&str> = BUILTINS.into_iter().chain(defines).collect();
        self.fail(error.near(name, near))
    }

    fn builtin(&mut self, name: &str, span: Span) -> Checked<Option<Operand>> {
        let unsigned = |expr| Operand::value(Type::UINT64, expr, span);
        let read = |body: &mut BodyState, read: &Read| Expr::Read(body.read(read));
        Ok(Some(match name {
            "pid" => unsigned(read(&mut self.body, &Read::Pid)),
            "tid" => unsigned(read(&mut self.body, &Read::Tid)),
            "uid" => unsigned(read(&mut self.body, &Read::Uid)),
            "gid" => unsigned(read(&mut self.body, &Read::Gid)),
            "numaid" => unsigned(read(&mut self.body, &Read::NumaNode)),
            "cgroup" => unsigned(read(&mut self.body, &Read::Cgroup)),
            "comm" => {
                let comm = read(&mut self.body, &Read::Comm);
                Operand::value(Type::Text(COMM_SIZE), comm, span)
            }
            "username" => Operand::value(Type::Username, read(&mut self.body, &Read::Uid), span),
            "nsecs" => unsigned(Expr::Time(Clock::Boot)),
            "elapsed" => unsigned(Expr::Time(Clock::Elapsed)),
            "cpu" => unsigned(Expr::Cpu),
            "rand" => unsigned(Expr::Random),
            "ncpus" => {
                Operand { ty: Type::UINT64, ..Operand::int(self.kernel.cpus().into(), span) }
            }
            "probe" => Operand::value(Type::Text(128), Expr::ProbeName, span),
            "true" => Operand::int(1, span),
            "false" => Operand::int(0, span),
            "func" => self.func(span)?,
            "kstack" | "ustack" => self.stack(name == "ustack", None, None, span),
            "curtask" => self.current_task(span),
            "retval" => self.retval(span)?,
            "jiffies" => match self.kernel.has_symbol("jiffies") {
                true => {
                    let chain = Chain { base: Base::Symbol("jiffies".into()), offsets: vec![0, 0] };
                    Operand { ty: Type::UINT64, form: Form::Chain(chain), span }
                }
                false => {
                    return self.fail(Diagnostic::new(span, "the kernel's `jiffies` is not known"));
                }
            },
            "args" => {
                let error = Diagnostic::new(span, "`args` is used without the name of an argument");
                return self.fail(error.help("write args.NAME"));
            }
            _ => return self.numbered_argument(name, span),
        }))
    }

    /// `arg0`, `sarg0`
    fn numbered_argument(&mut self, name: &str, span: Span) -> Checked<Option<Operand>> {
        let (base, number) = match (name.strip_prefix("arg"), name.strip_prefix("sarg")) {
            (_, Some(number)) => (number.parse().ok().map(Base::StackArg), number),
            (Some(number), None) => (number.parse().ok().map(Base::Arg), number),
            (None, None) => return Ok(None),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Ok(None);
        }
        if !matches!(self.body.class(), Class::Kprobe | Class::KprobeWithin) {
            let error = Diagnostic::new(span, format!("this probe has no `{name}`"));
            return self
                .fail(error.help("kprobe has arg0 and on; fentry and system calls have args"));
        }
        match base {
            Some(base) if base != Base::Arg(u8::MAX) && !matches!(base, Base::Arg(6..)) => {
                let form = Form::Chain(Chain::of(base));
                Ok(Some(Operand { ty: Type::INT64, form, span }))
            }
            _ => {
                let error = Diagnostic::new(span, format!("`{name}` is in no register"));
                self.fail(
                    error.help("arg0 to arg5 are in registers; sarg0 and on are on the stack"),
                )
            }
        }
    }

    fn func(&mut self, span: Span) -> Checked<Operand> {
        match self.body.class() {
            Class::Timed | Class::Profile => {
                self.fail(Diagnostic::new(span, "this probe is at no function"))
            }
            _ => Ok(Operand::value(Type::Text(128), Expr::FunctionName, span)),
        }
    }

    fn current_task(&mut self, span: Span) -> Operand {
        let task = RecordRef::Named("task_struct".into());
        let ty = match self.record(&task) {
            Some(_) => Type::pointer(Type::Record(task)),
            None => Type::UINT64,
        };
        Operand { ty, form: Form::Chain(Chain::of(Base::Task)), span }
    }

    fn retval(&mut self, span: Span) -> Checked<Operand> {
        let form = Form::Chain(Chain::of(Base::Retval));
        match self.body.class() {
            Class::Kretprobe | Class::SyscallExit | Class::AllSyscallsExit => {
                Ok(Operand { ty: Type::INT64, form, span })
            }
            Class::Fexit => {
                self.body.uses_args = true;
                let ty = self.body.place().and_then(|place| place.result.clone());
                let ty = ty.filter(Type::is_scalar).unwrap_or(Type::INT64);
                let whole = Operand { ty: Type::INT64, form, span };
                match ty.scalar_bytes() {
                    Some(8) | None => Ok(Operand { ty, ..whole }),
                    Some(bytes) => {
                        let value = Box::new(self.value(whole)?);
                        let cast = Expr::Cast(bytes, ty.is_signed(), value);
                        Ok(Operand::value(ty, cast, span))
                    }
                }
            }
            _ => {
                let error = Diagnostic::new(span, "this probe has no result");
                self.fail(error.help("kretprobe and fexit have `retval`"))
            }
        }
    }

    /// A back-trace.
    pub(super) fn stack(
        &mut self,
        user: bool,
        mode: Option<StackMode>,
        frames: Option<u32>,
        span: Span,
    ) -> Operand {
        let frames = frames.unwrap_or(self.options.stack_frames);
        let read = if user { Read::UserStack(frames) } else { Read::KernelStack(frames) };
        let mut expr = Expr::Read(self.body.read(&read));
        if user {
            // Its symbols are those of the process.
            let pid = Expr::Read(self.body.read(&Read::Pid));
            expr = Expr::Call(Call::UserStack, vec![expr, pid]);
        }
        let mode = mode.unwrap_or(self.options.stack_mode);
        Operand::value(Type::Stack { user, mode }, expr, span)
    }
}
