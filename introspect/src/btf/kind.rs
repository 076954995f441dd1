//! Kinds of types (btf.rst, "Type Encoding").

use super::id::TypeId;
use super::table::Btf;

/// Words that every type has: name, information, size or type.
pub(super) const RECORD_WORDS: usize = 3;

/// A kind's number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Int,
    Pointer,
    Array,
    Struct,
    Union,
    Enum,
    Forward,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Function,
    Prototype,
    Variable,
    Section,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

impl Code {
    const ALL: [Self; 19] = [
        Self::Int,
        Self::Pointer,
        Self::Array,
        Self::Struct,
        Self::Union,
        Self::Enum,
        Self::Forward,
        Self::Typedef,
        Self::Volatile,
        Self::Const,
        Self::Restrict,
        Self::Function,
        Self::Prototype,
        Self::Variable,
        Self::Section,
        Self::Float,
        Self::DeclTag,
        Self::TypeTag,
        Self::Enum64,
    ];

    /// Of a type's second word.
    pub(super) fn of(info: u32) -> Option<Self> {
        Self::ALL.get((info >> 24 & 0x1f).checked_sub(1)? as usize).copied()
    }

    /// Words after the first three.
    pub(super) fn more_words(self, info: u32) -> usize {
        let each = match self {
            Self::Int | Self::Variable | Self::DeclTag => return 1,
            Self::Array => return 3,
            Self::Struct | Self::Union | Self::Section | Self::Enum64 => 3,
            Self::Enum | Self::Prototype => 2,
            _ => return 0,
        };
        each * (info & 0xffff) as usize
    }
}

/// The kind of a type.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// `void`.
    Void,
    /// A number, `char`s and `bool`s among them.
    Int {
        /// Bytes.
        size: u32,
        /// It has a sign.
        is_signed: bool,
        /// It is a `bool`.
        is_bool: bool,
    },
    /// A floating-point number.
    Float {
        /// Bytes.
        size: u32,
    },
    /// The address of another.
    Pointer(TypeId),
    /// Several of another.
    Array {
        /// Type of an element.
        element: TypeId,
        /// Number of elements.
        len: u32,
    },
    /// A struct or a union.
    Composite(Composite<'a>),
    /// Named numbers.
    Enum {
        /// Bytes.
        size: u32,
        /// They have signs.
        is_signed: bool,
    },
    /// A struct or union of which only the name is known.
    Forward {
        /// It is a union.
        is_union: bool,
    },
    /// Another name.
    Typedef(TypeId),
    /// With a qualifier.
    Qualified(Qualifier, TypeId),
    /// A function; its prototype.
    Function(TypeId),
    /// A function's prototype: parameters and result.
    Prototype(Prototype<'a>),
    /// A variable.
    Variable(TypeId),
    /// The variables of a section.
    Section,
    /// An attribute of the compiler's, of a type (`__user`) or a declaration.
    Tag(TypeId),
}

/// A type's qualifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qualifier {
    /// `const`
    Const,
    /// `volatile`
    Volatile,
    /// `restrict`
    Restrict,
}

/// A struct or a union.
#[derive(Clone, Copy, Debug)]
pub struct Composite<'a> {
    /// It is a union.
    pub is_union: bool,
    /// Bytes.
    pub size: u32,
    /// Offsets of members have the width of bit-fields in them.
    has_widths: bool,
    members: &'a [u32],
    btf: &'a Btf,
}

/// A member of a struct or a union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Empty where it is an unnamed struct or union.
    pub name: &'a str,
    /// Its type.
    pub id: TypeId,
    /// Bits from the start.
    pub bit_offset: u32,
    /// Bits, of a bit-field.
    pub bits: Option<u32>,
}

/// A function's type.
#[derive(Clone, Copy, Debug)]
pub struct Prototype<'a> {
    /// Type of its result.
    pub result: TypeId,
    params: &'a [u32],
    btf: &'a Btf,
}

/// One of an enum's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnumValue<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value, its sign extended.
    pub value: i128,
}

impl<'a> Composite<'a> {
    /// `struct` or `union`.
    #[must_use]
    pub fn tag(&self) -> &'static str {
        if self.is_union { "union" } else { "struct" }
    }

    /// Its members, in order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member<'a>> + use<'a> {
        let Self { has_widths, btf, .. } = *self;
        self.members.as_chunks().0.iter().map(move |[name, id, offset]| {
            let (bit_offset, bits) = match has_widths {
                true => (offset & 0xff_ffff, offset >> 24),
                false => (*offset, 0),
            };
            let bits = (bits != 0).then_some(bits);
            Member { name: btf.string(*name), id: TypeId(*id), bit_offset, bits }
        })
    }
}

