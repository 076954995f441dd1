//! Functions of networks, symbols and time.

use std::net::IpAddr;
use std::sync::Arc;

use super::checker::{Checked, Checker};
use super::operand::{Form, Operand};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Call, Expr};
use crate::program::{Base, Chain, Read};
use crate::syntax::ast::{self, Name};
use crate::types::Type;
use crate::value::Value;

/// Bytes of an address of Ethernet.
const MAC_SIZE: u32 = 6;

impl Checker<'_> {
    pub(super) fn network_call(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Operand> {
        match &*name.text {
            "ntop" => self.ntop(name, arguments, span),
            "pton" => self.pton(name, arguments, span),
            "macaddr" => self.macaddr(name, arguments, span),
            _ => self.bswap(name, arguments, span),
        }
    }

    /// The bytes of memory, zero bytes among them, also where it is an array of `char`.
    fn raw_bytes(&mut self, operand: Operand) -> Checked<(Expr, Type)> {
        let is_memory = matches!(operand.form, Form::Place(..) | Form::Inside(..));
        let ty = match operand.ty {
            Type::Text(len) if is_memory => {
                Type::Array(Arc::new(Type::Integer { bytes: 1, signed: false }), len)
            }
            ty => ty,
        };
        let value = self.value(Operand { ty: ty.clone(), ..operand })?;
        Ok((value, ty))
    }

    /// `ntop(address)`, `ntop(family, address)`
    fn ntop(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=2, span)?;
        let family = match arguments {
            [family, _] => Some(self.number_value(family)?),
            _ => None,
        };
        let at = &arguments[arguments.len() - 1];
        let operand = self.expr(at)?;
        let (value, ty) = self.raw_bytes(operand)?;
        let fits = match &ty {
            Type::Unknown => true,
            ty if ty.is_integer() => true,
            Type::Bytes(_) => true,
            ty => matches!(self.size_of(ty), Some(4 | 16)) && matches!(ty, Type::Array(..)),
        };
        if !fits {
            let error = Diagnostic::new(at.span, format!("`{ty}` is no address of a network"));
            return self.fail(error.help("ntop() takes a number, or an array of 4 or 16 bytes"));
        }
        let call = match family {
            Some(family) => Expr::Call(Call::InetOf, vec![family, value]),
            None => Expr::Call(Call::Inet, vec![value]),
        };
        Ok(Operand::value(Type::Inet, call, span))
    }

    /// `pton("127.0.0.1")`
    fn pton(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=1, span)?;
        let text = self.constant_text(&arguments[0]);
        let bytes = match text.as_deref().map(str::parse) {
            Some(Ok(IpAddr::V4(address))) => address.octets().to_vec(),
            Some(Ok(IpAddr::V6(address))) => address.octets().to_vec(),
            _ => {
                let error =
                    Diagnostic::new(arguments[0].span, "this is no address of IPv4 or IPv6");
                return self.fail(error.help("write pton(\"127.0.0.1\") or pton(\"::1\")"));
            }
        };
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let ty = Type::Array(Arc::new(Type::Integer { bytes: 1, signed: false }), len);
        Ok(Operand::value(ty, Expr::Constant(Value::Bytes(bytes.into())), span))
    }

    fn macaddr(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=1, span)?;
        let operand = self.expr(&arguments[0])?;
        let (value, ty) = self.raw_bytes(operand)?;
        let is_array = matches!(ty, Type::Array(..)) && self.size_of(&ty) == Some(MAC_SIZE);
        if !is_array && ty != Type::Unknown {
            let message = format!("macaddr() takes an array of {MAC_SIZE} bytes, not `{ty}`");
            return self.fail(Diagnostic::new(arguments[0].span, message));
        }
        Ok(Operand::value(Type::Mac, value, span))
    }

    fn bswap(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=1, span)?;
        let operand = self.number(&arguments[0])?;
        if !operand.ty.is_integer() && operand.ty != Type::Unknown {
            let message = format!("bswap() takes a number, not `{}`", operand.ty);
            return self.fail(Diagnostic::new(arguments[0].span, message));
        }
        let bytes = operand.ty.scalar_bytes().unwrap_or(8);
        let value = self.value(operand)?;
        let ty = Type::Integer { bytes, signed: false };
        Ok(Operand::value(ty, Expr::Call(Call::Swap(bytes), vec![value]), span))
    }

    pub(super) fn symbol_call(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Operand> {
        self.count_arguments(name, arguments, 1..=1, span)?;
        let first = &arguments[0];
        match &*name.text {
            "ksym" => {
                let value = self.number_value(first)?;
                Ok(Operand::value(Type::KernelSymbol, value, span))
            }
            "usym" => {
                let value = self.number_value(first)?;
                let pid = Expr::Read(self.body.read(&Read::Pid));
                let call = Expr::Call(Call::UserSymbol, vec![value, pid]);
                Ok(Operand::value(Type::UserSymbol, call, span))
            }
            "kaddr" => {
                let Some(symbol) = self.constant_text(first) else {
                    let message = "kaddr() takes the name of a symbol in quotes";
                    return self.fail(Diagnostic::new(first.span, message));
                };
                match self.kernel.has_symbol(&symbol) {
                    true => {
                        let form = Form::Chain(Chain::of(Base::Symbol(symbol.into())));
                        Ok(Operand { ty: Type::UINT64, form, span })
                    }
                    false => {
                        let message = format!("the kernel has no symbol `{symbol}`");
                        self.fail(Diagnostic::new(first.span, message))
                    }
                }
            }
            _ => match self.constant_text(first) {
                Some(register) => self.register(&register, span),
                None => {
                    let message = "reg() takes the name of a register in quotes";
                    self.fail(Diagnostic::new(first.span, message))
                }
            },
        }
    }

    /// `strftime("%H:%M", nsecs)`
    pub(super) fn strftime(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Operand> {
        self.count_arguments(name, arguments, 2..=2, span)?;
        let format = self.time_format(&arguments[0])?;
        let time = self.number_value(&arguments[1])?;
        let call = Expr::Call(Call::Strftime(format), vec![time]);
        Ok(Operand::value(Type::Timestamp, call, span))
    }

    /// A format of `time()` and `strftime()`.
    pub(super) fn time_format(&mut self, expr: &ast::Expr) -> Checked<Arc<str>> {
        let Some(format) = self.constant_text(expr) else {
            return self.fail(Diagnostic::new(expr.span, "the format of a time must be a text"));
        };
        if !crate::print::is_time_format(&format) {
            let error = Diagnostic::new(expr.span, "unknown conversion in the format of a time");
            return self.fail(error.help("conversions are those of strftime: %H:%M:%S"));
        }
        Ok(format.into())
    }
}
