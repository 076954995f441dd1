//! A filter as code: it jumps away for hits that are not wanted, before any room is made for a record.

use iced_x86::IcedError;
use iced_x86::code_asm::{AsmRegister64, CodeLabel, al, ax, eax, rax, rcx};

use super::assemble::{DetourError, Surroundings, Value};
use super::code::Code;
use crate::definition::{Comparison, Field, Filter, ValueType, Width};

impl Code {
    /// Goes to `target` if what the filter says is `when`. RAX and RCX are used.
    pub(super) fn go_if(
        &mut self,
        (filter, when): (&Filter<Field>, bool),
        values: &[Value],
        around: &Surroundings,
        target: CodeLabel,
    ) -> Result<(), DetourError> {
        // Of `&&`, one that is false decides; of `||`, one that is true.
        let (all, decides) = match filter {
            Filter::Test { field, comparison, operand } => {
                return self.test((*field, *comparison, *operand), when, values, around, target);
            }
            Filter::Match { .. } => return Err(DetourError::Text),
            Filter::Not(inner) => return self.go_if((inner, !when), values, around, target),
            Filter::All(all) => (all, false),
            Filter::Any(any) => (any, true),
        };
        if when == decides {
            return all.iter().try_for_each(|one| self.go_if((one, when), values, around, target));
        }
        let Some((last, others)) = all.split_last() else { return Ok(()) };
        let mut decided = self.a.create_label();
        for one in others {
            self.go_if((one, decides), values, around, decided)?;
        }
        self.go_if((last, when), values, around, target)?;
        self.a.set_label(&mut decided)?;
        // A place of its own for the label: what follows may begin with another.
        Ok(self.a.zero_bytes()?)
    }

    fn test(
        &mut self,
        (field, comparison, operand): (Field, Comparison, u64),
        when: bool,
        values: &[Value],
        around: &Surroundings,
        target: CodeLabel,
    ) -> Result<(), DetourError> {
        let (found, is_signed) = match field {
            Field::Arg { index, kind } => {
                let found = self.value_of(values, index)?;
                (self.narrow(found, kind)?, kind.is_signed())
            }
            Field::Pid => (self.pid(around)?, false),
            Field::Text { .. } | Field::Comm => return Err(DetourError::Text),
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
        let branched = match is_signed {
            true => self.branch_signed(comparison, when, target),
            false => self.branch(comparison, when, target),
        };
        Ok(branched?)
    }

    /// A register that holds as much of a value as its type has: its own, or RAX.
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

    /// As [`Self::branch`], of numbers with signs.
    fn branch_signed(
        &mut self,
        comparison: Comparison,
        when: bool,
        target: CodeLabel,
    ) -> Result<(), IcedError> {
        let a = &mut self.a;
        match (comparison, when) {
            (Comparison::Below, true) | (Comparison::AtLeast, false) => a.jl(target),
            (Comparison::Below, false) | (Comparison::AtLeast, true) => a.jge(target),
            (Comparison::AtMost, true) | (Comparison::Above, false) => a.jle(target),
            (Comparison::AtMost, false) | (Comparison::Above, true) => a.jg(target),
            (Comparison::Equal | Comparison::NotEqual | Comparison::AnyBit, _) => {
                self.branch(comparison, when, target)
            }
        }
    }

    /// Goes to `target` if the flags say of the comparison what `when` says.
    fn branch(
        &mut self,
        comparison: Comparison,
        when: bool,
        target: CodeLabel,
    ) -> Result<(), IcedError> {
        let a = &mut self.a;
        match (comparison, when) {
            (Comparison::Equal, true) | (Comparison::NotEqual, false) => a.je(target),
            (Comparison::Equal, false) | (Comparison::NotEqual, true) => a.jne(target),
            (Comparison::Below, true) | (Comparison::AtLeast, false) => a.jb(target),
            (Comparison::Below, false) | (Comparison::AtLeast, true) => a.jae(target),
            (Comparison::AtMost, true) | (Comparison::Above, false) => a.jbe(target),
            (Comparison::AtMost, false) | (Comparison::Above, true) => a.ja(target),
            (Comparison::AnyBit, true) => a.jne(target),
            (Comparison::AnyBit, false) => a.je(target),
        }
    }
}
