//! Types by their names, sizes, and layouts of the script's own structs.

use std::sync::Arc;

use super::checker::{Checked, Checker};
use crate::diagnostic::Diagnostic;
use crate::ir::Shape;
use crate::kernel::Kernel;
use crate::syntax::ast::{Composite, FieldType, TypeName};
use crate::types::{Member, Record, RecordRef, Type};

/// Deepest nesting of structs by value.
const NESTING_MAX: usize = 32;
/// Most members of a struct of which values are shown.
const MEMBERS_MAX: usize = 4096;
/// Most bytes of a value that a script reads as a whole.
pub(super) const VALUE_MAX: u32 = 1 << 16;

/// Numbers of the script's own structs begin here, so that they differ from the kernel's.
const OWN_START: u32 = 1 << 31;

/// A number of the language by its name.
fn own_number(name: &str) -> Option<Type> {
    let (signed, bits) = match name {
        "int" => return Some(Type::Integer { bytes: 4, signed: true }),
        "char" => return Some(Type::Integer { bytes: 1, signed: true }),
        "bool" => return Some(Type::Integer { bytes: 1, signed: false }),
        "size_t" | "uintptr_t" => return Some(Type::UINT64),
        "ssize_t" => return Some(Type::INT64),
        _ => match name.strip_prefix('u') {
            Some(rest) => (false, rest.strip_prefix("int").or(Some(rest))?),
            None => (true, name.strip_prefix("int").or_else(|| name.strip_prefix('s'))?),
        },
    };
    let bytes = match bits.strip_suffix("_t").unwrap_or(bits) {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        _ => return None,
    };
    Some(Type::Integer { bytes, signed })
}

impl Checker<'_> {
    /// The type that a name of the script means.
    pub(super) fn resolve(&mut self, name: &TypeName) -> Checked<Type> {
        let Some(base) = self.base_type(&name.name) else {
            let message = format!("unknown type `{}`", name.name);
            return self.fail(Diagnostic::new(name.span, message));
        };
        Ok(wrap(base, &name.name, name.pointers, &name.lengths))
    }

    fn base_type(&mut self, name: &str) -> Option<Type> {
        if let Some(number) = own_number(name) {
            return Some(number);
        }
        match name {
            "void" => return Some(Type::Void),
            "string" => return Some(Type::Text(self.options.text_max)),
            _ => {}
        }
        let bare = name.split_once(' ').map_or(name, |(_, bare)| bare);
        if self.own.records.contains_key(bare) {
            return Some(Type::Record(RecordRef::Named(bare.into())));
        }
        if self.own.enums.contains_key(bare) {
            return Some(Type::Enum { name: bare.into(), bytes: 4, signed: false });
        }
        match self.kernel.named_type(name) {
            // Behind a pointer a struct need not be known before a member is used.
            None if name.starts_with("struct ") || name.starts_with("union ") => {
                Some(Type::Record(RecordRef::Named(bare.into())))
            }
            found => found,
        }
    }

    /// The layout of a struct, the script's own or the kernel's.
    pub(super) fn record(&self, reference: &RecordRef) -> Option<Record> {
        let own = match reference {
            RecordRef::Named(name) => self.own.records.get(name),
            RecordRef::Numbered(number) => {
                let index = number.checked_sub(OWN_START).map(|index| index as usize);
                index.and_then(|index| self.own.numbered.get(index))
            }
        };
        own.cloned().or_else(|| self.kernel.record(reference))
    }

    /// Bytes of a value.
    pub(super) fn size_of(&self, ty: &Type) -> Option<u32> {
        Some(match ty {
            Type::Text(size) | Type::Bytes(size) => *size,
            Type::Array(of, len) => self.size_of(of)?.checked_mul(*len)?,
            Type::Record(reference) => self.record(reference)?.size,
            Type::Tuple(of) => {
                let sizes: Option<Vec<u32>> = of.iter().map(|ty| self.size_of(ty)).collect();
                sizes?.iter().try_fold(0u32, |sum, size| sum.checked_add(*size))?
            }
            ty => ty.scalar_bytes()?.into(),
        })
    }

    /// Lays out the script's own structs and unions.
    pub(super) fn define_records(&mut self) {
        let composites = self.script.tree.composites.clone();
        for composite in &composites {
            if let Some(record) = self.lay_out(composite, 0) {
                self.own.records.insert(Arc::clone(&composite.name.text), record);
            }
        }
    }

    fn lay_out(&mut self, composite: &Composite, depth: usize) -> Option<Record> {
        if depth > NESTING_MAX {
            let message = format!("structs are nested more than {NESTING_MAX} deep");
            self.errors.push(Diagnostic::new(composite.name.span, message));
            return None;
        }
        let mut layout = Layout { is_union: composite.is_union, ..Layout::default() };
        for field in &composite.fields {
            let ty = match &field.ty {
                FieldType::Named(name) => self.field_type(name, &composite.name.text)?,
                FieldType::Inner(inner, pointers, lengths) => {
                    let record = self.lay_out(inner, depth + 1)?;
                    let number = OWN_START + u32::try_from(self.own.numbered.len()).ok()?;
                    self.own.numbered.push(record);
                    let base = Type::Record(RecordRef::Numbered(number));
                    wrap(base, "", *pointers, lengths)
                }
            };
            let (Some(size), Some(align)) = (self.size_of(&ty), self.align_of(&ty, 0)) else {
                let message = format!("the size of `{}` is not known", field.name.text);
                self.errors.push(Diagnostic::new(field.name.span, message));
                return None;
            };
            layout.add(&field.name.text, ty, size, align, field.bits)?;
        }
        Some(layout.finish(&composite.name.text))
    }

    /// The type of a member. A struct may not contain itself, but a pointer to itself.
    fn field_type(&mut self, name: &TypeName, within: &str) -> Option<Type> {
        let bare = name.name.split_once(' ').map_or(&*name.name, |(_, bare)| bare);
        if name.pointers == 0 && bare == within && name.name.contains(' ') {
            let error = Diagnostic::new(name.span, format!("struct {within} contains itself"));
            self.errors.push(error.help("a member can be a pointer to it"));
            return None;
        }
        self.resolve(name).ok()
    }

    fn align_of(&self, ty: &Type, depth: usize) -> Option<u32> {
        if depth > NESTING_MAX {
            return None;
        }
        match ty {
            Type::Text(_) => Some(1),
            Type::Array(of, _) => self.align_of(of, depth + 1),
            Type::Record(reference) => {
                let record = self.record(reference)?;
                let aligns =
                    record.members.iter().map(|member| self.align_of(&member.ty, depth + 1));
                let aligns: Option<Vec<u32>> = aligns.collect();
                Some(aligns?.into_iter().max().unwrap_or(1))
            }
            ty => ty.scalar_bytes().map(u32::from),
        }
    }

    /// All that is needed to show values of a type.
    pub(super) fn shape(&self, ty: &Type) -> Shape {
        self.shape_within(ty, 0, &mut 0)
    }

    fn shape_within(&self, ty: &Type, depth: usize, members: &mut usize) -> Shape {
        let mut shape =
            Shape { ty: ty.clone(), inner: Arc::from([]), record: None, names: Arc::from([]) };
        if depth > NESTING_MAX || *members > MEMBERS_MAX {
            return shape;
        }
        let mut inner = |of: &[&Type]| -> Arc<[Shape]> {
            *members += of.len();
            of.iter().map(|ty| self.shape_within(ty, depth + 1, members)).collect()
        };
        match ty {
            Type::Array(of, _) => shape.inner = inner(&[of]),
            Type::Tuple(of) => shape.inner = inner(&of.iter().collect::<Vec<_>>()),
            Type::Record(reference) => {
                if let Some(record) = self.record(reference) {
                    let types: Vec<&Type> =
                        record.members.iter().map(|member| &member.ty).collect();
                    shape.inner = inner(&types);
                    shape.record = Some(Arc::new(record));
                }
            }
            Type::Enum { name, .. } => {
                let own = self.own.enums.get(name).cloned();
                shape.names = own.unwrap_or_else(|| self.kernel.enumerators(name)).into();
            }
            _ => {}
        }
        shape
    }

    /// The member of a struct by its name, also in unnamed structs; its offset is that in the
    /// outermost.
    pub(super) fn find_member(&self, record: &Record, name: &str, depth: usize) -> Option<Member> {
        if depth > NESTING_MAX {
            return None;
        }
        if let Some(found) = record.members.iter().find(|member| *member.name == *name) {
            return Some(found.clone());
        }
        record.members.iter().filter(|member| member.name.is_empty()).find_map(|outer| {
            let Type::Record(reference) = &outer.ty else { return None };
            let inner = self.record(reference)?;
            let found = self.find_member(&inner, name, depth + 1)?;
            let bit_offset = outer.bit_offset.checked_add(found.bit_offset)?;
            Some(Member { bit_offset, ..found })
        })
    }
}

