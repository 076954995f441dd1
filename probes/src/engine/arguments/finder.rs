//! Resolves the names in arguments.

use std::sync::Arc;

use exoprobe_introspect::btf::{ArgumentPlace, FieldPlace, Kind, NoTypes, Parameter, TypeId};
use exoprobe_introspect::{Btf, SymbolTable};

use super::error::ParameterError;
use super::legacy::{self, KEPT_MAX, REGISTERS};
use crate::definition::{Argument, Bits, Fetch, FetchArg, Named, ProbeKind, ValueType, Width};
use crate::error::ProbeError;

/// Facts about the place of a probe.
pub(crate) struct ResolveContext<'a> {
    pub(crate) symbols: &'a SymbolTable,
    /// The function whose entry or return is probed; `None` if the place is neither.
    pub(crate) function: Option<&'a str>,
    /// The kernel's types, if they were needed.
    pub(crate) types: Result<Arc<Btf>, NoTypes>,
}

/// The type of a value whose definition gives none.
pub(super) fn default_kind(fetch: &Fetch) -> ValueType {
    match fetch {
        Fetch::Comm | Fetch::ConstantText(_) | Fetch::NameOf { .. } => ValueType::Text,
        _ => ValueType::default(),
    }
}

/// The number of values; an array of one number counts as that number.
pub(super) fn count(kind: Option<ValueType>, count: Option<u8>) -> Option<u8> {
    count.filter(|count| *count > 1 || kind.is_some_and(ValueType::is_text))
}

/// Resolves the values of one probe.
pub(super) struct Finder<'a> {
    context: &'a ResolveContext<'a>,
    at_return: bool,
    /// The parameters of the function, if it is known and its entry or return is probed.
    params: Option<Vec<Parameter>>,
}

/// A value, and the kernel's type of it.
struct Typed {
    fetch: Fetch,
    id: TypeId,
    /// For a bit-field: its bits, and the bits below it.
    bits: Option<(u32, u32)>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(kind: ProbeKind, context: &'a ResolveContext<'a>) -> Self {
        let at_return = kind == ProbeKind::Kretprobe;
        let mut finder = Self { context, at_return, params: None };
        if let (Ok(types), Ok(prototype)) = (finder.types(), finder.prototype()) {
            finder.params = Some(types.parameters(prototype));
        }
        finder
    }

