//! Statements.

use super::{Evaluated, Run, Step};
use crate::ir::{Expr, MapId, Slot, Statement};
use crate::print::{Format, Record};
use crate::value::Value;

/// Most texts of a `join()`.
const JOIN_MAX: u64 = 64;
/// Longest text of a `join()`.
const JOIN_TEXT_MAX: usize = 1024;

impl Run<'_> {
    pub(super) fn statements(&mut self, all: &[Statement]) -> Evaluated<Step> {
        for statement in all {
            match self.statement(statement)? {
                Step::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Step::Next)
    }

    fn statement(&mut self, statement: &Statement) -> Evaluated<Step> {
        match statement {
            Statement::Expr(expr) => {
                self.eval(expr)?;
            }
            Statement::Set(slot, expr) => {
                let value = self.eval(expr)?;
                self.set_variable(*slot, value);
            }
            Statement::SetMap(id, keys, expr) => {
                let value = self.eval(expr)?;
                let keys = self.keys(keys)?;
                self.set(*id, &keys, value)?;
                self.give_back(keys);
            }
            Statement::Add(id, keys, arguments) => self.add(*id, keys, arguments)?,
            Statement::If(test, yes, no) => {
                let branch = if self.eval(test)?.is_true() { yes } else { no };
                return self.statements(branch);
            }
            Statement::Block(body) => return self.statements(body),
            Statement::While(..)
            | Statement::Unroll(..)
            | Statement::ForRange(..)
            | Statement::ForMap(..) => return self.looped(statement),
            Statement::Break => return Ok(Step::Break),
            Statement::Continue => return Ok(Step::Continue),
            Statement::Return => return Ok(Step::Return),
            Statement::Exit(code) => {
                let code = match code {
                    Some(code) => self.int(code)?,
                    None => 0,
                };
                return Ok(Step::Exit(i32::try_from(code).unwrap_or(1)));
            }
            Statement::Delete(id, keys) => {
                let keys = self.keys(keys)?;
                if let Some(map) = self.maps.get_mut(*id) {
                    map.delete(&keys);
                }
                self.give_back(keys);
            }
            Statement::Clear(id) => self.maps.get_mut(*id).into_iter().for_each(|map| map.clear()),
            Statement::Zero(id) => self.maps.get_mut(*id).into_iter().for_each(|map| map.zero()),
            Statement::Override(value) => {
                self.override_return = Some(self.int(value)?.cast_unsigned());
            }
            other => self.output(other)?,
        }
        Ok(Step::Next)
    }

    fn set_variable(&mut self, slot: Slot, value: Value) {
        if let Some(variable) = self.variables.get_mut(slot) {
            *variable = value;
        }
    }

    fn add(&mut self, id: MapId, keys: &[Expr], arguments: &[Expr]) -> Evaluated<()> {
        let number = match arguments.first() {
            Some(number) => self.int(number)?,
            None => 1,
        };
        let keys = self.keys(keys)?;
        self.check_size(&keys, &Value::Int(0))?;
        let time = self.hit.time;
        if let Some(map) = self.maps.get_mut(id) {
            map.add(&keys, number, time)?;
        }
        self.give_back(keys);
        Ok(())
    }

    fn looped(&mut self, statement: &Statement) -> Evaluated<Step> {
        match statement {
            Statement::While(test, body) => {
                while self.eval(test)?.is_true() {
                    match self.one_round(body)? {
                        Step::Next | Step::Continue => {}
                        Step::Break => break,
                        other => return Ok(other),
                    }
                }
            }
            Statement::Unroll(count, body) => {
                for _ in 0..self.int(count)? {
                    match self.one_round(body)? {
                        Step::Next | Step::Continue => {}
                        Step::Break => break,
                        other => return Ok(other),
                    }
                }
            }
            Statement::ForRange(slot, from, to, body) => {
                let from = self.int(from)?;
                for value in from..self.int(to)? {
                    self.set_variable(*slot, Value::Int(value));
                    match self.one_round(body)? {
                        Step::Next | Step::Continue => {}
                        Step::Break => break,
                        other => return Ok(other),
                    }
                }
            }
            Statement::ForMap(slot, id, body) => {
                let entries = self.maps.get(*id).map(|map| map.pairs()).unwrap_or_default();
                for pair in entries {
                    self.set_variable(*slot, pair);
                    match self.one_round(body)? {
                        Step::Next | Step::Continue => {}
                        Step::Break => break,
                        other => return Ok(other),
                    }
                }
            }
            _ => {}
        }
        Ok(Step::Next)
    }

    fn one_round(&mut self, body: &[Statement]) -> Evaluated<Step> {
        self.round()?;
        self.statements(body)
    }

    fn output(&mut self, statement: &Statement) -> Evaluated<()> {
        match statement {
            Statement::Printf(format, arguments) => {
                let values = self.all(arguments)?;
                let text = self.printer().format(format, &values);
                self.record(Record::Printf, &text)
            }
            Statement::Errorf(format, arguments) => {
                let values = self.all(arguments)?;
                let text = self.printer().format(format, &values);
                self.out.warn(String::from_utf8_lossy(&text).trim_end_matches('\n'));
                Ok(())
            }
            Statement::Cat(format, arguments) => {
                let values = self.all(arguments)?;
                let path = self.printer().format(format, &values);
                let path = String::from_utf8_lossy(&path).into_owned();
                match self.host.file(&path) {
                    Ok(content) => self.record(Record::Cat, &content),
                    Err(reason) => {
                        self.out.warn(&format!("cat: {path}: {reason}"));
                        Ok(())
                    }
                }
            }
            Statement::System(format, arguments) => {
                let values = self.all(arguments)?;
                let command = self.printer().format(format, &values);
                let command = String::from_utf8_lossy(&command).into_owned();
                match self.host.command(&command) {
                    Ok(Some(printed)) => self.record(Record::System, &printed),
                    Ok(None) => Ok(()),
                    Err(reason) => {
                        self.out.warn(&format!("system: {reason}"));
                        Ok(())
                    }
                }
            }
            Statement::PrintValue(value, shape) => {
                let value = self.eval(value)?;
                let text = self.printer().value_line(&value, shape);
                self.write(&text)
            }
            Statement::PrintMap(..) | Statement::PrintEntry(..) => self.print_map(statement),
            Statement::Time(format) => {
                let text = self.printer().time(self.hit.time, format);
                self.record(Record::Time, text.as_bytes())
            }
            Statement::Join(list, between) => {
                let list = self.int(list)?.cast_unsigned();
                let text = self.joined(list, between)?;
                self.record(Record::Join, &text)
            }
            _ => Ok(()),
        }
    }

    fn all(&mut self, exprs: &[Expr]) -> Evaluated<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    /// Writes text as it is, or as a line of JSON.
    fn record(&mut self, record: Record, text: &[u8]) -> Evaluated<()> {
        match self.format {
            Format::Text => {
                self.write(text)?;
                if record == Record::Join { self.write(b"\n") } else { Ok(()) }
            }
            Format::Json => self.write(&crate::print::record_line(record, text)),
        }
    }

    fn print_map(&mut self, statement: &Statement) -> Evaluated<()> {
        let text = match statement {
            Statement::PrintMap(id, top, div) => {
                let mut number = |expr: &Option<Expr>| match expr {
                    Some(expr) => self.int(expr).map(|value| u64::try_from(value).unwrap_or(0)),
                    None => Ok(0),
                };
                let (top, div) = (number(top)?, number(div)?);
                let top = usize::try_from(top).unwrap_or(usize::MAX);
                match (self.program.maps.get(*id), self.maps.get(*id)) {
                    (Some(info), Some(map)) => self.printer().map(info, map, top, div),
                    _ => Vec::new(),
                }
            }
            Statement::PrintEntry(id, keys) => {
                let keys = self.keys(keys)?;
                let text = match (self.program.maps.get(*id), self.maps.get(*id)) {
                    (Some(info), Some(map)) => self.printer().entry(info, map, &keys),
                    _ => Vec::new(),
                };
                self.give_back(keys);
                text
            }
            _ => Vec::new(),
        };
        self.write(&text)
    }

    /// The texts that a list of addresses is of; a zero ends it.
    fn joined(&mut self, list: u64, between: &str) -> Evaluated<Vec<u8>> {
        let mut text = Vec::new();
        for index in 0..JOIN_MAX {
            let mut word = [0; 8];
            let at = list.wrapping_add(index * 8);
            let read = self.host.memory().is_some_and(|memory| memory.read(at, &mut word));
            let address = u64::from_le_bytes(word);
            if !read || address == 0 {
                break;
            }
            if index > 0 {
                text.extend_from_slice(between.as_bytes());
            }
            text.extend_from_slice(self.load_text(address, JOIN_TEXT_MAX)?.bytes());
        }
        Ok(text)
    }
}
