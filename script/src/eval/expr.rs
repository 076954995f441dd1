//! Values of expressions.

use std::sync::Arc;

use super::number::{arithmetic, bits, from_bytes, narrow};
use super::{Evaluated, Run};
use crate::ir::{Clock, Expr, Load};
use crate::limits::limit;
use crate::program::{AttachmentKind, Datum, MemoryKind, Read};
use crate::value::Value;

impl Run<'_> {
    pub(super) fn eval(&mut self, expr: &Expr) -> Evaluated<Value> {
        Ok(match expr {
            Expr::Constant(value) => value.clone(),
            Expr::Variable(slot) => self.variables.get(*slot).cloned().unwrap_or(Value::Int(0)),
            Expr::Read(index) => self.read(*index)?,
            Expr::Map(id, keys) => {
                let keys = self.keys(keys)?;
                let value = self.maps.get(*id).and_then(|map| map.get(&keys));
                let value = value.unwrap_or_else(|| self.empty(*id));
                self.give_back(keys);
                value
            }
            Expr::Choose(test, yes, no) => {
                if self.eval(test)?.is_true() {
                    self.eval(yes)?
                } else {
                    self.eval(no)?
                }
            }
            Expr::Same(inverted, left, right) => {
                let same = self.eval(left)? == self.eval(right)?;
                Value::Int((same != *inverted).into())
            }
            Expr::Part(..) | Expr::Element(..) | Expr::Load(..) => self.memory(expr)?,
            Expr::Tuple(of) => {
                let values =
                    of.iter().map(|expr| self.eval(expr)).collect::<Evaluated<Vec<_>>>()?;
                Value::Tuple(values.into())
            }
            Expr::Field(of, index) => match self.eval(of)? {
                Value::Tuple(values) => values.get(*index).cloned().unwrap_or(Value::Int(0)),
                _ => Value::Int(0),
            },
            Expr::ProbeName => {
                let attachment = self.program.attachments.get(self.attachment);
                Value::text(attachment.map_or("", |attachment| &attachment.name))
            }
            Expr::FunctionName => Value::text(&self.function_name()),
            Expr::Call(call, arguments) => self.call(call, arguments)?,
            Expr::Block(statements, value) => {
                self.statements(statements)?;
                self.eval(value)?
            }
            _ => Value::Int(self.int(expr)?),
        })
    }

    /// The value of an expression that is a number.
    pub(super) fn int(&mut self, expr: &Expr) -> Evaluated<i64> {
        Ok(match expr {
            Expr::Constant(Value::Int(value)) => *value,
            Expr::Negate(of) => self.int(of)?.wrapping_neg(),
            Expr::Invert(of) => !self.int(of)?,
            Expr::Not(of) => (!self.eval(of)?.is_true()).into(),
            Expr::Binary(op, signed, left, right) => {
                let left = self.int(left)?;
                arithmetic(*op, *signed, left, self.int(right)?)
            }
            Expr::And(left, right) => {
                (self.eval(left)?.is_true() && self.eval(right)?.is_true()).into()
            }
            Expr::Or(left, right) => {
                (self.eval(left)?.is_true() || self.eval(right)?.is_true()).into()
            }
            Expr::Cast(bytes, signed, of) => narrow(self.int(of)?, *bytes, *signed),
            Expr::Bits(shift, width, signed, of) => bits(self.int(of)?, *shift, *width, *signed),
            Expr::IntAt(of, offset, len, signed) => {
                let all = self.eval(of)?;
                let start = *offset as usize;
                let bytes = all.bytes().get(start..start + usize::from(*len));
                from_bytes(bytes.unwrap_or_default(), *signed)
            }
            Expr::Time(clock) => self.time(*clock),
            Expr::Cpu => self.hit.cpu.into(),
            Expr::Random => self.host.random().into(),
            Expr::StepVariable(slot, by, old) => {
                let Some(variable) = self.variables.get_mut(*slot) else { return Ok(0) };
                let before = variable.int();
                let after = before.wrapping_add(*by);
                *variable = Value::Int(after);
                if *old { before } else { after }
            }
            Expr::StepMap(id, keys, by, old) => {
                let keys = self.keys(keys)?;
                let known = self.maps.get(*id).and_then(|map| map.get(&keys));
                let before = known.map_or(0, |value| value.int());
                let after = before.wrapping_add(*by);
                self.set(*id, &keys, Value::Int(after))?;
                self.give_back(keys);
                if *old { before } else { after }
            }
            other => self.eval(other)?.int(),
        })
    }

    fn time(&self, clock: Clock) -> i64 {
        match clock {
            Clock::Boot => self.hit.time.cast_signed(),
            Clock::Elapsed => self.hit.time.saturating_sub(self.started).cast_signed(),
        }
    }

    fn function_name(&self) -> String {
        match self.program.attachments.get(self.attachment).map(|attachment| &attachment.kind) {
            Some(
                AttachmentKind::Kprobe { symbol, .. }
                | AttachmentKind::Kretprobe { symbol, .. }
                | AttachmentKind::Fentry { symbol }
                | AttachmentKind::Fexit { symbol },
            ) => symbol.to_string(),
            Some(
                AttachmentKind::SyscallEnter { name: Some(name) }
                | AttachmentKind::SyscallExit { name: Some(name) },
            ) => format!("__x64_sys_{name}"),
            _ => String::new(),
        }
    }

    /// A value of the hit.
    fn read(&mut self, index: usize) -> Evaluated<Value> {
        let datum = self.hit.values.get(index).copied().unwrap_or(Datum::Fault);
        let read = self.body.reads.get(index);
        Ok(match (datum, read) {
            (Datum::Int(value), _) => Value::Int(value.cast_signed()),
            (Datum::Stack(frames), _) => Value::Stack(frames.into(), 0),
            (Datum::Bytes(bytes), Some(Read::Comm)) => self.text(bytes)?,
            (Datum::Bytes(bytes), Some(Read::Memory { what: MemoryKind::Text(_), .. })) => {
                self.text(bytes)?
            }
            (Datum::Bytes(bytes), _) => self.bytes(bytes)?,
            (Datum::Fault, Some(Read::Memory { what: MemoryKind::Bytes(len), .. })) => {
                self.bytes(&vec![0; *len as usize])?
            }
            (Datum::Fault, Some(Read::Comm)) => Value::text(""),
            (Datum::Fault, Some(Read::Memory { what: MemoryKind::Text(_), .. })) => Value::text(""),
            (Datum::Fault, Some(Read::KernelStack(_) | Read::UserStack(_))) => {
                Value::Stack(Arc::from([]), 0)
            }
            (Datum::Fault, _) => Value::Int(0),
        })
    }

    /// Text up to its first zero byte.
    pub(super) fn text(&self, bytes: &[u8]) -> Evaluated<Value> {
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if len > self.limits.text_bytes {
            return Err(limit("text_bytes", self.limits.text_bytes));
        }
        Ok(Value::Bytes(bytes[..len].into()))
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Evaluated<Value> {
        if bytes.len() > self.limits.value_bytes {
            return Err(limit("value_bytes", self.limits.value_bytes));
        }
        Ok(Value::Bytes(bytes.into()))
    }

    /// Parts of bytes, and the guest's memory.
    fn memory(&mut self, expr: &Expr) -> Evaluated<Value> {
        match expr {
            Expr::Part(of, offset, len, is_text) => {
                let all = self.eval(of)?;
                let all = all.bytes();
                let start = (*offset as usize).min(all.len());
                let end = start.saturating_add(*len as usize).min(all.len());
                let part = &all[start..end];
                if *is_text { self.text(part) } else { self.bytes(part) }
            }
            Expr::Element(of, index, size) => {
                let all = self.eval(of)?;
                let index = usize::try_from(self.int(index)?).unwrap_or(usize::MAX);
                let size = *size as usize;
                let start = index.saturating_mul(size);
                let element = all.bytes().get(start..start.saturating_add(size));
                self.bytes(element.unwrap_or_default())
            }
            Expr::Load(load, address) => {
                let address = self.int(address)?.cast_unsigned();
                self.load(*load, address)
            }
            other => self.eval(other),
        }
    }

    /// Reads the guest's memory. What cannot be read is 0 or empty, as in bpftrace.
    fn load(&self, load: Load, address: u64) -> Evaluated<Value> {
        match load {
            Load::Int(len, signed) => {
                let mut bytes = [0; 8];
                let part = &mut bytes[..usize::from(len.min(8))];
                let read = self.host.memory().is_some_and(|memory| memory.read(address, part));
                Ok(Value::Int(if read { from_bytes(part, signed) } else { 0 }))
            }
            Load::Bytes(len) => self.load_bytes(address, len as usize),
            Load::Text(max) => self.load_text(address, max as usize),
        }
    }

    pub(super) fn load_bytes(&self, address: u64, len: usize) -> Evaluated<Value> {
        if len > self.limits.value_bytes {
            return Err(limit("value_bytes", self.limits.value_bytes));
        }
        let mut bytes = vec![0; len];
        let read = self.host.memory().is_some_and(|memory| memory.read(address, &mut bytes));
        if !read {
            bytes.fill(0);
        }
        Ok(Value::Bytes(bytes.into()))
    }

    /// Text at an address, page by page.
    pub(super) fn load_text(&self, address: u64, max: usize) -> Evaluated<Value> {
        const PAGE: u64 = 4096;
        let Some(memory) = self.host.memory() else { return Ok(Value::text("")) };
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < max {
            let to_page_end = usize::try_from(PAGE - at % PAGE).unwrap_or(1);
            let mut part = vec![0; to_page_end.min(max - text.len())];
            if !memory.read(at, &mut part) {
                break;
            }
            let end = part.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&part[..end.unwrap_or(part.len())]);
            if end.is_some() || text.len() > self.limits.text_bytes {
                break;
            }
            at = at.wrapping_add(part.len() as u64);
        }
        self.text(&text)
    }
}
