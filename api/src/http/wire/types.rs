//! The guest kernel's types.

use exoprobe_introspect::btf::{Layout, MemberLayout};
use serde::Serialize;
use utoipa::ToSchema;

/// A type's name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TypeName {
    /// Its name.
    #[schema(example = "task_struct")]
    pub name: String,
    /// `struct`, `union`, `enum` or `typedef`.
    #[schema(value_type = String, example = "struct")]
    pub kind: &'static str,
    /// Bytes; null where it has no values.
    pub size: Option<u64>,
}

/// A type, or a function's prototype.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Type {
    /// `struct`, `union`, `enum`, `typedef`, `int` or `function`.
    #[schema(value_type = String, example = "struct")]
    pub kind: &'static str,
    /// As C declares it.
    #[schema(example = "struct task_struct")]
    pub declaration: String,
    /// Bytes; null of a function.
    pub size: Option<u64>,
    /// Members of a struct or union, in order.
    pub members: Vec<Member>,
    /// An enum's names and values.
    pub values: Vec<EnumValue>,
}

/// A member of a struct or union.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Member {
    /// Its name; null where it has none.
    #[schema(example = "pid")]
    pub name: Option<String>,
    /// As C declares it.
    #[schema(example = "pid_t pid")]
    pub declaration: String,
    /// Bytes from the start of the whole type.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Bits, of a bit-field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u32>,
    /// Of a bit-field: how many bits come before it in the number of `size` bytes at `offset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_offset: Option<u32>,
    /// Its own members, where it is a struct or union whose type has no name; of an array's first
    /// element.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion, required = false)]
    pub members: Vec<Member>,
}

/// One of an enum's names.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EnumValue {
    /// The name.
    pub name: String,
    /// Its value.
    #[schema(value_type = i64)]
    pub value: i128,
}

impl From<Layout> for Type {
    fn from(layout: Layout) -> Self {
        let Layout { kind, declaration, size, members, values } = layout;
        let values = values.into_iter().map(|(name, value)| EnumValue { name, value }).collect();
        let members = members.into_iter().map(Member::from).collect();
        Self { kind, declaration, size, members, values }
    }
}

impl From<MemberLayout> for Member {
    fn from(member: MemberLayout) -> Self {
        let MemberLayout { name, declaration, offset, size, bits, members } = member;
        let (bits, bit_offset) = bits.unzip();
        let name = (!name.is_empty()).then_some(name);
        let members = members.into_iter().map(Self::from).collect();
        Self { name, declaration, offset, size, bits, bit_offset, members }
    }
}
