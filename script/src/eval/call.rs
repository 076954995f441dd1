//! Functions with values, and entries of maps.

use std::sync::Arc;

use super::{Evaluated, Run};
use crate::ir::{Call, Expr, MapId};
use crate::limits::limit;
use crate::types::Type;
use crate::value::Value;

/// The family of IPv4.
const AF_INET: i64 = 2;

impl Run<'_> {
    pub(super) fn call(&mut self, call: &Call, arguments: &[Expr]) -> Evaluated<Value> {
        match call {
            Call::HasKey(id) | Call::DeleteKey(id) => return self.entry_call(call, *id, arguments),
            Call::Len(id) => {
                let len = self.maps.get(*id).map_or(0, |map| map.len());
                return Ok(Value::Int(i64::try_from(len).unwrap_or(0)));
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.eval(argument)?);
        }
        let first = values.first().cloned().unwrap_or(Value::Int(0));
        let second = values.get(1).cloned().unwrap_or(Value::Int(0));
        Ok(match call {
            Call::StackLen => match &first {
                Value::Stack(frames, _) => Value::Int(i64::try_from(frames.len()).unwrap_or(0)),
                _ => Value::Int(0),
            },
            Call::CutText => {
                let max = usize::try_from(second.int().saturating_sub(1)).unwrap_or(0);
                let bytes = first.bytes();
                self.text(&bytes[..max.min(bytes.len())])?
            }
            Call::LoadBytes(max) => {
                let len = usize::try_from(second.int()).unwrap_or(0).min(*max as usize);
                self.load_bytes(first.int().cast_unsigned(), len)?
            }
            Call::StrNCmp(len) => Value::Int(compare(first.bytes(), second.bytes(), *len)),
            Call::StrContains => {
                let (text, part) = (first.bytes(), second.bytes());
                let found = part.is_empty() || text.windows(part.len()).any(|it| it == part);
                Value::Int(found.into())
            }
            Call::Inet => inet(&first, None),
            Call::InetOf => inet(&second, Some(first.int())),
            Call::Swap(bytes) => {
                let shift = 64 - u32::from(*bytes) * 8;
                let swapped = first.int().cast_unsigned().swap_bytes();
                Value::Int((swapped >> shift).cast_signed())
            }
            Call::UserSymbol => Value::UserSymbol(first.int().cast_unsigned(), process(&second)),
            Call::UserStack => match first {
                Value::Stack(frames, _) => Value::Stack(frames, process(&second)),
                other => other,
            },
            Call::Strftime(format) => {
                Value::Timestamp(first.int().cast_unsigned(), Arc::clone(format))
            }
            Call::HasKey(_) | Call::DeleteKey(_) | Call::Len(_) => Value::Int(0),
        })
    }

    fn entry_call(&mut self, call: &Call, id: MapId, keys: &[Expr]) -> Evaluated<Value> {
        let keys = self.keys(keys)?;
        let found = match (call, self.maps.get_mut(id)) {
            (Call::DeleteKey(_), Some(map)) => map.delete(&keys),
            (_, Some(map)) => map.contains(&keys),
            (_, None) => false,
        };
        self.give_back(keys);
        Ok(Value::Int(found.into()))
    }

    /// The values of keys, in a vector that [`Self::give_back`] keeps.
    pub(super) fn keys(&mut self, exprs: &[Expr]) -> Evaluated<Vec<Value>> {
        let mut keys = std::mem::take(&mut self.keys);
        for expr in exprs {
            let key = self.eval(expr)?;
            keys.push(key);
        }
        Ok(keys)
    }

    pub(super) fn give_back(&mut self, mut keys: Vec<Value>) {
        keys.clear();
        self.keys = keys;
    }

    /// The value of an entry that a map does not have.
    pub(super) fn empty(&self, id: MapId) -> Value {
        match self.program.maps.get(id).map(|map| &map.value.ty) {
            Some(ty) => empty_of(ty),
            None => Value::Int(0),
        }
    }

    /// Sets an entry, if it is not too large.
    pub(super) fn set(&mut self, id: MapId, keys: &[Value], value: Value) -> Evaluated<()> {
        self.check_size(keys, &value)?;
        match self.maps.get_mut(id) {
            Some(map) => map.set(keys, value),
            None => Ok(()),
        }
    }

    pub(super) fn check_size(&self, keys: &[Value], value: &Value) -> Evaluated<()> {
        let size = keys.iter().map(Value::size).sum::<usize>() + value.size();
        if size > self.limits.value_bytes {
            return Err(limit("value_bytes", self.limits.value_bytes));
        }
        Ok(())
    }
}

/// The value of a type that nothing was assigned to.
fn empty_of(ty: &Type) -> Value {
    match ty {
        Type::Tuple(of) => Value::Tuple(of.iter().map(empty_of).collect()),
        Type::Stack { .. } => Value::Stack(Arc::from([]), 0),
        ty if ty.is_scalar() => Value::Int(0),
        Type::KernelSymbol | Type::Username | Type::Aggregate(_) | Type::Unknown => Value::Int(0),
        Type::UserSymbol => Value::UserSymbol(0, 0),
        _ => Value::text(""),
    }
}

fn process(value: &Value) -> u32 {
    u32::try_from(value.int()).unwrap_or(0)
}

/// 0 if the first bytes are equal, up to the end of both texts; else 1.
fn compare(one: &[u8], two: &[u8], len: usize) -> i64 {
    let byte = |text: &[u8], at: usize| text.get(at).copied().unwrap_or(0);
    let longest = one.len().max(two.len());
    (0..len.min(longest)).any(|at| byte(one, at) != byte(two, at)).into()
}

/// The 4 or 16 bytes of an address of a network.
fn inet(value: &Value, family: Option<i64>) -> Value {
    let bytes = match value {
        Value::Int(number) => number.to_le_bytes()[..4].to_vec(),
        other => other.bytes().to_vec(),
    };
    let len = match family {
        Some(AF_INET) => 4,
        Some(_) => 16,
        None if bytes.len() > 4 => 16,
        None => 4,
    };
    let mut all = bytes;
    all.resize(len, 0);
    Value::Bytes(all.into())
}