    fn types(&self) -> Result<&'a Btf, ProbeError> {
        self.context.types.as_deref().map_err(|error| error.clone().into())
    }

    /// The type of the function whose entry or return is probed.
    fn prototype(&self) -> Result<TypeId, ProbeError> {
        let types = self.types()?;
        let no_prototype = |name: &str| ParameterError::NoPrototype(name.to_owned());
        let function = self.context.function.ok_or_else(|| no_prototype("there"))?;
        Ok(types.function(function).ok_or_else(|| no_prototype(function))?)
    }

    /// `$arg*`.
    pub(super) fn all(&self) -> Result<Vec<Argument>, ProbeError> {
        let Some(function) = self.context.function else {
            return Err(ParameterError::NoArguments(Fetch::AllParameters.to_string()).into());
        };
        self.types()?;
        let params = self.params.as_deref().unwrap_or_default();
        if params.is_empty() {
            return Err(ParameterError::NoParameters(function.to_owned()).into());
        }
        let each = params.iter().map(|param| {
            let name = param.name.clone();
            let body = Fetch::Parameter(name.clone());
            self.argument(name, &FetchArg { name: None, body, kind: None, count: None })
        });
        each.collect()
    }

    pub(super) fn argument(&self, name: String, arg: &FetchArg) -> Result<Argument, ProbeError> {
        let count = count(arg.kind, arg.count);
        let (fetch, kind) = match self.typed(&arg.body)? {
            None => {
                let kind = arg.kind.unwrap_or_else(|| default_kind(&arg.body));
                let fetch = self.place(&arg.body)?;
                // A value in the tracer's first syntax, which is the text's address.
                let is_address = kind.is_text() && matches!(arg.body, Fetch::Parameter(_));
                (if is_address { at(fetch) } else { fetch }, kind)
            }
            Some(typed) => match arg.kind {
                Some(kind) if kind.is_text() && count.is_none() => {
                    (self.text(typed, &arg.body)?, kind)
                }
                Some(kind) => (typed.fetch, kind),
                None => {
                    let kind = self.kind(&typed)?;
                    (typed.fetch, kind)
                }
            },
        };
        Ok(Argument { name, fetch, kind, count })
    }

    /// The kernel's type of a parameter or member.
    fn typed(&self, body: &Fetch) -> Result<Option<Typed>, ProbeError> {
        match body {
            Fetch::Parameter(name) => {
                let known = self.params.iter().flatten().find(|param| param.name == *name);
                let Some(param) = known else { return Ok(None) };
                let fetch = self.as_entered(place_of(param)?, name)?;
                Ok(Some(Typed { fetch, id: param.id, bits: None }))
            }
            Fetch::Member { base, path } => self.member(base, path).map(Some),
            _ => Ok(None),
        }
    }

    /// The same fetch argument with its names resolved.
    fn place(&self, body: &Fetch) -> Result<Fetch, ProbeError> {
        Ok(match body {
            Fetch::Parameter(name) => match self.typed(body)? {
                Some(typed) => typed.fetch,
                None => match legacy::fetch(name, self.at_return) {
                    Some(fetch) => fetch,
                    None => return Err(self.no_parameter(name)),
                },
            },
            Fetch::Member { base, path } => self.member(base, path)?.fetch,
            Fetch::NameOf { what, base } => self.place(&name_of(*what, base, self.types()?)?)?,
            Fetch::Argument(n) => {
                let no_arguments = || ParameterError::NoArguments(body.to_string());
                if self.context.function.is_none() {
                    return Err(no_arguments().into());
                }
                let there = n.checked_sub(1).and_then(legacy::argument).ok_or_else(no_arguments)?;
                self.as_entered(there, &body.to_string())?
            }
            Fetch::Symbol { name, offset } => {
                let at = self.context.symbols.lookup(name)?.address;
                Fetch::Memory(at.wrapping_add(offset.cast_unsigned()))
            }
            Fetch::Deref { offset, base, user } => {
                Fetch::Deref { offset: *offset, base: Box::new(self.place(base)?), user: *user }
            }
            other => other.clone(),
        })
    }

    /// The value of a place at the function's entry; for a return probe, the kept one.
    fn as_entered(&self, place: Fetch, name: &str) -> Result<Fetch, ParameterError> {
        if !self.at_return {
            return Ok(place);
        }
        let kept = (0..).take(KEPT_MAX).find(|n| legacy::argument(*n).as_ref() == Some(&place));
        let too_many = || ParameterError::TooManyKept(name.to_owned());
        kept.map(|n| Fetch::Argument(n + 1)).ok_or_else(too_many)
    }

    /// The error for a missing parameter.
    fn no_parameter(&self, name: &str) -> ProbeError {
        let Some(function) = self.context.function else {
            return ParameterError::NotEntry(name.to_owned()).into();
        };
        match self.prototype() {
            Err(error) => error,
            Ok(_) => {
                let has = self.params.iter().flatten().map(|param| param.name.clone()).collect();
                let (function, name) = (function.to_owned(), name.to_owned());
                ParameterError::NoSuch { function, name, has }.into()
            }
        }
    }

    /// `BASE->PATH`.
    fn member(&self, base: &Fetch, path: &str) -> Result<Typed, ProbeError> {
        let types = self.types()?;
        let mut at = self.pointer(base)?;
        let mut name = base.to_string();
        for part in path.split("->") {
            let to = match types.kind(types.resolve(at.id)) {
                Kind::Pointer(to) => types.resolve(to),
                _ => TypeId(0),
            };
            if at.bits.is_some() || !matches!(types.kind(to), Kind::Composite(_)) {
                let declaration = types.declaration(at.id, &name);
                return Err(ParameterError::NoPointer { name, declaration }.into());
            }
            name = format!("{name}->{part}");
            let place = types.field(to, part);
            let place =
                place.map_err(|source| ParameterError::Member { name: name.clone(), source })?;
            at = member_at(at.fetch, place);
        }
        Ok(at)
    }

    /// The first pointer of a member path.
    fn pointer(&self, base: &Fetch) -> Result<Typed, ProbeError> {
        if *base != Fetch::ReturnValue {
            let name = base.parameter().unwrap_or_default();
            return self.typed(base)?.ok_or_else(|| self.no_parameter(name));
        }
        let (types, prototype) = (self.types()?, self.prototype()?);
        let id = match types.kind(prototype) {
            Kind::Prototype(it) => it.result,
            _ => TypeId(0),
        };
        if matches!(types.kind(types.resolve(id)), Kind::Void) {
            let function = self.context.function.unwrap_or_default();
            return Err(ParameterError::NoReturnValue(function.to_owned()).into());
        }
        Ok(Typed { fetch: Fetch::ReturnValue, id, bits: None })
    }

    /// The address of the text: the target of a pointer to characters, or an array of them.
    fn text(&self, typed: Typed, body: &Fetch) -> Result<Fetch, ProbeError> {
        let types = self.types()?;
        let is_char = |id: TypeId| {
            matches!(types.kind(types.resolve(id)), Kind::Int { size: 1, is_bool: false, .. })
        };
        match types.kind(types.resolve(typed.id)) {
            Kind::Pointer(to) if is_char(to) => Ok(at(typed.fetch)),
            Kind::Array { element, .. } if is_char(element) => Ok(typed.fetch),
            _ => {
                let name = body.to_string();
                let declaration = types.declaration(typed.id, &name);
                Err(ParameterError::NotText { name, declaration }.into())
            }
        }
    }

    /// The display type of a type's values: integers and enums by width and sign, all others in
    /// hexadecimal digits.
    fn kind(&self, typed: &Typed) -> Result<ValueType, ProbeError> {
        let types = self.types()?;
        let (Kind::Int { size, is_signed, .. } | Kind::Enum { size, is_signed }) =
            types.kind(types.resolve(typed.id))
        else {
            return Ok(ValueType::default());
        };
        if let Some((bits, below)) = typed.bits {
            let mut found = Width::ALL.iter().filter_map(|width| Bits::new(bits, below, *width));
            return Ok(found.next().map_or(ValueType::default(), ValueType::Bits));
        }
        Ok(match Width::of_bytes(size.into()) {
            Some(width) if is_signed => ValueType::Signed(width),
            Some(width) => ValueType::Unsigned(width),
            None => ValueType::default(),
        })
    }
}