/// Adds pointers and lengths of arrays. An array of `char` is text.
fn wrap(base: Type, name: &str, pointers: usize, lengths: &[Option<u32>]) -> Type {
    let mut ty = base;
    for _ in 0..pointers.min(NESTING_MAX) {
        ty = Type::pointer(ty);
    }
    for (index, length) in lengths.iter().rev().enumerate() {
        let length = length.unwrap_or(0);
        let is_text = index == 0 && pointers == 0 && name == "char";
        ty = if is_text { Type::Text(length) } else { Type::Array(Arc::new(ty), length) };
    }
    ty
}

/// Members of a struct as the compiler places them (System V ABI).
#[derive(Default)]
struct Layout {
    is_union: bool,
    /// Bits that are used.
    end: u32,
    size: u32,
    align: u32,
    members: Vec<Member>,
}

impl Layout {
    fn add(
        &mut self,
        name: &Arc<str>,
        ty: Type,
        size: u32,
        align: u32,
        bits: Option<u8>,
    ) -> Option<()> {
        self.align = self.align.max(align);
        let start = if self.is_union { 0 } else { self.end };
        let unit = size.checked_mul(8)?;
        let (at, len) = match bits {
            Some(0) => {
                self.end = start.next_multiple_of(unit.max(8));
                return Some(());
            }
            // A bit-field does not cross a boundary of its type.
            Some(bits) if start % unit.max(8) + u32::from(bits) > unit => {
                (start.next_multiple_of(unit.max(8)), bits.into())
            }
            Some(bits) => (start, bits.into()),
            None => (start.next_multiple_of(align.checked_mul(8)?), unit),
        };
        self.end = at.checked_add(len)?;
        self.size = self.size.max(self.end.div_ceil(8));
        let member = Member { name: Arc::clone(name), ty, bit_offset: at, bits };
        self.members.push(member);
        Some(())
    }

    fn finish(self, name: &Arc<str>) -> Record {
        let size = self.size.next_multiple_of(self.align.max(1));
        let Self { is_union, members, .. } = self;
        Record { name: Arc::clone(name), is_union, size, members }
    }
}

/// Asks the kernel through a reference, so that a checker can be cloned for one body.
pub(super) fn function_names(kernel: &dyn Kernel) -> Vec<Arc<str>> {
    kernel.functions(None, "*")
}
