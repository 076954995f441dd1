//! A filter as code: it jumps away for hits that are not wanted, before any room is made for a record.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeLabel, rcx};

use super::assemble::{DetourError, Surroundings, Value};
use super::code::Code;
use crate::definition::{Comparison, Field, Filter};

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
        let found = match field {
            Field::Arg(index) => self.value_of(values, index)?,
            Field::Pid => self.pid(around)?,
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
        Ok(self.branch(comparison, when, target)?)
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
