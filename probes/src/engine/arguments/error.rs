//! Why an argument cannot be fetched.

use exoprobe_introspect::btf::FieldError;

use super::legacy::KEPT_MAX;

/// Why a parameter, or a value that depends on it, cannot be fetched by its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The probe is at a place without parameters.
    #[error(
        "`{0}` is taken for a parameter's name: parameters are known at a function's entry only (offset 0), and at its return"
    )]
    NotEntry(String),
    /// `$argN` at a place without arguments.
    #[error("`{0}`: arguments are known at a function's entry only (offset 0), and at its return")]
    NoArguments(String),
    /// An argument of the entry that is not kept for the return.
    #[error(
        "`{0}`: a return probe keeps the first {KEPT_MAX} arguments of the entry, six of them in registers"
    )]
    TooManyKept(String),
    /// The function's type is not known.
    #[error(
        "the kernel's types have no function {0}, or several of this name that differ: give registers (`%di`)"
    )]
    NoPrototype(String),
    /// `$arg*` of a function without known parameters.
    #[error("the kernel's types have no parameter of {0}: leave out `$arg*`")]
    NoParameters(String),
    /// The function has no such parameter.
    #[error("{function} has no parameter `{name}`: {}", known(has))]
    NoSuch {
        /// The function.
        function: String,
        /// The name asked for.
        name: String,
        /// Its parameters.
        has: Vec<String>,
    },
    /// The parameter is a whole struct.
    #[error(
        "the parameter `{0}` is a struct by value: give the registers or stack entries that have it"
    )]
    ByValue(String),
    /// `string` for a value that is not text.
    #[error("`{name}` is `{declaration}`, not the address of text: `string` cannot be its type")]
    NotText {
        /// Its name.
        name: String,
        /// Its C declaration.
        declaration: String,
    },
    /// The function returns nothing.
    #[error("{0} returns nothing (void)")]
    NoReturnValue(String),
    /// `->` after a value that points to no struct.
    #[error("`{name}` is `{declaration}`, which points to no struct: it has no members")]
    NoPointer {
        /// The part before the `->`.
        name: String,
        /// Its C declaration.
        declaration: String,
    },
    /// The fields of files' names cannot be located.
    #[error("`%pd` and `%pD` are not known of this kernel: {0}")]
    NoNames(FieldError),
    /// The struct has no such member.
    #[error("`{name}`: {source}")]
    Member {
        /// The name as written.
        name: String,
        /// The reason.
        source: FieldError,
    },
}

fn known(has: &[String]) -> String {
    if has.is_empty() { "it has none".to_owned() } else { format!("it has `{}`", has.join("`, `")) }
}

impl ParameterError {
    /// The tracer's identifier of the error (error_log).
    #[must_use]
    pub fn id(&self) -> &'static str {
        match self {
            Self::NoArguments(_) => "NOFENTRY_ARGS",
            Self::NotEntry(_) | Self::NoParameters(_) | Self::NoNames(_) => "NOSUP_BTFARG",
            Self::TooManyKept(_) => "TOO_MANY_EARGS",
            Self::NoPrototype(_) => "NO_BTF_ENTRY",
            // As the kernel has it.
            Self::NoSuch { has, .. } if has.is_empty() => "NO_BTF_ENTRY",
            Self::NoSuch { .. } | Self::ByValue(_) => "NO_BTFARG",
            Self::NotText { .. } => "BAD_TYPE4STR",
            Self::NoReturnValue(_) => "NO_RETVAL",
            Self::NoPointer { .. } => "NO_PTR_STRCT",
            Self::Member { .. } => "NO_BTF_FIELD",
        }
    }

    /// The argument concerned, as written; for the tracer's `$arg*`, that.
    #[must_use]
    pub fn body(&self) -> Option<&str> {
        match self {
            Self::NotEntry(name)
            | Self::NoArguments(name)
            | Self::TooManyKept(name)
            | Self::NoSuch { name, .. }
            | Self::ByValue(name)
            | Self::NotText { name, .. }
            | Self::NoPointer { name, .. }
            | Self::Member { name, .. } => Some(name),
            Self::NoPrototype(_)
            | Self::NoParameters(_)
            | Self::NoReturnValue(_)
            | Self::NoNames(_) => None,
        }
    }
}
