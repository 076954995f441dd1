//! Finds the file that declares the name a path leads to.

use crate::tree::{FileId, ModuleId, Tree};

/// Longest chain of re-exports that is followed; the compiler refuses endless ones.
const MAX_DEPTH: usize = 16;

/// A declaration that a path leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Declaration {
    pub(crate) file: FileId,
    pub(crate) name: String,
}

enum Place {
    Module(ModuleId),
    Item(Declaration),
}

/// Resolves a path as written in a module. Empty for other crates' names, locals, and modules as such: a module that is
/// imported is no declaration, but the paths that start with it lead to some.
pub(crate) fn resolve(tree: &Tree, from: ModuleId, path: &[String]) -> Vec<Declaration> {
    let items = places(tree, from, path, 0).into_iter();
    items
        .filter_map(|place| match place {
            Place::Item(declaration) => Some(declaration),
            Place::Module(_) => None,
        })
        .collect()
}

fn places(tree: &Tree, from: ModuleId, path: &[String], depth: usize) -> Vec<Place> {
    if depth > MAX_DEPTH {
        return Vec::new();
    }
    let mut module = from;
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        module = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => match tree.modules[module].parent {
                Some(parent) => parent,
                None => return Vec::new(),
            },
            _ => break,
        };
        rest = after;
    }
    walk(tree, module, rest, depth)
}

fn walk(tree: &Tree, module: ModuleId, path: &[String], depth: usize) -> Vec<Place> {
    let Some((name, rest)) = path.split_first() else { return vec![Place::Module(module)] };
    let mut found = Vec::new();
    for place in named(tree, module, name, depth) {
        match place {
            Place::Module(module) => found.extend(walk(tree, module, rest, depth)),
            // The rest names a variant or an associated item.
            item @ Place::Item(_) => found.push(item),
        }
    }
    found
}

/// All things of one name in a module: a type and a function may share it.
fn named(tree: &Tree, module: ModuleId, name: &str, depth: usize) -> Vec<Place> {
    let scope = &tree.modules[module];
    let mut found = Vec::new();
    if scope.items.contains(name) {
        found.push(Place::Item(Declaration { file: scope.file, name: name.to_owned() }));
    }
    found.extend(scope.children.get(name).map(|&child| Place::Module(child)));
    for import in scope.imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
        // `use name::...` of another crate, under its own name, leads nowhere.
        if import.path.first().map(String::as_str) != Some(name)
            || scope.children.contains_key(name)
        {
            found.extend(places(tree, module, &import.path, depth + 1));
        }
    }
    if !found.is_empty() {
        return found;
    }
    let globs = scope.imports.iter().filter(|import| import.name.is_none());
    for import in globs.filter(|import| import.path.first().is_some_and(|first| first != name)) {
        for place in places(tree, module, &import.path, depth + 1) {
            if let Place::Module(other) = place
                && other != module
            {
                found.extend(named(tree, other, name, depth + 1));
            }
        }
    }
    found
}
