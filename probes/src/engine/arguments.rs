//! What a probe fetches at each hit: its definition's arguments, with parameters that it names found by the kernel's
//! types.

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::{ArgumentPlace, Kind, Parameter, TypeId};

use crate::definition::{
    Fetch, FetchArg, Field, FieldError, Filter, ProbeDefinition, Register, ValueType, Width,
};
use crate::error::ProbeError;

/// Registers that parameters come in, in order (System V ABI, AMD64, 3.2.3).
const REGISTERS: [Register; 6] =
    [Register::Di, Register::Si, Register::Dx, Register::Cx, Register::R8, Register::R9];

/// Why a parameter cannot be fetched by its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The probe is not where parameters are.
    #[error(
        "`{0}` is taken for a parameter's name: parameters are known at a function's entry only (kprobes; offset 0)"
    )]
    NotEntry(String),
    /// Nothing is known of the function.
    #[error(
        "the kernel's types have no function {0}, or several of this name that differ: give registers (`%di`)"
    )]
    NoPrototype(String),
    /// It has no such parameter.
    #[error("{function} has no parameter `{name}`: {}", known(has))]
    NoSuch {
        /// The function.
        function: String,
        /// What was asked for.
        name: String,
        /// What it has.
        has: Vec<String>,
    },
    /// It is a whole struct.
    #[error(
        "the parameter `{0}` is a struct by value: give the registers or stack entries that have it"
    )]
    ByValue(String),
    /// `string` of what is none.
    #[error("`{name}` is `{declaration}`, not the address of text: `string` cannot be its type")]
    NotText {
        /// The parameter.
        name: String,
        /// What it is.
        declaration: String,
    },
}

fn known(has: &[String]) -> String {
    if has.is_empty() { "it has none".to_owned() } else { format!("it has `{}`", has.join("`, `")) }
}

/// One value of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// Where it comes from: no parameter, any more.
    pub(crate) fetch: Fetch,
    pub(crate) kind: ValueType,
}

/// All of a hit's values.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) list: Box<[Argument]>,
    /// Which hits count; all without one.
    pub(crate) filter: Option<Filter<Field>>,
    /// Some argument may fault, so that records say which did.
    pub(crate) may_fault: bool,
    /// Some argument is text.
    pub(crate) has_text: bool,
}

impl Arguments {
    /// Checks what can be checked before the kernel's types are known.
    ///
    /// # Errors
    /// [`ProbeError::Filter`].
    pub(super) fn check(definition: &ProbeDefinition) -> Result<(), ProbeError> {
        let given = |index: usize| definition.args.get(index).and_then(|arg| arg.kind);
        let filter = definition.filter_by_field(|index| given(index).unwrap_or_default());
        filter.map(drop).map_err(|error| filter_error(definition, error))
    }

    /// Of a definition that names no parameter.
    ///
    /// # Errors
    /// [`ProbeError::Filter`].
    pub(super) fn plain(definition: &ProbeDefinition) -> Result<Option<Self>, ProbeError> {
        let plain = |arg: &FetchArg| match arg.body.parameter() {
            Some(_) => None,
            None => Some(Argument { fetch: arg.body.clone(), kind: arg.kind.unwrap_or_default() }),
        };
        let list: Option<Box<[Argument]>> = definition.args.iter().map(plain).collect();
        list.map(|list| Self::new(definition, list)).transpose()
    }

    /// Of a definition whose place is the entry of a function, or, where `function` is `None`, is not.
    ///
    /// # Errors
    /// [`ProbeError::Parameter`], [`ProbeError::Filter`].
    pub(super) fn find(
        definition: &ProbeDefinition,
        function: Option<&str>,
        types: &Btf,
    ) -> Result<Self, ProbeError> {
        let first = definition.args.iter().find_map(|arg| arg.body.parameter()).unwrap_or_default();
        let function = function.ok_or_else(|| ParameterError::NotEntry(first.to_owned()))?;
        let no_prototype = || ParameterError::NoPrototype(function.to_owned());
        let prototype = types.function(function).ok_or_else(no_prototype)?;
        let finder = Finder { types, function, params: types.parameters(prototype) };
        let list = definition.args.iter().map(|arg| finder.argument(arg));
        Self::new(definition, list.collect::<Result<_, _>>()?)
    }

    fn new(definition: &ProbeDefinition, list: Box<[Argument]>) -> Result<Self, ProbeError> {
        let kind = |index: usize| list.get(index).map_or(ValueType::default(), |arg| arg.kind);
        let filter =
            definition.filter_by_field(kind).map_err(|error| filter_error(definition, error))?;
        let has_text = list.iter().any(|arg| arg.kind.is_text());
        let may_fault = list.iter().any(|arg| arg.fetch.reads_memory());
        Ok(Self { list, filter, may_fault, has_text })
    }
}

fn filter_error(definition: &ProbeDefinition, error: FieldError) -> ProbeError {
    let known = (0..definition.args.len()).map(|index| definition.arg_name(index));
    let known = known.chain([crate::definition::PID_FIELD.to_owned()]);
    ProbeError::Filter { error, known: known.collect::<Vec<_>>().join("`, `") }
}

/// Finds parameters of one function.
struct Finder<'a> {
    types: &'a Btf,
    function: &'a str,
    params: Vec<Parameter>,
}