/// The memory at a value.
fn at(pointer: Fetch) -> Fetch {
    Fetch::Deref { offset: 0, base: Box::new(pointer), user: false }
}

/// The address of the name of the dentry or file at `base`.
pub(super) fn name_of(what: Named, base: &Fetch, types: &Btf) -> Result<Fetch, ParameterError> {
    let field_at = |base: Fetch, name, path| {
        let place = types.field_of(name, path).map_err(ParameterError::NoNames)?;
        let offset = i64::try_from(place.offset()).unwrap_or(i64::MAX);
        Ok(Fetch::Deref { offset, base: Box::new(base), user: false })
    };
    let dentry = match what {
        Named::Dentry => base.clone(),
        Named::File => field_at(base.clone(), "file", "f_path.dentry")?,
    };
    field_at(dentry, "dentry", "d_name.name").map(at)
}

pub(super) fn place_of(param: &Parameter) -> Result<Fetch, ParameterError> {
    match param.place {
        ArgumentPlace::Register(number) => match REGISTERS.get(usize::from(number)) {
            Some(register) => Ok(Fetch::Register(*register)),
            None => Err(ParameterError::ByValue(param.name.clone())),
        },
        ArgumentPlace::Stack(word) => Ok(Fetch::Stack(word)),
        ArgumentPlace::ByValue => Err(ParameterError::ByValue(param.name.clone())),
    }
}

/// A member of the struct at `pointer`.
fn member_at(pointer: Fetch, place: FieldPlace) -> Typed {
    // A bit-field is extracted from the number that begins with its first byte.
    let below = u32::try_from(place.bit_offset % 8).expect("below 8");
    let offset = i64::try_from(place.offset()).unwrap_or(i64::MAX);
    let bits = place.bits.map(|bits| (bits, below));
    Typed {
        fetch: Fetch::Deref { offset, base: Box::new(pointer), user: false },
        id: place.id,
        bits,
    }
}
