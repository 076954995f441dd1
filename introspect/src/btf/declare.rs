//! Types as C writes them.

use super::id::TypeId;
use super::kind::{Kind, Qualifier};
use super::table::Btf;

/// Most types that one declaration names: a prototype of a prototype of many parameters.
const BUDGET: usize = 256;

impl Btf {
    /// Returns the declaration of `name` with a type; of a type alone where `name` is empty: `const
    /// char *name`, `int (*)(struct file *)`. Declarations that are too long end in `...`.
    #[must_use]
    pub fn declaration(&self, id: TypeId, name: &str) -> String {
        self.declare(id, name.to_owned(), &mut { BUDGET })
    }

    fn declare(&self, id: TypeId, inner: String, budget: &mut usize) -> String {
        let Some(left) = budget.checked_sub(1) else { return join("...", &inner) };
        *budget = left;
        let own = self.name(id);
        match self.kind(id) {
            Kind::Void => join("void", &inner),
            Kind::Int { .. } | Kind::Float { .. } | Kind::Typedef(_) | Kind::Section => {
                join(own, &inner)
            }
            Kind::Composite(it) => tagged(it.tag(), own, &inner),
            Kind::Forward { is_union } => {
                tagged(if is_union { "union" } else { "struct" }, own, &inner)
            }
            Kind::Enum { .. } => tagged("enum", own, &inner),
            Kind::Pointer(to) => {
                let binds = matches!(self.kind(to), Kind::Array { .. } | Kind::Prototype(_));
                let inner = if binds { format!("(*{inner})") } else { format!("*{inner}") };
                self.declare(to, inner, budget)
            }
            Kind::Array { element, len } => {
                self.declare(element, format!("{inner}[{len}]"), budget)
            }
            Kind::Qualified(qualifier, to) => self.qualified(qualifier, to, inner, budget),
            Kind::Tag(to) | Kind::Variable(to) | Kind::Function(to) => {
                self.declare(to, inner, budget)
            }
            Kind::Prototype(it) => {
                let params = it.params();
                let none = params.len() == 0;
                let mut texts = Vec::new();
                for (name, param) in params {
                    if *budget == 0 {
                        texts.push("...".to_owned());
                        break;
                    }
                    texts.push(match (name, self.kind(param)) {
                        ("", Kind::Void) => "...".to_owned(),
                        _ => self.declare(param, name.to_owned(), budget),
                    });
                }
                let params = if none { "void".to_owned() } else { texts.join(", ") };
                self.declare(it.result, format!("{inner}({params})"), budget)
            }
        }
    }

    /// Handles a pointer's qualifier, which follows its `*`.
    fn qualified(
        &self,
        qualifier: Qualifier,
        to: TypeId,
        inner: String,
        budget: &mut usize,
    ) -> String {
        let word = match qualifier {
            Qualifier::Const => "const",
            Qualifier::Volatile => "volatile",
            Qualifier::Restrict => "restrict",
        };
        match self.kind(to) {
            Kind::Pointer(_) => self.declare(to, join(word, &inner), budget),
            _ => format!("{word} {}", self.declare(to, inner, budget)),
        }
    }
}

fn tagged(tag: &str, name: &str, inner: &str) -> String {
    match name {
        "" => join(&format!("{tag} {{...}}"), inner),
        name => join(&format!("{tag} {name}"), inner),
    }
}

fn join(left: &str, right: &str) -> String {
    match right {
        "" => left.to_owned(),
        _ if right.starts_with('[') => format!("{left}{right}"),
        _ => format!("{left} {right}"),
    }
}
