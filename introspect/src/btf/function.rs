//! Places of parameters at a function's entry (System V Application Binary Interface, AMD64,
//! 3.2.3).

use super::id::TypeId;
use super::kind::Kind;
use super::table::Btf;

/// Number of registers that pass parameters.
const REGISTERS: u8 = 6;
const WORD: u64 = 8;
/// Largest struct that is passed in registers, in bytes.
const IN_REGISTERS_MAX: u64 = 2 * WORD;
/// Most parameters that are placed; C functions of kernels have some twelve.
const PARAMS_MAX: usize = 64;

/// Place of a parameter at the function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentPlace {
    /// The register of this number among RDI, RSI, RDX, RCX, R8, R9.
    Register(u8),
    /// This word from the stack pointer on; word 0 is the return address.
    Stack(u16),
    /// A struct, by value: in several words.
    ByValue,
}

/// One of a function's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source.
    pub name: String,
    /// Its type.
    pub id: TypeId,
    /// Where it is.
    pub place: ArgumentPlace,
}

impl Btf {
    /// Returns the prototype of a function; `None` where no function has this name, or several with
    /// different prototypes.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<TypeId> {
        let mut prototypes = self.named(name).filter_map(|id| match self.kind(id) {
            Kind::Function(to) => Some(to),
            _ => None,
        });
        let first = prototypes.next()?;
        prototypes.all(|other| other == first).then_some(first)
    }

    /// Returns the parameters of a function's prototype; none of another type. `...` is left out.
    #[must_use]
    pub fn parameters(&self, prototype: TypeId) -> Vec<Parameter> {
        let Kind::Prototype(it) = self.kind(prototype) else { return Vec::new() };
        let (mut register, mut stack) = (0, 1u16);
        let named =
            it.params().take(PARAMS_MAX).filter(|(_, id)| !matches!(self.kind(*id), Kind::Void));
        let mut place = |id: TypeId| {
            let size = self.size_of(id).unwrap_or(WORD);
            let words = u16::try_from(size.div_ceil(WORD)).unwrap_or(u16::MAX).max(1);
            let is_struct = matches!(self.kind(self.resolve(id)), Kind::Composite(_));
            let fits = size <= IN_REGISTERS_MAX && u16::from(REGISTERS - register) >= words;
            let place = match fits {
                true => ArgumentPlace::Register(register),
                false => ArgumentPlace::Stack(stack),
            };
            match fits {
                true => register += u8::try_from(words).expect("two at most"),
                false => stack = stack.saturating_add(words),
            }
            if is_struct { ArgumentPlace::ByValue } else { place }
        };
        named.map(|(name, id)| Parameter { name: name.to_owned(), id, place: place(id) }).collect()
    }
}
