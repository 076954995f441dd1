//! A script as it is written.

use std::sync::Arc;

use crate::diagnostic::Span;

/// A name with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    pub(crate) span: Span,
}

/// An expression with its place.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    /// Levels of the tree.
    pub(crate) height: usize,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    /// A number; the flag says that it does not fit in `int64`, or has a suffix `u`.
    Int(u64, bool),
    Text(Arc<[u8]>),
    /// A builtin, a constant of an enum, or a `#define`.
    Ident(Arc<str>),
    /// `$name`
    Variable(Arc<str>),
    /// `@name`, with keys.
    Map(Arc<str>, Option<Vec<Expr>>),
    /// `$1`
    Param(u32),
    /// `$#`
    ParamCount,
    Call(Name, Vec<Expr>),
    Unary(UnaryOp, Box<Expr>),
    /// `++` or `--`: the step, and whether the operator is before the target.
    Step(i64, bool, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(TypeName, Box<Expr>),
    /// A member; the flag is set for `->`.
    Member(Box<Expr>, Name, bool),
    Index(Box<Expr>, Box<Expr>),
    TupleField(Box<Expr>, usize),
    Tuple(Vec<Expr>),
    SizeofType(TypeName),
    SizeofExpr(Box<Expr>),
    Offsetof(TypeName, Vec<Name>),
    OffsetofExpr(Box<Expr>, Vec<Name>),
    /// Statements and the expression that is their value: a macro's body.
    Block(Vec<Statement>, Box<Expr>),
}

impl ExprKind {
    /// Levels of the highest part.
    pub(crate) fn height(&self) -> usize {
        let of_all = |exprs: &[Expr]| exprs.iter().map(|expr| expr.height).max().unwrap_or(0);
        match self {
            Self::Int(..) | Self::Text(_) | Self::Ident(_) | Self::Variable(_) => 0,
            Self::Param(_) | Self::ParamCount | Self::SizeofType(_) | Self::Offsetof(..) => 0,
            Self::Map(_, keys) => keys.as_deref().map_or(0, of_all),
            Self::Call(_, exprs) | Self::Tuple(exprs) => of_all(exprs),
            Self::Unary(_, of) | Self::Step(_, _, of) | Self::Cast(_, of) => of.height,
            Self::Member(of, ..) | Self::TupleField(of, _) | Self::SizeofExpr(of) => of.height,
            Self::OffsetofExpr(of, _) | Self::Block(_, of) => of.height,
            Self::Binary(_, left, right) | Self::Index(left, right) => {
                left.height.max(right.height)
            }
            Self::Ternary(one, two, three) => one.height.max(two.height).max(three.height),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnaryOp {
    Negate,
    Not,
    Invert,
    Dereference,
    AddressOf,
    Plus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    LogicAnd,
    LogicOr,
}

/// A type as it is written: `struct file *`, `uint8[4]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeName {
    /// With `struct`, `union` or `enum` before it, one space between.
    pub(crate) name: Arc<str>,
    /// Number of `*`.
    pub(crate) pointers: usize,
    /// Lengths of arrays, the outer first; `None` for `[]`.
    pub(crate) lengths: Vec<Option<u32>>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) kind: StatementKind,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum StatementKind {
    Expr(Expr),
    /// `target OP= value`; no operator for `=`.
    Assign(Expr, Option<BinaryOp>, Expr),
    Let(Name, Option<TypeName>, Option<Expr>),
    If(Expr, Vec<Statement>, Vec<Statement>),
    While(Expr, Vec<Statement>),
    Unroll(Expr, Vec<Statement>),
    /// `for ($kv : @map)`
    ForMap(Name, Name, Vec<Statement>),
    /// `for ($i : 0..10)`
    ForRange(Name, Expr, Expr, Vec<Statement>),
    Block(Vec<Statement>),
    Break,
    Continue,
    Return(Option<Expr>),
}

/// A probe and its action.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    /// Places as they are written.
    pub(crate) points: Vec<Name>,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Vec<Statement>,
    pub(crate) span: Span,
}

/// `macro name($x, @y) { ... }`
#[derive(Clone, Debug)]
pub(crate) struct Macro {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<Expr>,
    pub(crate) body: Vec<Statement>,
    pub(crate) value: Option<Expr>,
}

/// A member of a struct of the script.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Empty for an unnamed struct or union.
    pub(crate) name: Name,
    pub(crate) ty: FieldType,
    pub(crate) bits: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum FieldType {
    Named(TypeName),
    /// A struct or union in the struct, its pointers and lengths.
    Inner(Arc<Composite>, usize, Vec<Option<u32>>),
}

/// A struct or union of the script.
#[derive(Clone, Debug)]
pub(crate) struct Composite {
    pub(crate) name: Name,
    pub(crate) is_union: bool,
    pub(crate) fields: Vec<Field>,
}

/// An enum of the script.
#[derive(Clone, Debug)]
pub(crate) struct EnumDef {
    pub(crate) name: Name,
    /// In order; a value where one is written.
    pub(crate) values: Vec<(Name, Option<Expr>)>,
}

/// `#define NAME EXPR`
#[derive(Clone, Debug)]
pub(crate) struct Define {
    pub(crate) name: Name,
    pub(crate) value: Expr,
}

/// A whole script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) defines: Vec<Define>,
    pub(crate) composites: Vec<Arc<Composite>>,
    pub(crate) enums: Vec<EnumDef>,
    pub(crate) macros: Vec<Arc<Macro>>,
    /// `config = { name = value; }`
    pub(crate) config: Vec<(Name, Expr)>,
    /// `let @name = hash(100);`: the number of entries.
    pub(crate) map_sizes: Vec<(Name, u64)>,
    pub(crate) actions: Vec<Action>,
}
