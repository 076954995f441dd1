//! The kernel's types from its BTF.

use std::sync::Arc;

use exoprobe_introspect::btf::{Btf, Kind, TypeId};

use crate::types::{Member, Parameter, Prototype, Record, RecordRef, Type};

/// Deepest nesting of pointers and arrays.
const NESTING_MAX: usize = 16;

/// Answers the questions of [`crate::Kernel`] about types.
#[derive(Clone, Copy, Debug)]
pub struct BtfTypes<'a> {
    btf: &'a Btf,
}

impl<'a> BtfTypes<'a> {
    /// Answers from `btf`.
    #[must_use]
    pub fn new(btf: &'a Btf) -> Self {
        Self { btf }
    }

    /// See [`crate::Kernel::record`].
    #[must_use]
    pub fn record(&self, record: &RecordRef) -> Option<Record> {
        let id = match record {
            RecordRef::Named(name) => {
                let tagged = |tag: &str| self.btf.find(&format!("{tag} {name}"));
                tagged("struct").or_else(|| tagged("union"))?
            }
            RecordRef::Numbered(id) => TypeId(*id),
        };
        let Kind::Composite(composite) = self.btf.kind(id) else { return None };
        let members = composite.members().map(|member| Member {
            name: member.name.into(),
            ty: self.of(member.id, 0),
            bit_offset: member.bit_offset,
            bits: member.bits.and_then(|bits| u8::try_from(bits).ok()),
        });
        Some(Record {
            name: self.btf.name(id).into(),
            is_union: composite.is_union,
            size: composite.size,
            members: members.collect(),
        })
    }

    /// See [`crate::Kernel::named_type`].
    #[must_use]
    pub fn named_type(&self, name: &str) -> Option<Type> {
        self.btf.find(name).map(|id| self.of(id, 0))
    }

    /// See [`crate::Kernel::prototype`].
    #[must_use]
    pub fn prototype(&self, function: &str) -> Option<Prototype> {
        let id = self.btf.function(function)?;
        let Kind::Prototype(prototype) = self.btf.kind(id) else { return None };
        let parameter =
            |(name, id): (&str, TypeId)| Parameter { name: name.into(), ty: self.of(id, 0) };
        Some(Prototype {
            parameters: prototype.params().map(parameter).collect(),
            result: self.of(prototype.result, 0),
        })
    }

    /// See [`crate::Kernel::enumerators`].
    #[must_use]
    pub fn enumerators(&self, name: &str) -> Vec<(Arc<str>, i64)> {
        let Some(id) = self.btf.find(&format!("enum {name}")) else { return Vec::new() };
        self.values(id).collect()
    }

    /// The value of a constant among all enums. Looks at every type: keep the answer.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<i64> {
        let count = u32::try_from(self.btf.len()).unwrap_or(u32::MAX);
        (1..=count).map(TypeId).find_map(|id| {
            self.values(id).find(|(constant, _)| **constant == *name).map(|(_, value)| value)
        })
    }

    fn values(&self, id: TypeId) -> impl Iterator<Item = (Arc<str>, i64)> {
        let values = self.btf.enum_values(id);
        values.map(|value| {
            let number = i64::try_from(value.value).ok();
            let number = number.or_else(|| u64::try_from(value.value).ok().map(u64::cast_signed));
            (Arc::from(value.name), number.unwrap_or(0))
        })
    }

    /// The type of this number.
    fn of(&self, id: TypeId, depth: usize) -> Type {
        if depth > NESTING_MAX {
            return Type::Void;
        }
        let id = self.btf.resolve(id);
        match self.btf.kind(id) {
            Kind::Int { size, is_signed, .. } => match u8::try_from(size) {
                Ok(bytes @ (1 | 2 | 4 | 8)) => Type::Integer { bytes, signed: is_signed },
                _ => {
                    let byte = Type::Integer { bytes: 1, signed: false };
                    Type::Array(Arc::new(byte), size)
                }
            },
            Kind::Enum { size, is_signed } => {
                let bytes = u8::try_from(size).unwrap_or(4);
                match self.btf.name(id) {
                    "" => Type::Integer { bytes, signed: is_signed },
                    name => Type::Enum { name: name.into(), bytes, signed: is_signed },
                }
            }
            Kind::Pointer(to) => Type::pointer(self.of(to, depth + 1)),
            Kind::Array { element, len } => {
                let base = self.btf.resolve(element);
                match (self.btf.name(base), self.of(element, depth + 1)) {
                    ("char", _) => Type::Text(len),
                    (_, element) => Type::Array(Arc::new(element), len),
                }
            }
            Kind::Composite(_) | Kind::Forward { .. } => Type::Record(match self.btf.name(id) {
                "" => RecordRef::Numbered(id.0),
                name => RecordRef::Named(name.into()),
            }),
            _ => Type::Void,
        }
    }
}
