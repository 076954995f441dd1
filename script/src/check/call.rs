//! Functions with values.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::aggregate::AGGREGATES;
use super::builtin::BUILTINS;
use super::checker::{Checked, Checker};
use super::operand::{Address, Form, Operand};
use super::place::Class;
use super::settings::stack_mode;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Call, Clock, Expr, Load};
use crate::program::{Base, Chain};
use crate::syntax::ast::{self, BinaryOp, ExprKind, Name};
use crate::types::{StackMode, Type};

/// Functions with a value.
pub(super) const FUNCTIONS: [&str; 26] = [
    "str",
    "kstr",
    "buf",
    "ksym",
    "usym",
    "kaddr",
    "uaddr",
    "kstack",
    "ustack",
    "reg",
    "ntop",
    "pton",
    "macaddr",
    "bswap",
    "strftime",
    "strncmp",
    "strcontains",
    "has_key",
    "len",
    "delete",
    "kptr",
    "uptr",
    "nsecs",
    "signal",
    "cgroupid",
    "cgroup_path",
];

/// Functions without one.
pub(super) const STATEMENTS: [&str; 12] = [
    "printf", "print", "clear", "zero", "exit", "time", "join", "cat", "system", "errorf",
    "override", "unwatch",
];

impl Checker<'_> {
    /// Checks a call that has a value.
    pub(super) fn call(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Operand> {
        let script = self.script;
        let found = script.tree.macros.iter().find(|it| it.name.text == name.text);
        if let Some(found) = found {
            return self.expand(found, arguments, span);
        }
        let text = &*name.text;
        match text {
            "str" | "kstr" => self.str_call(name, arguments, span),
            "buf" => self.buf_call(name, arguments, span),
            "kstack" | "ustack" => self.stack_call(text == "ustack", arguments, span),
            "has_key" | "len" | "delete" => self.map_call(name, arguments, span),
            "strncmp" | "strcontains" => self.text_call(name, arguments, span),
            "ntop" | "pton" | "macaddr" | "bswap" => self.network_call(name, arguments, span),
            "ksym" | "usym" | "kaddr" | "reg" => self.symbol_call(name, arguments, span),
            "strftime" => self.strftime(name, arguments, span),
            "nsecs" => self.nsecs(arguments, span),
            "kptr" | "uptr" => {
                self.count_arguments(name, arguments, 1..=1, span)?;
                let pointer = self.number(&arguments[0])?;
                Ok(Operand { span, ..pointer })
            }
            "uaddr" => self.refuse(span, text, "symbols of processes are not known here"),
            "signal" => self.refuse(span, text, "the guest is changed by nothing but its own probes; a signal would be a call of its kernel"),
            "cgroupid" | "cgroup_path" => self.refuse(span, text, "files of the guest are not read here"),
            _ if BUILTINS.contains(&text) && arguments.is_empty() => self.ident(text, span),
            _ if AGGREGATES.contains(&text) => {
                let error = Diagnostic::new(span, format!("the value of `{text}()` can only go to a map"));
                self.fail(error.help(format!("write @ = {text}(...)")))
            }
            _ if STATEMENTS.contains(&text) => {
                self.fail(Diagnostic::new(span, format!("`{text}()` has no value")))
            }
            _ => self.unknown_function(name),
        }
    }

    pub(super) fn unknown_function<T>(&mut self, name: &Name) -> Checked<T> {
        let error = Diagnostic::new(name.span, format!("unknown function `{}`", name.text));
        let script = self.script;
        let macros = script.tree.macros.iter().map(|it| &*it.name.text);
        let known = FUNCTIONS.into_iter().chain(STATEMENTS).chain(AGGREGATES).chain(macros);
        self.fail(error.near(&name.text, known))
    }

    pub(super) fn refuse<T>(&mut self, span: Span, name: &str, reason: &str) -> Checked<T> {
        self.fail(Diagnostic::new(span, format!("`{name}()` is not served: {reason}")))
    }

    /// Fails where a call has too few or too many arguments.
    pub(super) fn count_arguments(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        counts: RangeInclusive<usize>,
        span: Span,
    ) -> Checked<()> {
        if counts.contains(&arguments.len()) {
            return Ok(());
        }
        let (min, max) = counts.into_inner();
        let wanted = if min == max { min.to_string() } else { format!("{min} to {max}") };
        let message =
            format!("`{}()` takes {wanted} arguments, {} are given", name.text, arguments.len());
        self.fail(Diagnostic::new(span, message))
    }

    /// `str(address, length)`
    fn str_call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=2, span)?;
        if let Some(text) = self.param_text(&arguments[0], span)? {
            return Ok(text);
        }
        let source = self.expr(&arguments[0])?;
        let length = match arguments.get(1) {
            Some(length) => Some(self.number(length)?),
            None => None,
        };
        let fixed = length.as_ref().and_then(Operand::constant);
        let max = match fixed {
            Some(length) => u32::try_from(length).unwrap_or(0).min(self.options.text_max),
            None => self.options.text_max,
        };
        let ty = Type::Text(max.max(1));
        let whole = match &source.ty {
            Type::Text(_) => self.value(source)?,
            Type::Unknown => return Ok(Operand { ty, ..Operand::unknown(span) }),
            from if from.is_scalar() => {
                let address = self.address(source)?;
                // One byte is for the zero at the end.
                self.load(&address, Load::Text(max.saturating_sub(1)), span)
            }
            Type::Array(..) | Type::Bytes(_) => self.value(source)?,
            from => {
                let error = Diagnostic::new(arguments[0].span, format!("`{from}` is no address"));
                return self.fail(error.help("str() takes the address of a text"));
            }
        };
        Ok(match (length, fixed) {
            (None, _) => Operand::value(ty, whole, span),
            (Some(length), _) => {
                let length = self.value(length)?;
                Operand::value(ty, Expr::Call(Call::CutText, vec![whole, length]), span)
            }
        })
    }

    /// `str($1)`, `str($1 + 2)`: the text of a parameter.
    fn param_text(&mut self, expr: &ast::Expr, span: Span) -> Checked<Option<Operand>> {
        let (param, skip) = match &expr.kind {
            ExprKind::Param(number) => (*number, 0),
            ExprKind::Binary(BinaryOp::Add, left, right) => match (&left.kind, &right.kind) {
                (ExprKind::Param(number), ExprKind::Int(skip, _)) => (*number, *skip),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let given = self.script.params.get(param as usize - 1).map_or("", |text| text);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        match given.as_bytes().get(skip..) {
            Some(rest) => Ok(Some(super::expr::text(Arc::from(rest), span))),
            None => {
                let message = format!("${param} has only {} characters", given.len());
                self.fail(Diagnostic::new(span, message))
            }
        }
    }

    /// `buf(address, length)`
    fn buf_call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=2, span)?;
        let source = self.expr(&arguments[0])?;
        let length = match arguments.get(1) {
            Some(length) => Some(self.number(length)?),
            None => None,
        };
        let own_size = match &source.ty {
            Type::Array(..) | Type::Text(_) => self.size_of(&source.ty),
            _ => None,
        };
        let max = self.options.text_max;
        let fixed = match &length {
            Some(length) => {
                length.constant().map(|length| u32::try_from(length).unwrap_or(0).min(max))
            }
            None => own_size.map(|size| size.min(max)),
        };
        if length.is_none() && own_size.is_none() && source.ty != Type::Unknown {
            let error = Diagnostic::new(span, "the length of buf() is missing");
            return self.fail(error.help("write buf(ADDRESS, LENGTH)"));
        }
        let ty = Type::Bytes(fixed.unwrap_or(max));
        let address = match (&source.ty, self.place_of(&source)) {
            (Type::Unknown, _) => return Ok(Operand { ty, ..Operand::unknown(span) }),
            (Type::Array(..) | Type::Text(_), Some(place)) => place,
            (Type::Array(..) | Type::Text(_) | Type::Bytes(_), None) => {
                let all = self.value(source)?;
                let len = fixed.unwrap_or(max);
                return Ok(Operand::value(ty, Expr::Part(Box::new(all), 0, len, false), span));
            }
            (from, _) if from.is_scalar() => self.address(source)?,
            (from, _) => {
                let message = format!("`{from}` is no address");
                return self.fail(Diagnostic::new(arguments[0].span, message));
            }
        };
        match (fixed, length) {
            (Some(len), _) => {
                Ok(Operand::value(ty, self.load(&address, Load::Bytes(len), span), span))
            }
            (None, length) => {
                let address = match address {
                    Address::Chain(chain) => {
                        self.value(Operand { ty: Type::UINT64, form: Form::Chain(chain), span })?
                    }
                    Address::Computed(expr, offset) => {
                        let offset = Expr::Constant(crate::value::Value::Int(offset));
                        Expr::Binary(BinaryOp::Add, false, Box::new(expr), Box::new(offset))
                    }
                };
                let length = match length {
                    Some(length) => self.value(length)?,
                    None => Expr::Constant(crate::value::Value::Int(0)),
                };
                self.body.need_exit(span, "it reads memory of a length that it computes");
                let call = Expr::Call(Call::LoadBytes(max), vec![address, length]);
                Ok(Operand::value(ty, call, span))
            }
        }
    }

    /// `kstack(mode, frames)`
    fn stack_call(&mut self, user: bool, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        let mut mode: Option<StackMode> = None;
        let mut frames = None;
        for argument in arguments {
            let word = match &argument.kind {
                ExprKind::Ident(word) => stack_mode(word),
                _ => None,
            };
            if word.is_some() && mode.is_none() {
                mode = word;
                continue;
            }
            let number = self.constant(argument)?;
            match u32::try_from(number) {
                Ok(number @ 1..=127) if frames.is_none() => frames = Some(number),
                _ => {
                    let error = Diagnostic::new(argument.span, "a stack has 1 to 127 frames");
                    return self.fail(error.help("write kstack(perf, 3)"));
                }
            }
        }
        Ok(self.stack(user, mode, frames, span))
    }

    /// `has_key(@map, key)`, `len(@map)`, `delete(@map, key)`
    fn map_call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        if *name.text == *"len" {
            self.count_arguments(name, arguments, 1..=1, span)?;
            if let Some(id) = self.map_id(&arguments[0])
                && self.maps.key_types(id).is_none_or(|keys| !keys.is_empty())
            {
                return Ok(Operand::value(
                    Type::INT64,
                    Expr::Call(Call::Len(id), Vec::new()),
                    span,
                ));
            }
            let (value, ty) = self.any_value(&arguments[0])?;
            if !matches!(ty, Type::Stack { .. } | Type::Unknown) {
                let message = format!("`{ty}` has no length: len() is of maps and stacks");
                return self.fail(Diagnostic::new(span, message));
            }
            return Ok(Operand::value(Type::INT64, Expr::Call(Call::StackLen, vec![value]), span));
        }
        if *name.text == *"delete" {
            let (id, keys) = self.deleted(name, arguments, span)?;
            return Ok(Operand::value(Type::INT64, Expr::Call(Call::DeleteKey(id), keys), span));
        }
        self.count_arguments(name, arguments, 2..=2, span)?;
        let Some(id) = self.map_id(&arguments[0]) else {
            return self.fail(Diagnostic::new(arguments[0].span, "the first argument is a map"));
        };
        let keys = self.single_key(id, &arguments[1])?;
        Ok(Operand::value(Type::INT64, Expr::Call(Call::HasKey(id), keys), span))
    }

    /// The entry that `delete(@map[key])` or `delete(@map, key)` means.
    pub(super) fn deleted(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<(usize, Vec<Expr>)> {
        self.count_arguments(name, arguments, 1..=2, span)?;
        if let [map, key] = arguments {
            let Some(id) = self.map_id(map) else {
                return self.fail(Diagnostic::new(map.span, "the first argument is a map"));
            };
            return Ok((id, self.single_key(id, key)?));
        }
        match &arguments[0].kind {
            ExprKind::Map(map, keys) => {
                let found = self.map_keys(map, keys.as_deref(), arguments[0].span)?;
                self.check_known(found.0, &arguments[0])?;
                Ok(found)
            }
            _ => self.fail(Diagnostic::new(arguments[0].span, "delete() takes an entry of a map")),
        }
    }

    fn text_call(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        let is_strncmp = *name.text == *"strncmp";
        let count = if is_strncmp { 3 } else { 2 };
        self.count_arguments(name, arguments, count..=count, span)?;
        let mut values = Vec::new();
        for argument in &arguments[..2] {
            let (value, ty) = self.any_value(argument)?;
            if !matches!(ty, Type::Text(_) | Type::Unknown) {
                return self.fail(Diagnostic::new(argument.span, format!("`{ty}` is no text")));
            }
            values.push(value);
        }
        let call = match arguments.get(2) {
            Some(length) => match usize::try_from(self.constant(length)?) {
                Ok(length) => Call::StrNCmp(length),
                Err(_) => return self.fail(Diagnostic::new(length.span, "the length is negative")),
            },
            None => Call::StrContains,
        };
        Ok(Operand::value(Type::INT64, Expr::Call(call, values), span))
    }

    /// `nsecs(boot)`
    fn nsecs(&mut self, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        let mode = match arguments {
            [] => "boot",
            [ast::Expr { kind: ExprKind::Ident(mode), .. }] => mode,
            _ => "",
        };
        match mode {
            "boot" | "monotonic" => Ok(Operand::value(Type::UINT64, Expr::Time(Clock::Boot), span)),
            "tai" | "sw_tai" => self.refuse(span, "nsecs", "the guest's TAI clock is not read"),
            _ => {
                let error = Diagnostic::new(span, "nsecs() has no such clock");
                self.fail(error.help("write nsecs(boot) or nsecs(monotonic)"))
            }
        }
    }

    /// `reg("ip")`
    pub(super) fn register(&mut self, name: &str, span: Span) -> Checked<Operand> {
        let known = [
            "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx",
            "si", "di", "ip", "flags", "sp",
        ];
        if !known.contains(&name) {
            let error = Diagnostic::new(span, format!("unknown register `{name}`"));
            return self.fail(error.help(format!("known are {}", known.join(", "))));
        }
        let has_registers = [Class::Kprobe, Class::KprobeWithin, Class::Kretprobe, Class::Profile];
        if !has_registers.contains(&self.body.class()) {
            let error = Diagnostic::new(span, "this probe has no registers");
            return self.fail(error.help("kprobe, kretprobe and profile have"));
        }
        let full = if name.starts_with('r') { name.to_owned() } else { format!("r{name}") };
        let form = Form::Chain(Chain::of(Base::Register(full.into())));
        Ok(Operand { ty: Type::UINT64, form, span })
    }
}
