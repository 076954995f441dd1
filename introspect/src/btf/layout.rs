//! A type as a whole, for people: members with their places, and those of structs and unions
//! without names within them.

use super::id::TypeId;
use super::kind::{Composite, Kind};
use super::table::Btf;

/// Most members that one answer has.
const MEMBERS_MAX: usize = 20_000;
/// Most unnamed structs and unions in one another.
const NESTING_MAX: usize = 16;

/// The description of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `struct`, `union`, `enum`, `typedef`, `int` or `function`.
    pub kind: &'static str,
    /// As C declares it.
    pub declaration: String,
    /// Bytes; `None` of a function.
    pub size: Option<u64>,
    /// Members of a struct or union, also of one that a typedef names.
    pub members: Vec<MemberLayout>,
    /// Of an enum: names and values.
    pub values: Vec<(String, i128)>,
}

/// A member, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLayout {
    /// Its name; empty where it has none.
    pub name: String,
    /// As C declares it, with its name.
    pub declaration: String,
    /// Bytes from the start of the whole.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Of a bit-field: how many bits, and how many come before them in the number of `size` bytes
    /// at `offset`.
    pub bits: Option<(u32, u32)>,
    /// Its own members, where its type has no name; of an array's first element.
    pub members: Vec<MemberLayout>,
}

impl Btf {
    /// Describes a type or function that [`Self::find`] or [`Self::function`] returned; `name` is
    /// the function's.
    #[must_use]
    pub fn layout(&self, id: TypeId, name: &str) -> Layout {
        let (mut budget, resolved) = (MEMBERS_MAX, self.resolve(id));
        let members = match self.kind(resolved) {
            Kind::Composite(it) => self.members(it, 0, NESTING_MAX, &mut budget),
            _ => Vec::new(),
        };
        let values = self.enum_values(resolved).take(MEMBERS_MAX);
        let kind = self.tag(id);
        let declaration = match self.kind(id) {
            Kind::Typedef(to) => format!("typedef {}", self.declaration(to, name)),
            Kind::Prototype(_) => self.declaration(id, name),
            _ => self.declaration(id, ""),
        };
        let values = values.map(|value| (value.name.to_owned(), value.value)).collect();
        Layout { kind, declaration, size: self.size_of(id), members, values }
    }

    /// Names the kind of a type in C's words.
    #[must_use]
    pub fn tag(&self, id: TypeId) -> &'static str {
        match self.kind(id) {
            Kind::Composite(it) => it.tag(),
            Kind::Enum { .. } => "enum",
            Kind::Prototype(_) => "function",
            Kind::Typedef(_) => "typedef",
            _ => "int",
        }
    }

    /// The struct or union of a member that has it written out: of no name, also as elements of an
    /// array.
    fn unnamed(&self, id: TypeId) -> Option<Composite<'_>> {
        match self.kind(id) {
            Kind::Composite(it) => self.name(id).is_empty().then_some(it),
            Kind::Array { element, .. } => match self.kind(element) {
                Kind::Composite(it) => self.name(element).is_empty().then_some(it),
                _ => None,
            },
            _ => None,
        }
    }

    fn members(
        &self,
        within: Composite<'_>,
        start: u64,
        nesting: usize,
        budget: &mut usize,
    ) -> Vec<MemberLayout> {
        let mut members = Vec::new();
        for member in within.members() {
            let Some(left) = budget.checked_sub(1) else { break };
            *budget = left;
            let bits = start + u64::from(member.bit_offset);
            let inner = match (self.unnamed(member.id), nesting.checked_sub(1)) {
                (Some(inner), Some(nesting)) => self.members(inner, bits, nesting, budget),
                _ => Vec::new(),
            };
            let size = self.size_of(member.id).unwrap_or_default();
            // A bit-field is shown with the number that contains it, as pahole does.
            let unit = if member.bits.is_some() { size.clamp(1, 8) } else { 1 };
            let offset = bits / (unit * 8) * unit;
            let before = u32::try_from(bits - offset * 8).expect("below 64");
            members.push(MemberLayout {
                name: member.name.to_owned(),
                declaration: self.declaration(member.id, member.name),
                offset,
                size,
                bits: member.bits.map(|count| (count, before)),
                members: inner,
            });
        }
        members
    }
}
