//! A script's bodies after the check: typed, names resolved to numbers.

use std::sync::Arc;

use crate::syntax::ast::BinaryOp;
use crate::types::{Record, Type};
use crate::value::Value;

/// A map of a program.
#[derive(Clone, Debug)]
pub(crate) struct MapInfo {
    /// With `@`.
    pub(crate) name: Arc<str>,
    /// Types of its keys; none for a single value.
    pub(crate) keys: Vec<Shape>,
    pub(crate) value: Shape,
    /// Entries that the script allows it.
    pub(crate) entries: Option<usize>,
}

/// A type, with all that is needed to show a value of it.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) ty: Type,
    /// Of elements, members and parts.
    pub(crate) inner: Arc<[Shape]>,
    /// Of a struct: where its members are.
    pub(crate) record: Option<Arc<Record>>,
    /// Of an enum: its constants.
    pub(crate) names: Arc<[(Arc<str>, i64)]>,
}

pub(crate) type MapId = usize;
pub(crate) type Slot = usize;

/// An expression.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    Constant(Value),
    Variable(Slot),
    /// A value of the hit: its index in `reads`.
    Read(usize),
    /// The time of the hit.
    Time(Clock),
    Cpu,
    Random,
    /// Name of the probe.
    ProbeName,
    /// Name of the function of the probe.
    FunctionName,
    Map(MapId, Vec<Expr>),
    Negate(Box<Expr>),
    Invert(Box<Expr>),
    Not(Box<Expr>),
    Binary(BinaryOp, bool, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// Equality of texts and memory; inverted if the flag is set. At most so many bytes count.
    Same(bool, Box<Expr>, Box<Expr>),
    Choose(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Cuts to so many bytes, and extends by the sign if the flag is set.
    Cast(u8, bool, Box<Expr>),
    /// Bits from a number: shift, width, sign.
    Bits(u8, u8, bool, Box<Expr>),
    /// Memory of the guest at an address: see [`Load`].
    Load(Load, Box<Expr>),
    /// A number in bytes: offset, bytes, sign.
    IntAt(Box<Expr>, u32, u8, bool),
    /// A part of bytes: offset and length; text ends at its first zero byte.
    Part(Box<Expr>, u32, u32, bool),
    /// An element of bytes: the array, the index, and bytes of an element.
    Element(Box<Expr>, Box<Expr>, u32),
    Tuple(Vec<Expr>),
    Field(Box<Expr>, usize),
    /// Changes a variable by one: slot, step, and whether the old value is the result.
    StepVariable(Slot, i64, bool),
    /// The same of a map.
    StepMap(MapId, Vec<Expr>, i64, bool),
    Call(Call, Vec<Expr>),
    /// Statements and a value: an expanded macro.
    Block(Vec<Statement>, Box<Expr>),
}

/// A value to load from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Int(u8, bool),
    Bytes(u32),
    Text(u32),
}

/// The clock of `nsecs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Since the guest's boot.
    Boot,
    /// Since the script began.
    Elapsed,
}

/// A function with a value.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    HasKey(MapId),
    Len(MapId),
    StackLen,
    /// Deletes an entry; was it there?
    DeleteKey(MapId),
    /// Text of at most so many bytes, the zero byte with them: the text, the number.
    CutText,
    /// Bytes at an address, of a length: at most so many.
    LoadBytes(u32),
    /// Equality of the first so many bytes of two texts: 0 if they are equal.
    StrNCmp(usize),
    StrContains,
    /// An address of a network from a number or bytes; with a family before it.
    Inet,
    InetOf,
    /// Reverses so many bytes.
    Swap(u8),
    /// The address, the process.
    UserSymbol,
    /// The frames, the process.
    UserStack,
    Strftime(Arc<str>),
}

/// A statement.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Expr(Expr),
    Set(Slot, Expr),
    SetMap(MapId, Vec<Expr>, Expr),
    /// Adds numbers to an aggregate.
    Add(MapId, Vec<Expr>, Vec<Expr>),
    If(Expr, Vec<Statement>, Vec<Statement>),
    While(Expr, Vec<Statement>),
    /// So many times.
    Unroll(Expr, Vec<Statement>),
    ForRange(Slot, Expr, Expr, Vec<Statement>),
    ForMap(Slot, MapId, Vec<Statement>),
    Block(Vec<Statement>),
    Break,
    Continue,
    Return,
    Exit(Option<Expr>),
    Printf(Arc<Format>, Vec<Expr>),
    /// To the log of warnings.
    Errorf(Arc<Format>, Vec<Expr>),
    Cat(Arc<Format>, Vec<Expr>),
    System(Arc<Format>, Vec<Expr>),
    PrintMap(MapId, Option<Expr>, Option<Expr>),
    /// A value of a map with its key.
    PrintEntry(MapId, Vec<Expr>),
    PrintValue(Expr, Shape),
    Clear(MapId),
    Zero(MapId),
    Delete(MapId, Vec<Expr>),
    Time(Arc<str>),
    /// Texts of an array of addresses, with what stands between.
    Join(Expr, Arc<str>),
    Override(Expr),
}

/// A format of `printf`, parsed.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    pub(crate) pieces: Vec<Piece>,
}

/// A piece of a format.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Text(Arc<str>),
    /// A conversion, and the shape of its argument.
    Convert(Conversion, Shape),
}

/// A conversion: `%-10.3lld`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) left: bool,
    pub(crate) zero: bool,
    pub(crate) plus: bool,
    pub(crate) space: bool,
    pub(crate) alternate: bool,
    pub(crate) width: usize,
    pub(crate) precision: Option<usize>,
    /// Bytes of the number that count: `hh` 1, `h` 2, none 4 or 8 by the argument, `l` 8.
    pub(crate) bytes: Option<u8>,
    /// `d`, `u`, `x`, `X`, `o`, `c`, `s`, `p`, `r`, `rx`, `rh`.
    pub(crate) letter: Letter,
}

/// The letter of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Letter {
    #[default]
    Signed,
    Unsigned,
    Hex,
    UpperHex,
    Octal,
    Char,
    Text,
    Address,
    /// `%r`: bytes; those that are not printable as `\xNN`.
    Bytes,
    /// `%rx`: all bytes as `\xNN`.
    HexBytes,
    /// `%rh`: all bytes as hexadecimal numbers with spaces.
    BareHex,
}
