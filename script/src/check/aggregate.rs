//! Functions of maps: `@x = count()` and the like.

use super::checker::{Checked, Checker};
use super::operand::Operand;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Expr, MapId, Statement};
use crate::syntax::ast::{self, ExprKind, Name};
use crate::types::{Aggregate, TseriesBy, Type};

/// Names of the functions.
pub(super) const AGGREGATES: [&str; 9] =
    ["count", "sum", "avg", "min", "max", "stats", "hist", "lhist", "tseries"];

/// Most buckets of a linear histogram, as in bpftrace.
const BUCKETS_MAX: i64 = 1000;
/// Most buckets of a time series.
const SERIES_MAX: i64 = 1_000_000;

/// A call of a map's function, if an expression is one.
pub(super) fn aggregate_call(expr: &ast::Expr) -> Option<(&Name, &[ast::Expr])> {
    match &expr.kind {
        ExprKind::Call(name, arguments) if AGGREGATES.contains(&&*name.text) => {
            Some((name, arguments))
        }
        _ => None,
    }
}

impl Checker<'_> {
    /// `@map[keys] = function(arguments)`
    pub(super) fn add(
        &mut self,
        (id, keys): (MapId, Vec<Expr>),
        name: &Name,
        arguments: &[ast::Expr],
        span: Span,
    ) -> Checked<Statement> {
        let counts = match &*name.text {
            "count" => 0..=0,
            "hist" => 1..=2,
            "lhist" => 4..=4,
            "tseries" => 3..=4,
            _ => 1..=1,
        };
        self.count_arguments(name, arguments, counts, span)?;
        let Some((first, more)) = arguments.split_first() else {
            self.assign_map_type(id, &Type::Aggregate(Aggregate::Count), span)?;
            return Ok(Statement::Add(id, keys, Vec::new()));
        };
        let value = self.number(first)?;
        let signed = value.ty.is_signed();
        let is_unknown = value.ty == Type::Unknown;
        let value = self.value(value)?;
        let aggregate = self.aggregate(name, more, signed, span)?;
        if !is_unknown {
            self.join_aggregate(id, aggregate, span)?;
        }
        Ok(Statement::Add(id, keys, vec![value]))
    }

    fn aggregate(
        &mut self,
        name: &Name,
        more: &[ast::Expr],
        signed: bool,
        span: Span,
    ) -> Checked<Aggregate> {
        Ok(match &*name.text {
            "sum" => Aggregate::Sum { signed },
            "avg" => Aggregate::Avg { signed },
            "min" => Aggregate::Min { signed },
            "max" => Aggregate::Max { signed },
            "stats" => Aggregate::Stats { signed },
            "hist" => {
                let bits = match more.first() {
                    Some(bits) => self.constant(bits)?,
                    None => 0,
                };
                match u8::try_from(bits) {
                    Ok(bits @ 0..=5) => Aggregate::Hist { bits },
                    _ => {
                        let error = Diagnostic::new(span, "the bits of hist() are 0 to 5");
                        return self.fail(error);
                    }
                }
            }
            "tseries" => return self.tseries(more, signed, span),
            _ => {
                let [min, max, step] =
                    [self.constant(&more[0])?, self.constant(&more[1])?, self.constant(&more[2])?];
                self.lhist(min, max, step, span)?
            }
        })
    }

    fn lhist(&mut self, min: i64, max: i64, step: i64, span: Span) -> Checked<Aggregate> {
        let message = if step <= 0 {
            format!("the step of lhist() is {step}, but must be more than 0")
        } else if min < 0 {
            format!("the min of lhist() is {min}, but must not be negative")
        } else if min >= max {
            format!("the min of lhist(), {min}, must be less than its max, {max}")
        } else if (max - min) / step > BUCKETS_MAX {
            format!("lhist() would have {} buckets: at most {BUCKETS_MAX}", (max - min) / step)
        } else if (max - min) < step {
            "the step of lhist() is larger than its range".to_owned()
        } else {
            return Ok(Aggregate::Lhist { min, max, step });
        };
        self.fail(Diagnostic::new(span, message))
    }

    /// `tseries(n, interval, number, "avg")`
    fn tseries(&mut self, more: &[ast::Expr], signed: bool, span: Span) -> Checked<Aggregate> {
        let interval = self.constant(&more[0])?;
        let buckets = self.constant(&more[1])?;
        let by = match more.get(2) {
            None => Some(TseriesBy::Last),
            Some(name) => match self.constant_text(name).as_deref() {
                Some("avg") => Some(TseriesBy::Avg),
                Some("max") => Some(TseriesBy::Max),
                Some("min") => Some(TseriesBy::Min),
                Some("sum") => Some(TseriesBy::Sum),
                _ => None,
            },
        };
        let Some(by) = by else {
            let error = Diagnostic::new(span, "unknown function of a time series");
            return self.fail(error.help("known are \"avg\", \"max\", \"min\" and \"sum\""));
        };
        match (u64::try_from(interval), u32::try_from(buckets)) {
            (Ok(interval @ 1..), Ok(buckets @ 1..)) if i64::from(buckets) <= SERIES_MAX => {
                Ok(Aggregate::Tseries { interval, buckets, by, signed })
            }
            _ => {
                let message = format!(
                    "tseries() needs an interval of 1ns or more, and 1 to {SERIES_MAX} buckets"
                );
                self.fail(Diagnostic::new(span, message))
            }
        }
    }

    /// A number that is known already.
    pub(super) fn constant(&mut self, expr: &ast::Expr) -> Checked<i64> {
        let operand: Operand = self.number(expr)?;
        match operand.constant() {
            Some(value) => Ok(value),
            None => self.fail(Diagnostic::new(expr.span, "this must be a fixed number")),
        }
    }

    /// A map has one function; numbers with and without signs may meet in it.
    fn join_aggregate(&mut self, id: MapId, aggregate: Aggregate, span: Span) -> Checked<()> {
        let known = self.maps.value_type(id).clone();
        let ty = match (&known, aggregate) {
            (Type::Aggregate(known), new) if unsigned(*known) == unsigned(new) => {
                Type::Aggregate(*known)
            }
            (_, new) => Type::Aggregate(new),
        };
        self.assign_map_type(id, &ty, span).map(|_| ())
    }
}

/// The function without the sign of its numbers.
fn unsigned(aggregate: Aggregate) -> Aggregate {
    match aggregate {
        Aggregate::Sum { .. } => Aggregate::Sum { signed: false },
        Aggregate::Avg { .. } => Aggregate::Avg { signed: false },
        Aggregate::Min { .. } => Aggregate::Min { signed: false },
        Aggregate::Max { .. } => Aggregate::Max { signed: false },
        Aggregate::Stats { .. } => Aggregate::Stats { signed: false },
        Aggregate::Tseries { interval, buckets, by, .. } => {
            Aggregate::Tseries { interval, buckets, by, signed: false }
        }
        other => other,
    }
}
