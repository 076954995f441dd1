//! Reads a crate from its root file, following `mod` declarations.

use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::collect::{Collector, attributes, declared, is_built};
use crate::error::CheckError;
use crate::tree::{Module, ModuleId, Tree};

/// Reads a crate. Modules that exist only in builds for tests are left out.
pub(crate) fn read(root: &Path) -> Result<Tree, CheckError> {
    let mut tree = Tree::default();
    let folder = root.parent().unwrap_or(Path::new("")).to_owned();
    read_file(&mut tree, None, root, &folder)?;
    Ok(tree)
}

/// `folder`: where files of the module's children are.
fn read_file(
    tree: &mut Tree,
    parent: Option<ModuleId>,
    path: &Path,
    folder: &Path,
) -> Result<ModuleId, CheckError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| CheckError::Read { path: path.to_owned(), source })?;
    let syntax = syn::parse_file(&text)
        .map_err(|source| CheckError::Parse { path: path.to_owned(), source })?;
    tree.files.push(path.to_owned());
    let module = Module { parent, file: tree.files.len() - 1, ..Module::default() };
    read_module(tree, module, &syntax.items, folder)
}

fn read_module(
    tree: &mut Tree,
    mut module: Module,
    items: &[Item],
    folder: &Path,
) -> Result<ModuleId, CheckError> {
    let built = || items.iter().filter(|item| is_built(attributes(item)));
    for item in built() {
        module.items.extend(declared(item));
        Collector { module: &mut module }.visit_item(item);
    }
    let id = tree.modules.len();
    let file = module.file;
    tree.modules.push(module);
    for item in built() {
        let Item::Mod(item) = item else { continue };
        let name = item.ident.to_string();
        let inner = folder.join(&name);
        let child = if let Some((_, items)) = &item.content {
            let module = Module { parent: Some(id), file, ..Module::default() };
            read_module(tree, module, items, &inner)?
        } else {
            let path = file_of(&tree.files[file], item, folder)?;
            read_file(tree, Some(id), &path, &inner)?
        };
        tree.modules[id].children.insert(name, child);
    }
    Ok(id)
}

/// File of a `mod name;`: by its `#[path]`, or `name.rs`, or `name/mod.rs`.
fn file_of(declaring: &Path, item: &ItemMod, folder: &Path) -> Result<PathBuf, CheckError> {
    let name = item.ident.to_string();
    let given = item.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
                Some(declaring.with_file_name(text.value()))
            }
            _ => None,
        },
        _ => None,
    });
    let usual = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
    given
        .into_iter()
        .chain(usual)
        .find(|path| path.is_file())
        .ok_or_else(|| CheckError::NoModule { file: declaring.to_owned(), module: name })
}