impl Finder<'_> {
    fn argument(&self, arg: &FetchArg) -> Result<Argument, ParameterError> {
        let fetch = self.place(&arg.body)?;
        let Fetch::Parameter(name) = &arg.body else {
            return Ok(Argument { fetch, kind: arg.kind.unwrap_or_default() });
        };
        let param = self.param(name)?;
        match arg.kind {
            Some(kind) if kind.is_text() => {
                if !self.is_text(param.id) {
                    let declaration = self.types.declaration(param.id, name);
                    return Err(ParameterError::NotText { name: name.clone(), declaration });
                }
                Ok(Argument { fetch: Fetch::Deref { offset: 0, base: Box::new(fetch) }, kind })
            }
            Some(kind) => Ok(Argument { fetch, kind }),
            None => Ok(Argument { fetch, kind: self.kind(param.id) }),
        }
    }

    fn param(&self, name: &str) -> Result<&Parameter, ParameterError> {
        self.params.iter().find(|param| param.name == name).ok_or_else(|| ParameterError::NoSuch {
            function: self.function.to_owned(),
            name: name.to_owned(),
            has: self.params.iter().map(|param| param.name.clone()).collect(),
        })
    }

    /// The same fetch argument, with the register or the stack entry in place of the parameter.
    fn place(&self, body: &Fetch) -> Result<Fetch, ParameterError> {
        Ok(match body {
            Fetch::Parameter(name) => match self.param(name)?.place {
                ArgumentPlace::Register(number) => match REGISTERS.get(usize::from(number)) {
                    Some(register) => Fetch::Register(*register),
                    None => return Err(ParameterError::ByValue(name.clone())),
                },
                ArgumentPlace::Stack(word) => Fetch::Stack(word),
                ArgumentPlace::ByValue => return Err(ParameterError::ByValue(name.clone())),
            },
            Fetch::Deref { offset, base } => {
                Fetch::Deref { offset: *offset, base: Box::new(self.place(base)?) }
            }
            other => other.clone(),
        })
    }

    /// What values of a type are shown as: integers and enums by their width and sign, all else in hexadecimal digits.
    fn kind(&self, id: TypeId) -> ValueType {
        match self.types.kind(self.types.resolve(id)) {
            Kind::Int { size, is_signed, .. } | Kind::Enum { size, is_signed } => {
                match (Width::of_bytes(size.into()), is_signed) {
                    (Some(width), true) => ValueType::Signed(width),
                    (Some(width), false) => ValueType::Unsigned(width),
                    (None, _) => ValueType::default(),
                }
            }
            _ => ValueType::default(),
        }
    }

    /// Whether it is the address of characters.
    fn is_text(&self, id: TypeId) -> bool {
        let Kind::Pointer(to) = self.types.kind(self.types.resolve(id)) else { return false };
        matches!(self.types.kind(self.types.resolve(to)), Kind::Int { size: 1, is_bool: false, .. })
    }
}

#[cfg(test)]
mod tests {
    use exoprobe_introspect::btf::sample::{POINTER, STRUCT, Sample, kernel};

    use super::*;
    use crate::definition::parse_line;

    fn found(line: &str, types: &Btf) -> Result<Vec<String>, String> {
        let definition = parse_line(line).unwrap();
        let found = Arguments::find(&definition, Some("get"), types).map_err(|e| e.to_string())?;
        Ok(found.list.iter().map(|arg| format!("{}:{}", arg.fetch, arg.kind)).collect())
    }

    #[test]
    fn parameters_are_found_with_their_types() {
        let types = kernel().btf();
        let line = "p get fd name:string task +8(task):u32 fd:x16 name raw=%di";
        let expected = [
            "%di:s32",
            "+0(%si):string",
            "%dx:x64",
            "+8(%dx):u32",
            "%di:x16",
            "%si:x64",
            "%di:x64",
        ];
        assert_eq!(found(line, &types).unwrap(), expected);
    }

    #[test]
    fn what_is_no_parameter_is_told() {
        let types = kernel().btf();
        let error = |line| found(line, &types).unwrap_err();
        let text = "get has no parameter `x`: it has `fd`, `name`, `task`";
        assert_eq!(error("p get x"), text);
        assert_eq!(error("p get a=+8(x)"), text);
        let text =
            "`task` is `struct task *task`, not the address of text: `string` cannot be its type";
        assert_eq!(error("p get task:string"), text);
        let definition = parse_line("p get+4 fd").unwrap();
        let within = Arguments::find(&definition, None, &types).unwrap_err();
        assert!(within.to_string().starts_with("`fd` is taken for a parameter's name"), "{within}");
        let other = Arguments::find(&definition, Some("put"), &types).unwrap_err();
        assert!(other.to_string().contains("no function put"), "{other}");
        let mut sample = Sample::default();
        let large = sample.composite(STRUCT, "large", 24, &[]);
        let place = sample.to(POINTER, large);
        sample.function("get", 0, &[("by_value", large), ("at", place)]);
        let types = sample.btf();
        assert!(found("p get by_value", &types).unwrap_err().contains("struct by value"));
        assert_eq!(found("p get at", &types).unwrap(), ["%di:x64"]);
    }

    #[test]
    fn filters_go_by_the_types_that_are_found() {
        let types = kernel().btf();
        let holds = |filter: &str, word: u64| {
            let mut definition = parse_line("p get fd name:string").unwrap();
            definition.filter = Some(filter.parse().unwrap());
            let found =
                Arguments::find(&definition, Some("get"), &types).map_err(|e| e.to_string())?;
            Ok::<bool, String>(found.filter.unwrap().holds(&mut |_| Some(word)))
        };
        assert_eq!(holds("fd == -100", 0x7_ffff_ff9c), Ok(true));
        assert_eq!(holds("fd < 0", 5), Ok(false));
        let text = "the filter's `name` is text: only numbers can be compared: it has `fd`, `name`, `common_pid`";
        assert_eq!(holds("name == 1", 0), Err(text.to_owned()));
    }
}
