//! Functions without a value: output, and changes of whole maps.

use std::sync::Arc;

use super::call::STATEMENTS;
use super::checker::{Checked, Checker};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{MapId, Statement};
use crate::syntax::ast::{self, ExprKind, Name};
use crate::types::{Aggregate, Type};

impl Checker<'_> {
    /// Is an expression a call that has no value?
    pub(super) fn is_statement_call(&self, expr: &ast::Expr) -> bool {
        let ExprKind::Call(name, _) = &expr.kind else { return false };
        STATEMENTS.contains(&&*name.text) || *name.text == *"delete"
    }

    /// Checks a call as a statement; `None` if it is one with a value.
    pub(super) fn statement_call(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Option<Statement>> {
        let text = &*name.text;
        Ok(Some(match text {
            "printf" => {
                let (format, values) = self.format(text, arguments, span)?;
                Statement::Printf(format, values)
            }
            "errorf" => {
                let (format, values) = self.format(text, arguments, span)?;
                Statement::Errorf(format, values)
            }
            "cat" => {
                let (format, values) = self.format(text, arguments, span)?;
                Statement::Cat(format, values)
            }
            "system" => {
                self.only_unsafe(text, span)?;
                if !self.options.has_shell {
                    let error = "system() is not served: there is no shell";
                    return self.fail(Diagnostic::new(span, error));
                }
                let (format, values) = self.format(text, arguments, span)?;
                Statement::System(format, values)
            }
            "print" => self.print(name, arguments, span)?,
            "clear" | "zero" => {
                self.count_arguments(name, arguments, 1..=1, span)?;
                let Some(id) = self.map_id(&arguments[0]) else {
                    return self
                        .fail(Diagnostic::new(span, format!("{text}() takes a whole map: @name")));
                };
                self.check_known(id, &arguments[0])?;
                if text == "clear" { Statement::Clear(id) } else { Statement::Zero(id) }
            }
            "delete" => {
                let (id, keys) = self.deleted(name, arguments, span)?;
                Statement::Delete(id, keys)
            }
            "exit" => {
                self.count_arguments(name, arguments, 0..=1, span)?;
                Statement::Exit(match arguments.first() {
                    Some(code) => Some(self.number_value(code)?),
                    None => None,
                })
            }
            "time" => {
                self.count_arguments(name, arguments, 0..=1, span)?;
                Statement::Time(match arguments.first() {
                    Some(format) => self.time_format(format)?,
                    None => "%H:%M:%S\n".into(),
                })
            }
            "join" => self.join(name, arguments, span)?,
            "override" => self.override_call(name, arguments, span)?,
            "unwatch" => return self.refuse(span, text, "watchpoints are not served yet"),
            _ => return Ok(None),
        }))
    }

    fn only_unsafe(&mut self, name: &str, span: Span) -> Checked<()> {
        if self.options.allow_unsafe {
            return Ok(());
        }
        let error = Diagnostic::new(span, format!("`{name}()` is unsafe"));
        self.fail(error.help("allow it with --unsafe"))
    }

    /// Fails for a map that nothing is assigned to.
    pub(super) fn check_known(&mut self, id: MapId, map: &ast::Expr) -> Checked<()> {
        let ExprKind::Map(name, _) = &map.kind else { return Ok(()) };
        if self.is_last_pass && *self.maps.value_type(id) == Type::Unknown {
            let message = format!("nothing is ever assigned to map `{name}`");
            return self.fail(Diagnostic::new(map.span, message));
        }
        Ok(())
    }

    /// `print(@map, top, div)`, `print(@map[key])`, `print(value)`
    fn print(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Statement> {
        self.count_arguments(name, arguments, 1..=3, span)?;
        let first = &arguments[0];
        if let Some(id) = self.map_id(first) {
            self.check_known(id, first)?;
            let mut numbers = Vec::new();
            for argument in &arguments[1..] {
                numbers.push(self.number_value(argument)?);
            }
            let mut numbers = numbers.into_iter();
            return Ok(Statement::PrintMap(id, numbers.next(), numbers.next()));
        }
        if arguments.len() > 1 {
            let error = Diagnostic::new(span, "only maps are printed with a number of entries");
            return self.fail(error.help("write print(@name, 5)"));
        }
        if let ExprKind::Map(map, Some(keys)) = &first.kind {
            let (id, keys) = self.map_keys(map, Some(keys), first.span)?;
            let ExprKind::Map(name, _) = &first.kind else { return Ok(Statement::Return) };
            if self.is_last_pass && *self.maps.value_type(id) == Type::Unknown {
                let message = format!("nothing is ever assigned to map `{name}`");
                return self.fail(Diagnostic::new(first.span, message));
            }
            return Ok(Statement::PrintEntry(id, keys));
        }
        let (value, ty) = self.any_value(first)?;
        if matches!(ty, Type::Void | Type::Aggregate(_)) {
            return self.fail(Diagnostic::new(first.span, format!("`{ty}` cannot be printed")));
        }
        Ok(Statement::PrintValue(value, self.shape(&ty)))
    }

    /// `join(args.argv, " ")`
    fn join(&mut self, name: &Name, arguments: &[ast::Expr], span: Span) -> Checked<Statement> {
        self.count_arguments(name, arguments, 1..=2, span)?;
        let between = match arguments.get(1) {
            None => " ".to_owned(),
            Some(between) => match self.constant_text(between) {
                Some(text) => text,
                None => {
                    let message = "what join() puts between texts must be a text";
                    return self.fail(Diagnostic::new(between.span, message));
                }
            },
        };
        let list = self.number_value(&arguments[0])?;
        self.body.need_exit(span, "join() reads a list of addresses");
        Ok(Statement::Join(list, Arc::from(between)))
    }

    fn override_call(
        &mut self,
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Statement> {
        self.only_unsafe("override", span)?;
        self.count_arguments(name, arguments, 1..=1, span)?;
        if self.body.class() != super::place::Class::Kprobe {
            let error = "override() is for kprobe alone, and without an offset";
            return self.fail(Diagnostic::new(span, error));
        }
        // So that the body is not shared with a kprobe that has an offset.
        self.body.uses_args = true;
        let value = self.number_value(&arguments[0])?;
        self.body.need_exit(span, "override() changes the hit itself");
        Ok(Statement::Override(value))
    }

    /// The type of a map's values in a loop; `None` if they are no single values.
    pub(super) fn map_type_as_value(&self, id: MapId) -> Option<Type> {
        match self.maps.value_type(id) {
            Type::Aggregate(Aggregate::Count) => Some(Type::INT64),
            Type::Aggregate(
                Aggregate::Sum { signed }
                | Aggregate::Avg { signed }
                | Aggregate::Min { signed }
                | Aggregate::Max { signed },
            ) => Some(if *signed { Type::INT64 } else { Type::UINT64 }),
            Type::Aggregate(_) => None,
            ty => Some(ty.clone()),
        }
    }
}
