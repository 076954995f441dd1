//! Maps: their keys and values have one type each in all of a script.

use std::sync::Arc;

use super::checker::{Checked, Checker};
use super::common::{common, stored};
use super::map_types::Map;
use super::operand::Operand;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Expr, MapId, MapInfo};
use crate::syntax::ast::{self, ExprKind};
use crate::types::{Aggregate, Type};

impl Checker<'_> {
    /// The maps of the program.
    pub(super) fn map_infos(&self) -> Vec<MapInfo> {
        let info = |map: &Map| MapInfo {
            name: Arc::clone(&map.name),
            keys: map.keys.iter().flatten().map(|ty| self.shape(ty)).collect(),
            value: self.shape(&map.value),
            entries: self.entries_of(&map.name),
        };
        self.maps.all.iter().map(info).collect()
    }

    /// The entries that `let @name = hash(entries)` names.
    fn entries_of(&self, name: &str) -> Option<usize> {
        let mut sizes = self.script.tree.map_sizes.iter();
        let (_, entries) = sizes.find(|(map, _)| *map.text == *name)?;
        usize::try_from(*entries).ok()
    }

    /// The map that a bare `@name` is.
    pub(super) fn map_id(&mut self, expr: &ast::Expr) -> Option<MapId> {
        match &expr.kind {
            ExprKind::Map(name, None) => Some(self.maps.id(name)),
            _ => None,
        }
    }

    pub(super) fn named_map(&mut self, name: &Arc<str>) -> MapId {
        self.maps.id(name)
    }

    /// A map and the values of its keys.
    pub(super) fn map_keys(
        &mut self,
        name: &Arc<str>,
        keys: Option<&[ast::Expr]>,
        span: Span,
    ) -> Checked<(MapId, Vec<Expr>)> {
        let id = self.maps.id(name);
        let mut exprs = Vec::new();
        let mut types = Vec::new();
        for key in keys.unwrap_or_default() {
            let (value, ty) = self.any_value(key)?;
            if matches!(ty, Type::Aggregate(_) | Type::Void) {
                return self.fail(Diagnostic::new(key.span, format!("`{ty}` cannot be a key")));
            }
            exprs.push(value);
            types.push(ty);
        }
        let (exprs, types) = flatten(exprs, types);
        self.set_key_types(id, types, span)?;
        Ok((id, exprs))
    }

    /// A key that is given as one expression: `has_key(@map, key)`.
    pub(super) fn single_key(&mut self, id: MapId, key: &ast::Expr) -> Checked<Vec<Expr>> {
        let (value, ty) = self.any_value(key)?;
        let (exprs, types) = flatten(vec![value], vec![ty]);
        self.set_key_types(id, types, key.span)?;
        Ok(exprs)
    }

    fn set_key_types(&mut self, id: MapId, types: Vec<Type>, span: Span) -> Checked<()> {
        if types.contains(&Type::Unknown) {
            return Ok(());
        }
        let types: Vec<Type> = types.into_iter().map(stored).collect();
        let Some(map) = self.maps.all.get_mut(id) else { return Ok(()) };
        let Some(known) = &map.keys else {
            map.keys = Some(types);
            return Ok(());
        };
        let same_len = known.len() == types.len();
        let both: Option<Vec<Type>> = known
            .iter()
            .zip(&types)
            .map(|(one, two)| common(one, two).map(|_| one.clone()))
            .collect();
        match both {
            Some(_) if same_len => Ok(()),
            _ => {
                let (name, list) = (Arc::clone(&map.name), list(known));
                let message = format!("map `{name}` is used with keys {}", self::list(&types));
                let error = Diagnostic::new(span, message);
                self.fail(error.help(format!("elsewhere its keys are {list}")))
            }
        }
    }

    /// Notes that a map holds values of a type. Returns the type that it has.
    pub(super) fn assign_map_type(&mut self, id: MapId, ty: &Type, span: Span) -> Checked<Type> {
        let Some(map) = self.maps.all.get_mut(id) else { return Ok(ty.clone()) };
        let ty = stored(ty.clone());
        if ty == Type::Unknown {
            return Ok(map.value.clone());
        }
        let joined = match (&map.value, &ty) {
            (Type::Unknown, _) => Some(ty.clone()),
            // The first use decides about the sign.
            (known, ty) if known.is_integer() && ty.is_integer() => Some(known.clone()),
            (known, ty) => common(known, ty),
        };
        match joined {
            Some(joined) => {
                map.value = joined.clone();
                Ok(joined)
            }
            None => {
                let (name, known) = (Arc::clone(&map.name), map.value.clone());
                let message = format!("map `{name}` holds `{known}`, this is `{ty}`");
                self.fail(Diagnostic::new(span, message).help("a map holds values of one type"))
            }
        }
    }

    /// The value of a map's entry.
    pub(super) fn map_value(
        &mut self,
        name: &Arc<str>,
        keys: Option<&[ast::Expr]>,
        span: Span,
    ) -> Checked<Operand> {
        let (id, keys) = self.map_keys(name, keys, span)?;
        let ty = match self.maps.value_type(id).clone() {
            Type::Unknown if self.is_last_pass => {
                let error =
                    Diagnostic::new(span, format!("nothing is ever assigned to map `{name}`"));
                let names: Vec<Arc<str>> =
                    self.maps.all.iter().map(|map| Arc::clone(&map.name)).collect();
                let others = names.iter().filter(|other| *other != name);
                return self.fail(error.near(name, others.map(|other| &**other)));
            }
            Type::Unknown => return Ok(Operand::unknown(span)),
            Type::Aggregate(aggregate) => match aggregate {
                Aggregate::Count => Type::INT64,
                Aggregate::Sum { signed }
                | Aggregate::Avg { signed }
                | Aggregate::Min { signed }
                | Aggregate::Max { signed } => {
                    if signed {
                        Type::INT64
                    } else {
                        Type::UINT64
                    }
                }
                _ => {
                    let message = format!("the value of `{aggregate}()` is no number");
                    let error = Diagnostic::new(span, message);
                    return self.fail(error.help(format!("print(@) shows it: print({name})")));
                }
            },
            ty => ty,
        };
        Ok(Operand::value(ty, Expr::Map(id, keys), span))
    }
}

/// A tuple as the only key is the same as several keys.
fn flatten(exprs: Vec<Expr>, types: Vec<Type>) -> (Vec<Expr>, Vec<Type>) {
    match (exprs.as_slice(), types.as_slice()) {
        ([Expr::Tuple(of)], [Type::Tuple(types)]) => (of.clone(), types.to_vec()),
        ([tuple], [Type::Tuple(types)]) => {
            let field = |index| Expr::Field(Box::new(tuple.clone()), index);
            ((0..types.len()).map(field).collect(), types.to_vec())
        }
        _ => (exprs, types),
    }
}

fn list(types: &[Type]) -> String {
    let names: Vec<String> = types.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { format!("[{}]", names.join(", ")) }
}
