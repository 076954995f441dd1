//! Places in source files.

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourcePlace {
    /// The file, from the folder that the kernel was built in; a whole path where it is not in there.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, where the compiler told it.
    pub column: Option<u32>,
}

/// A call that the compiler replaced by the called function's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlinedCall {
    /// The function that is called.
    pub function: Option<String>,
    /// Where it is called.
    pub caller: Option<SourcePlace>,
}

/// Where an instruction comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// Its own line: of the innermost inlined function where it is in one.
    pub place: SourcePlace,
    /// The function that it is in, as the source names it: the one that is no inlined one.
    pub function: Option<String>,
    /// The inlined calls that it is in, innermost first.
    pub inlined: Vec<InlinedCall>,
}
