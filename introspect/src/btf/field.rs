//! Offsets of members in structs.

use super::id::TypeId;
use super::kind::{Composite, Kind, Member};
use super::table::{Btf, DEPTH_MAX};

/// Most members that are looked at for one name, those of unnamed structs included.
const STEPS_MAX: usize = 1 << 16;

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    /// Bits from the start of the outermost struct.
    pub bit_offset: u64,
    /// Bits, of a bit-field.
    pub bits: Option<u32>,
    /// Its type.
    pub id: TypeId,
}

impl FieldPlace {
    /// Bytes from the start of the outermost struct.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.bit_offset / 8
    }
}

/// Why a path leads to no member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// There is no such type.
    #[error("the kernel has no type {0:?}")]
    NoType(String),
    /// A part of the path names a member of a type that is not a struct.
    #[error("{what} is no struct or union: it has no member {member:?}")]
    NotComposite {
        /// The type, in C's words.
        what: String,
        /// The member that was looked up.
        member: String,
    },
    /// It has no such member.
    #[error("{what} has no member {member:?}")]
    NoMember {
        /// The type that was searched.
        what: String,
        /// The member that was looked up.
        member: String,
    },
}

impl Btf {
    /// Finds a member of a struct, also inside of other members: `mm`, `list.next`. Members of
    /// unnamed structs and unions count as their owner's.
    ///
    /// # Errors
    /// [`FieldError`].
    pub fn field(&self, within: TypeId, path: &str) -> Result<FieldPlace, FieldError> {
        let mut place = FieldPlace { bit_offset: 0, bits: None, id: within };
        for name in path.split('.') {
            let Kind::Composite(it) = self.kind(self.resolve(place.id)) else {
                let what = self.declaration(place.id, "");
                return Err(FieldError::NotComposite { what, member: name.to_owned() });
            };
            let mut steps = STEPS_MAX;
            let Some(found) = self.member(it, name, DEPTH_MAX, &mut steps) else {
                let what = self.declaration(place.id, "");
                return Err(FieldError::NoMember { what, member: name.to_owned() });
            };
            place.bit_offset += found.bit_offset;
            (place.bits, place.id) = (found.bits, found.id);
        }
        Ok(place)
    }

    /// [`Self::field`] of a type by its name.
    ///
    /// # Errors
    /// [`FieldError`].
    pub fn field_of(&self, name: &str, path: &str) -> Result<FieldPlace, FieldError> {
        let id = self.find(name).ok_or_else(|| FieldError::NoType(name.to_owned()))?;
        self.field(id, path)
    }

    fn member(
        &self,
        within: Composite<'_>,
        name: &str,
        depth: usize,
        steps: &mut usize,
    ) -> Option<FieldPlace> {
        let depth = depth.checked_sub(1)?;
        for Member { name: own, id, bit_offset, bits } in within.members() {
            *steps = steps.checked_sub(1)?;
            let bit_offset = bit_offset.into();
            if own == name {
                return Some(FieldPlace { bit_offset, bits, id });
            }
            if own.is_empty()
                && let Kind::Composite(inner) = self.kind(self.resolve(id))
                && let Some(found) = self.member(inner, name, depth, steps)
            {
                return Some(FieldPlace { bit_offset: bit_offset + found.bit_offset, ..found });
            }
        }
        None
    }
}
