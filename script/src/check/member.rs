//! Members, elements, dereferences and addresses.

use super::checker::{Checked, Checker};
use super::operand::{Address, Bits, Form, Operand};
use super::place::Class;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::Expr;
use crate::program::{Base, Chain};
use crate::syntax::ast::{self, BinaryOp, ExprKind, Name};
use crate::types::{Member, Record, Type};
use crate::value::Value;

/// Largest array that is read as a whole at the hit, so that any element can be taken later.
const WHOLE_ARRAY_MAX: u32 = 512;

impl Checker<'_> {
    /// `of.name`, `of->name`
    pub(super) fn member(&mut self, of: &ast::Expr, name: &Name, span: Span) -> Checked<Operand> {
        if matches!(&of.kind, ExprKind::Ident(word) if **word == *"args") {
            return self.argument(name, span);
        }
        let base = self.expr(of)?;
        let (record_type, form) = match (&base.ty, &base.form) {
            (Type::Unknown, _) => return Ok(Operand::unknown(span)),
            (Type::Pointer(to), _) => {
                let to = Type::clone(to);
                let address = self.address(base)?;
                (to, Form::Place(address, None))
            }
            _ => (base.ty.clone(), base.form.clone()),
        };
        let Type::Record(reference) = &record_type else {
            let message = format!("`{record_type}` has no members");
            let error = Diagnostic::new(of.span, message);
            return self.fail(error.help("cast it to a pointer to a struct: (struct NAME *)VALUE"));
        };
        let Some(record) = self.record(reference) else {
            let message = format!("the members of `{record_type}` are not known");
            return self.fail(Diagnostic::new(of.span, message));
        };
        let Some(member) = self.find_member(&record, &name.text, 0) else {
            let message = format!("{} has no member `{}`", shown(&record), name.text);
            let known = record.members.iter().map(|member| &*member.name);
            return self.fail(Diagnostic::new(name.span, message).near(&name.text, known));
        };
        Ok(within(form, &member, span))
    }

    /// `args.name`
    fn argument(&mut self, name: &Name, span: Span) -> Checked<Operand> {
        self.body.uses_args = true;
        let class = self.body.class();
        let number = |base: Base, ty| Operand { ty, form: Form::Chain(Chain::of(base)), span };
        match (class, &*name.text) {
            (Class::AllSyscallsEnter | Class::AllSyscallsExit, "id")
            | (Class::SyscallEnter | Class::SyscallExit, "__syscall_nr") => {
                return Ok(number(Base::SyscallNumber, Type::INT64));
            }
            (Class::SyscallExit | Class::AllSyscallsExit, "ret") => {
                return Ok(number(Base::Retval, Type::INT64));
            }
            _ => {}
        }
        let Some(arguments) = self.body.place().and_then(|place| place.arguments.clone()) else {
            return self.no_arguments(class, name);
        };
        let found = arguments.iter().position(|argument| argument.name == name.text);
        let found = found.and_then(|index| Some((u8::try_from(index).ok()?, &arguments[index])));
        let Some((index, argument)) = found else {
            let error = Diagnostic::new(name.span, format!("no argument is named `{}`", name.text));
            let known = arguments.iter().map(|argument| &*argument.name);
            return self.fail(error.near(&name.text, known));
        };
        let base = Base::Arg(index);
        match argument.ty.scalar_bytes() {
            Some(8) => Ok(number(base, argument.ty.clone())),
            Some(bytes) => {
                let whole = self.value(number(base, Type::UINT64))?;
                let cast = Expr::Cast(bytes, argument.ty.is_signed(), Box::new(whole));
                Ok(Operand::value(argument.ty.clone(), cast, span))
            }
            None => {
                let message =
                    format!("`{}` is no number and no address: it is not served", name.text);
                self.fail(Diagnostic::new(name.span, message))
            }
        }
    }

    fn no_arguments<T>(&mut self, class: Class, name: &Name) -> Checked<T> {
        let (message, help) = match class {
            Class::SyscallExit | Class::AllSyscallsExit => {
                (format!("no argument is named `{}`", name.text), "known is args.ret")
            }
            Class::AllSyscallsEnter => {
                (format!("no argument is named `{}`", name.text), "known are args.id and args.args")
            }
            Class::SyscallEnter => (
                "the kernel has no format of this system call".to_owned(),
                "use rawtracepoint or a kprobe of its function",
            ),
            _ => (
                "this probe has no `args`".to_owned(),
                "use arg0 and on, or fentry, whose arguments have names",
            ),
        };
        self.fail(Diagnostic::new(name.span, message).help(help))
    }

    /// `of[index]`
    pub(super) fn index(
        &mut self,
        of: &ast::Expr,
        index: &ast::Expr,
        span: Span,
    ) -> Checked<Operand> {
        if let ExprKind::Member(args, name, _) = &of.kind
            && matches!(&args.kind, ExprKind::Ident(word) if **word == *"args")
            && self.body.class() == Class::AllSyscallsEnter
            && *name.text == *"args"
        {
            return self.raw_argument(index, span);
        }
        let base = self.expr(of)?;
        let index = self.number(index)?;
        let fixed = index.constant();
        let (element, form, len) = match (&base.ty, &base.form) {
            (Type::Unknown, _) => return Ok(Operand::unknown(span)),
            (Type::Pointer(to), _) => {
                let to = Type::clone(to);
                (to, Form::Place(self.address(base)?, None), None)
            }
            (Type::Array(of, len), form) => (Type::clone(of), form.clone(), Some(*len)),
            (Type::Text(len), form @ (Form::Place(..) | Form::Inside(..))) => {
                (Type::Integer { bytes: 1, signed: true }, form.clone(), Some(*len))
            }
            (ty, _) => {
                let error = Diagnostic::new(of.span, format!("`{ty}` has no elements"));
                return self.fail(error.help("elements are of arrays and pointers"));
            }
        };
        let Some(size) = self.size_of(&element) else {
            let message = format!("the size of `{element}` is not known");
            return self.fail(Diagnostic::new(of.span, message));
        };
        if let (Some(at), Some(len)) = (fixed, len)
            && len > 0
            && !(0..i64::from(len)).contains(&at)
        {
            let message = format!("index {at} is outside of an array of {len}");
            return self.fail(Diagnostic::new(index.span, message));
        }
        self.element(element, form, &index, size, len, span)
    }

    /// An element, at an index that may be known only later.
    fn element(
        &mut self,
        ty: Type,
        form: Form,
        index: &Operand,
        size: u32,
        len: Option<u32>,
        span: Span,
    ) -> Checked<Operand> {
        if let Some(at) = index.constant() {
            let bytes = at.wrapping_mul(size.into());
            let form = match form {
                Form::Place(address, _) => Form::Place(address.plus(bytes), None),
                Form::Inside(all, offset, _) => Form::Inside(
                    all,
                    offset.saturating_add(u32::try_from(bytes).unwrap_or(0)),
                    None,
                ),
                Form::Value(all, _) => Form::Inside(all, u32::try_from(bytes).unwrap_or(0), None),
                other @ Form::Chain(_) => other,
            };
            return Ok(Operand { ty, form, span });
        }
        let whole =
            len.and_then(|len| len.checked_mul(size)).filter(|size| *size <= WHOLE_ARRAY_MAX);
        let at = self.value(index.clone())?;
        let all = match (form, whole) {
            (Form::Place(Address::Computed(base, offset), _), _) => {
                return Ok(computed(ty, base, offset, at, size, span));
            }
            (Form::Place(Address::Chain(chain), _), None) => {
                let pointer = Operand { ty: Type::UINT64, form: Form::Chain(chain), span };
                let base = self.value(pointer)?;
                return Ok(computed(ty, base, 0, at, size, span));
            }
            (form, _) => {
                let bytes = Type::Array(std::sync::Arc::new(ty.clone()), len.unwrap_or(0));
                self.value(Operand { ty: bytes, form, span })?
            }
        };
        let element = Expr::Element(Box::new(all), Box::new(at), size);
        Ok(Operand { ty, form: Form::Inside(element, 0, None), span })
    }

    /// `args.args[index]` of a raw system call.
    fn raw_argument(&mut self, index: &ast::Expr, span: Span) -> Checked<Operand> {
        self.body.uses_args = true;
        match self.number(index)?.constant().and_then(|index| u8::try_from(index).ok()) {
            Some(index @ 0..=5) => {
                let form = Form::Chain(Chain::of(Base::Arg(index)));
                Ok(Operand { ty: Type::UINT64, form, span })
            }
            _ => self.fail(Diagnostic::new(index.span, "a system call has arguments 0 to 5")),
        }
    }

    /// `*of`
    pub(super) fn dereference(&mut self, of: &ast::Expr, span: Span) -> Checked<Operand> {
        let pointer = self.expr(of)?;
        let to = match &pointer.ty {
            Type::Unknown => return Ok(Operand::unknown(span)),
            Type::Pointer(to) if **to != Type::Void => Type::clone(to),
            // A number is the address of 8 bytes.
            Type::Integer { .. } => Type::UINT64,
            ty => {
                let error = Diagnostic::new(of.span, format!("`{ty}` is no pointer"));
                return self.fail(error.help("cast it: *(uint32 *)VALUE"));
            }
        };
        let address = self.address(pointer)?;
        Ok(Operand { ty: to, form: Form::Place(address, None), span })
    }

    /// `&of`
    pub(super) fn address_of(&mut self, of: &ast::Expr, span: Span) -> Checked<Operand> {
        let place = self.expr(of)?;
        let ty = Type::pointer(place.ty.clone());
        match place.form {
            Form::Place(Address::Chain(chain), None) => {
                Ok(Operand { ty, form: Form::Chain(chain), span })
            }
            Form::Place(Address::Computed(base, offset), None) => {
                let offset = Expr::Constant(Value::Int(offset));
                let sum = Expr::Binary(BinaryOp::Add, false, Box::new(base), Box::new(offset));
                Ok(Operand::value(ty, sum, span))
            }
            _ => self.fail(
                Diagnostic::new(of.span, "this has no address")
                    .help("addresses are of members and of what a pointer points to"),
            ),
        }
    }
}

