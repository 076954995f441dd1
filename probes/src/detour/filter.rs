//! A filter as code: it jumps away for refused hits, before a record is reserved.

use iced_x86::IcedError;
use iced_x86::code_asm::{AsmRegister64, CodeLabel, al, ax, eax, rax, rcx};

use super::code::Code;
use super::spec::{DetourEnv, DetourError, Value};
use crate::definition::{Comparison, Field, Filter, ValueType, Width};

impl Code {
    /// Jumps to `target` if the value of the filter is `when`. Uses RAX and RCX.
    pub(super) fn go_if(
        &mut self,
        (filter, when): (&Filter<Field>, bool),
        values: &[Value],
        env: &DetourEnv,
        target: CodeLabel,
    ) -> Result<(), DetourError> {
        // For `&&` one false operand decides; for `||` one true operand.
        let (all, decides) = match filter {
            Filter::Test { field, comparison, operand } => {
                return self.test((*field, *comparison, *operand), when, values, env, target);
            }
            Filter::Match { .. } => return Err(DetourError::Text),
            Filter::Function { function, .. } => match *function {},
            Filter::Not(inner) => return self.go_if((inner, !when), values, env, target),
            Filter::All(all) => (all, false),
            Filter::Any(any) => (any, true),
        };
        if when == decides {
            return all.iter().try_for_each(|one| self.go_if((one, when), values, env, target));
        }
        let Some((last, others)) = all.split_last() else { return Ok(()) };
        let mut decided = self.a.create_label();
        for one in others {
            self.go_if((one, decides), values, env, decided)?;
        }
        self.go_if((last, when), values, env, target)?;
        self.a.set_label(&mut decided)?;
        // A separate place for the label: the next code may begin with another.
        Ok(self.a.zero_bytes()?)
    }

    fn test(
        &mut self,
        (field, comparison, operand): (Field, Comparison, u64),
        when: bool,
        values: &[Value],
        env: &DetourEnv,
        target: CodeLabel,
    ) -> Result<(), DetourError> {
        let (found, is_signed) = match field {
            Field::Arg { index, kind } => {
                let found = self.value_of(values, index, env)?;
                (self.narrow(found, kind)?, kind.is_signed())
            }
            Field::Pid => (self.pid(env)?, true),
            Field::Cpu => (self.cpu(env)?, true),
            Field::Known(number) => {
                self.a.mov(rax, number)?;
                (rax, false)
            }
            Field::Text { .. } | Field::UserText { .. } | Field::Comm => {
                return Err(DetourError::Text);
            }
            Field::At | Field::ReturnedTo | Field::Event => return Err(DetourError::NoAddress),
        };
        let a = &mut self.a;
        match (comparison, i32::try_from(operand.cast_signed())) {
            (Comparison::AnyBit, Ok(short)) => a.test(found, short)?,
            (_, Ok(short)) => a.cmp(found, short)?,
            (Comparison::AnyBit, Err(_)) => {
                a.mov(rcx, operand)?;
                a.test(found, rcx)?;
            }
            (_, Err(_)) => {
                a.mov(rcx, operand)?;
                a.cmp(found, rcx)?;
            }
        }
        let comparison = if when { comparison } else { opposite(comparison) };
        Ok(self.branch(comparison, is_signed, target)?)
    }

    /// A register with the value, narrowed to its type: its own register, or RAX.
    fn narrow(
        &mut self,
        found: AsmRegister64,
        kind: ValueType,
    ) -> Result<AsmRegister64, IcedError> {
        if kind.width() == Width::Quad {
            return Ok(found);
        }
        let a = &mut self.a;
        if found != rax {
            a.mov(rax, found)?;
        }
        match (kind.width(), kind.is_signed()) {
            (Width::Byte, false) => a.movzx(eax, al)?,
            (Width::Byte, true) => a.movsx(rax, al)?,
            (Width::Word, false) => a.movzx(eax, ax)?,
            (Width::Word, true) => a.movsx(rax, ax)?,
            (Width::Double, false) => a.mov(eax, eax)?,
            (Width::Double, true) => a.movsxd(rax, eax)?,
            (Width::Quad, _) => {}
        }
        Ok(rax)
    }

    /// Jumps to `target` if the flags say that the comparison holds, of signed or unsigned numbers.
    fn branch(
        &mut self,
        comparison: Comparison,
        is_signed: bool,
        target: CodeLabel,
    ) -> Result<(), IcedError> {
        let a = &mut self.a;
        match (comparison, is_signed) {
            (Comparison::Equal, _) => a.je(target),
            // Of bits, TEST clears ZF when any is set.
            (Comparison::NotEqual | Comparison::AnyBit, _) => a.jne(target),
            (Comparison::Below, false) => a.jb(target),
            (Comparison::Below, true) => a.jl(target),
            (Comparison::AtMost, false) => a.jbe(target),
            (Comparison::AtMost, true) => a.jle(target),
            (Comparison::Above, false) => a.ja(target),
            (Comparison::Above, true) => a.jg(target),
            (Comparison::AtLeast, false) => a.jae(target),
            (Comparison::AtLeast, true) => a.jge(target),
        }
    }
}

/// The comparison whose branch is taken if this one's is not; for bits, that of TEST's ZF.
fn opposite(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Equal => Comparison::NotEqual,
        Comparison::NotEqual | Comparison::AnyBit => Comparison::Equal,
        Comparison::Below => Comparison::AtLeast,
        Comparison::AtMost => Comparison::Above,
        Comparison::Above => Comparison::AtMost,
        Comparison::AtLeast => Comparison::Below,
    }
}
