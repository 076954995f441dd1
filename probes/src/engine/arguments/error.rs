//! Why an argument cannot be fetched.

use exoprobe_introspect::btf::FieldError;

use super::legacy::KEPT_MAX;

/// Why a parameter, or what is found by way of it, cannot be fetched by its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The probe is not where parameters are.
    #[error(
        "`{0}` is taken for a parameter's name: parameters are known at a function's entry only (offset 0), and at its return"
    )]
    NotEntry(String),
    /// `$argN` elsewhere than where arguments are.
    #[error("`{0}`: arguments are known at a function's entry only (offset 0), and at its return")]
    NoArguments(String),
    /// More of the entry than is kept for the return.
    #[error(
        "`{0}`: a return probe keeps the first {KEPT_MAX} arguments of the entry, six of them in registers"
    )]
    TooManyKept(String),
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
        /// What it is called.
        name: String,
        /// What it is.
        declaration: String,
    },
    /// The function returns nothing.
    #[error("{0} returns nothing (void)")]
    NoReturnValue(String),
    /// `->` behind what points to no struct.
    #[error("`{name}` is `{declaration}`, which points to no struct: it has no members")]
    NoPointer {
        /// What stands before the `->`.
        name: String,
        /// What it is.
        declaration: String,
    },
    /// The names of files are not where they should be.
    #[error("`%pd` and `%pD` are not known of this kernel: {0}")]
    NoNames(FieldError),
    /// No member of this name.
    #[error("`{name}`: {source}")]
    Member {
        /// The whole.
        name: String,
        /// What is wrong.
        source: FieldError,
    },
}

fn known(has: &[String]) -> String {
    if has.is_empty() { "it has none".to_owned() } else { format!("it has `{}`", has.join("`, `")) }
}

impl ParameterError {
    /// The tracer's identifier for it (error_log).
    #[must_use]
    pub fn id(&self) -> &'static str {
        match self {
            Self::NotEntry(_) | Self::NoArguments(_) => "NOFENTRY_ARGS",
            Self::TooManyKept(_) => "TOO_MANY_EARGS",
            Self::NoPrototype(_) => "NO_BTF_ENTRY",
            Self::NoSuch { .. } | Self::ByValue(_) => "NO_BTFARG",
            Self::NotText { .. } => "BAD_TYPE4STR",
            Self::NoReturnValue(_) => "NO_RETVAL",
            Self::NoPointer { .. } => "NO_PTR_STRCT",
            Self::NoNames(_) => "NOSUP_BTFARG",
            Self::Member { .. } => "NO_BTF_FIELD",
        }
    }

    /// The argument that it is about, as it was written; of the tracer's `$arg*`, that.
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
            Self::NoPrototype(_) | Self::NoReturnValue(_) | Self::NoNames(_) => None,
        }
    }
}