/// The place of an element in memory at an address that is computed.
fn computed(ty: Type, base: Expr, offset: i64, index: Expr, size: u32, span: Span) -> Operand {
    let size = Expr::Constant(Value::Int(size.into()));
    let bytes = Expr::Binary(BinaryOp::Mul, false, Box::new(index), Box::new(size));
    let sum = Expr::Binary(BinaryOp::Add, false, Box::new(base), Box::new(bytes));
    Operand { ty, form: Form::Place(Address::Computed(sum, offset), None), span }
}

fn shown(record: &Record) -> String {
    let tag = if record.is_union { "union" } else { "struct" };
    format!("{tag} {}", record.name)
}

/// A member of a struct that is somewhere.
fn within(form: Form, member: &Member, span: Span) -> Operand {
    let unit = member.ty.scalar_bytes().map_or(8, |bytes| u32::from(bytes) * 8);
    let (bytes, bits) = match member.bits {
        None => (member.bit_offset / 8, None),
        Some(width) => {
            // The number of the field's type that has all bits.
            let start = member.bit_offset / unit * unit;
            let shift = u8::try_from(member.bit_offset - start).unwrap_or(0);
            (start / 8, Some(Bits { shift, width }))
        }
    };
    let ty = member.ty.clone();
    let form = match form {
        Form::Place(address, _) => Form::Place(address.plus(bytes.into()), bits),
        Form::Inside(all, offset, _) => Form::Inside(all, offset.saturating_add(bytes), bits),
        Form::Value(all, _) => Form::Inside(all, bytes, bits),
        other @ Form::Chain(_) => other,
    };
    Operand { ty, form, span }
}
