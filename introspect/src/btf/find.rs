//! Types by name, and their sizes.

use std::collections::BTreeSet;

use super::id::TypeId;
use super::kind::Kind;
use super::layout::Layout;
use super::names::is_name;
use super::table::{Btf, DEPTH_MAX};
use crate::symbols::glob;

impl Btf {
    /// Returns the number of types, without `void`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns true if there is no type.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All types of exactly this name, by number: a struct and a typedef may share one.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = TypeId> + use<'a> {
        let first = self.names.first(name, |id| self.name(id));
        std::iter::successors(first, |id| self.names.next(*id))
    }

    /// Names of structs, unions, enums and typedefs, in order, each once.
    pub fn type_names(&self) -> impl Iterator<Item = &str> {
        let of_types = self.ids().filter(|id| {
            matches!(self.kind(*id), Kind::Composite(_) | Kind::Enum { .. } | Kind::Typedef(_))
        });
        let names: BTreeSet<&str> =
            of_types.map(|id| self.name(id)).filter(|name| is_name(name)).collect();
        names.into_iter()
    }

    /// Names of functions.
    pub(super) fn function_names(&self) -> impl Iterator<Item = &str> {
        let functions = self.ids().filter(|id| matches!(self.kind(*id), Kind::Function(_)));
        functions.map(|id| self.name(id)).filter(|name| is_name(name))
    }

    /// The types among [`Self::type_names`] whose names match: `*` stands for any run of
    /// characters, `?` for any one.
    pub fn search<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a str, TypeId)> {
        let matching = move |name: &&str| glob::matches(pattern.as_bytes(), name.as_bytes());
        self.type_names().filter(matching).filter_map(|name| Some((name, self.find(name)?)))
    }

    /// Describes the type that a user means by `name`, or else the function of this name.
    #[must_use]
    pub fn about(&self, name: &str) -> Option<Layout> {
        let found = self.find(name).or_else(|| self.function(name))?;
        Some(self.layout(found, name))
    }

    /// The type that a user means by `name`: `struct file`, `union x`, `enum y`, or a bare name,
    /// which is a struct's, a union's, an enum's, or a typedef's.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TypeId> {
        let (tag, name) = name.trim().split_once(char::is_whitespace).unwrap_or(("", name.trim()));
        let fits = |id: &TypeId| match self.kind(*id) {
            Kind::Composite(it) => tag.is_empty() || tag == it.tag(),
            Kind::Enum { .. } => matches!(tag, "" | "enum"),
            Kind::Typedef(_) | Kind::Int { .. } => tag.is_empty(),
            _ => false,
        };
        // BTF may have a name twice; the type with the most information is meant.
        let rank = |id: &TypeId| match self.kind(*id) {
            Kind::Composite(it) => (2, it.size),
            Kind::Enum { .. } => (1, 0),
            _ => (0, 0),
        };
        let found = self.named(name.trim_start()).filter(fits);
        found.max_by_key(|id| (rank(id), std::cmp::Reverse(*id)))
    }

    /// Resolves typedefs and qualifiers; `void` where they form a circle.
    #[must_use]
    pub fn resolve(&self, mut id: TypeId) -> TypeId {
        for _ in 0..DEPTH_MAX {
            match self.kind(id) {
                Kind::Typedef(to) | Kind::Qualified(_, to) | Kind::Tag(to) => id = to,
                _ => return id,
            }
        }
        TypeId(0)
    }

    /// Returns the size of a value of the type in bytes; `None` where it has no values.
    #[must_use]
    pub fn size_of(&self, mut id: TypeId) -> Option<u64> {
        let mut count = 1u64;
        for _ in 0..DEPTH_MAX {
            let size = match self.kind(id) {
                Kind::Typedef(to) | Kind::Qualified(_, to) | Kind::Tag(to) | Kind::Variable(to) => {
                    id = to;
                    continue;
                }
                Kind::Array { element, len } => {
                    count = count.checked_mul(len.into())?;
                    id = element;
                    continue;
                }
                Kind::Int { size, .. } | Kind::Float { size } | Kind::Enum { size, .. } => size,
                Kind::Composite(it) => it.size,
                Kind::Pointer(_) => 8,
                _ => return None,
            };
            return count.checked_mul(size.into());
        }
        None
    }
}