impl<'a> Prototype<'a> {
    /// Names and types of its parameters. A last one of type `void` without a name is `...`.
    pub fn params(&self) -> impl ExactSizeIterator<Item = (&'a str, TypeId)> + use<'a> {
        let btf = self.btf;
        let params = self.params.as_chunks().0.iter();
        params.map(move |[name, id]| (btf.string(*name), TypeId(*id)))
    }
}

impl Btf {
    fn parts(&self, id: TypeId) -> Option<(Code, u32, u32, &[u32])> {
        let [_, info, third, more @ ..] = self.words_of(id)? else { return None };
        Some((Code::of(*info)?, *info, *third, more))
    }

    /// The kind of a type.
    #[must_use]
    pub fn kind(&self, id: TypeId) -> Kind<'_> {
        let Some((code, info, third, more)) = self.parts(id) else { return Kind::Void };
        let (to, flag) = (TypeId(third), info >> 31 != 0);
        match code {
            Code::Int => {
                let encoding = more.first().map_or(0, |word| word >> 24 & 0xf);
                Kind::Int { size: third, is_signed: encoding & 1 != 0, is_bool: encoding & 4 != 0 }
            }
            Code::Float => Kind::Float { size: third },
            Code::Pointer => Kind::Pointer(to),
            Code::Array => match more {
                [element, _, len, ..] => Kind::Array { element: TypeId(*element), len: *len },
                _ => Kind::Void,
            },
            Code::Struct | Code::Union => {
                let is_union = code == Code::Union;
                let (members, btf) = (more, self);
                Kind::Composite(Composite { is_union, size: third, has_widths: flag, members, btf })
            }
            Code::Enum | Code::Enum64 => Kind::Enum { size: third, is_signed: flag },
            Code::Forward => Kind::Forward { is_union: flag },
            Code::Typedef => Kind::Typedef(to),
            Code::Const => Kind::Qualified(Qualifier::Const, to),
            Code::Volatile => Kind::Qualified(Qualifier::Volatile, to),
            Code::Restrict => Kind::Qualified(Qualifier::Restrict, to),
            Code::Function => Kind::Function(to),
            Code::Prototype => Kind::Prototype(Prototype { result: to, params: more, btf: self }),
            Code::Variable => Kind::Variable(to),
            Code::Section => Kind::Section,
            Code::DeclTag | Code::TypeTag => Kind::Tag(to),
        }
    }

    /// The names and values of an enum; none of other types.
    pub fn enum_values(&self, id: TypeId) -> impl Iterator<Item = EnumValue<'_>> {
        let (words, more, signed) = match self.parts(id) {
            Some((Code::Enum, info, _, more)) => (2, more, info >> 31 != 0),
            Some((Code::Enum64, info, _, more)) => (3, more, info >> 31 != 0),
            _ => (1, &[][..], false),
        };
        more.chunks_exact(words).map(move |value| {
            let number = match (value, signed) {
                ([_, low], true) => low.cast_signed().into(),
                ([_, low], false) => (*low).into(),
                ([_, low, high, ..], _) => {
                    let number = u64::from(*low) | u64::from(*high) << 32;
                    if signed { number.cast_signed().into() } else { number.into() }
                }
                _ => 0,
            };
            EnumValue { name: self.string(value[0]), value: number }
        })
    }

    /// Calls on each name and each type that a type refers to.
    pub(super) fn each_reference(
        &self,
        id: TypeId,
        name: &mut dyn FnMut(u32),
        to: &mut dyn FnMut(TypeId),
    ) {
        let Some(words) = self.words_of(id) else { return };
        let Some((code, _, third, more)) = self.parts(id) else { return };
        name(words[0]);
        match code {
            Code::Int | Code::Float | Code::Forward => {}
            Code::Array => more.iter().take(2).for_each(|id| to(TypeId(*id))),
            Code::Struct | Code::Union => more.chunks_exact(3).for_each(|member| {
                name(member[0]);
                to(TypeId(member[1]));
            }),
            Code::Enum => more.chunks_exact(2).for_each(|value| name(value[0])),
            Code::Enum64 => more.chunks_exact(3).for_each(|value| name(value[0])),
            Code::Section => more.chunks_exact(3).for_each(|held| to(TypeId(held[0]))),
            Code::Prototype => {
                to(TypeId(third));
                more.chunks_exact(2).for_each(|param| {
                    name(param[0]);
                    to(TypeId(param[1]));
                });
            }
            _ => to(TypeId(third)),
        }
    }
}
