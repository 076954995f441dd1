//! Collects imports and paths from the syntax of one module.

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Macro, Meta, UseTree, Visibility};

use crate::tree::{Import, Module};

/// Does an attribute leave its item out of a build without tests?
fn is_test_only(attribute: &Attribute) -> bool {
    fn needs_test(tokens: TokenStream) -> bool {
        let mut all = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if name == "test" => return true,
                TokenTree::Ident(name) => all = name == "all",
                TokenTree::Group(group) if all => return needs_test(group.stream()),
                _ => all = false,
            }
        }
        false
    }
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => needs_test(list.tokens.clone()),
        _ => false,
    }
}

/// Is an item part of a build without tests?
pub(crate) fn is_built(attributes: &[Attribute]) -> bool {
    !attributes.iter().any(is_test_only)
}

fn name_of(ident: &syn::Ident) -> String {
    ident.unraw().to_string()
}

/// Name that an item declares in its module.
pub(crate) fn declared(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name_of(ident))
}

/// Attributes of an item that may be left out of a build.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Puts what the code of a module mentions into it.
pub(crate) struct Collector<'a> {
    pub(crate) module: &'a mut Module,
}

impl Collector<'_> {
    fn import(&mut self, path: &mut Vec<String>, tree: &UseTree, is_re_export: bool) {
        match tree {
            UseTree::Path(tree) => {
                path.push(name_of(&tree.ident));
                self.import(path, &tree.tree, is_re_export);
                path.pop();
            }
            UseTree::Name(tree) => self.import_name(path, &tree.ident, &tree.ident, is_re_export),
            UseTree::Rename(tree) => {
                self.import_name(path, &tree.ident, &tree.rename, is_re_export)
            }
            UseTree::Glob(_) => {
                self.module.imports.push(Import { path: path.clone(), name: None, is_re_export })
            }
            UseTree::Group(tree) => {
                tree.items.iter().for_each(|tree| self.import(path, tree, is_re_export))
            }
        }
    }

    fn import_name(
        &mut self,
        path: &[String],
        ident: &syn::Ident,
        renamed: &syn::Ident,
        is_re_export: bool,
    ) {
        let mut path = path.to_vec();
        let mut name = name_of(renamed);
        if ident == "self" {
            if renamed == "self" {
                name = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(name_of(ident));
        }
        self.module.imports.push(Import { path, name: Some(name), is_re_export });
    }

    /// Finds paths in tokens that are not parsed: arguments of macros and attributes.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut field = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.mention(std::mem::take(&mut path));
                    }
                    if !field {
                        path.push(name_of(&ident));
                    }
                    (colons, field) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.mention(std::mem::take(&mut path));
                    field = matches!(&other, TokenTree::Punct(punct) if punct.as_char() == '.');
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.scan(group.stream()),
                        TokenTree::Literal(literal) => self.scan_literal(&literal.to_string()),
                        _ => (),
                    }
                }
            }
        }
        self.mention(path);
    }

    /// serde names functions and modules in strings.
    fn scan_literal(&mut self, literal: &str) {
        let Ok(text) = syn::parse_str::<syn::LitStr>(literal) else { return };
        if let Ok(path) = text.parse_with(syn::Path::parse_mod_style)
            && path.segments.len() > 1
        {
            self.mention(path.segments.iter().map(|segment| name_of(&segment.ident)).collect());
        }
    }

    fn mention(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.module.mentions.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(_) => (),
            Item::Use(item) if item.leading_colon.is_none() && is_built(&item.attrs) => {
                let is_re_export = !matches!(item.vis, Visibility::Inherited);
                self.import(&mut Vec::new(), &item.tree, is_re_export);
            }
            Item::Use(_) => (),
            item if is_built(attributes(item)) => visit::visit_item(self, item),
            _ => (),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_built(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(path.segments.iter().map(|segment| name_of(&segment.ident)).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // Links in docstrings are for readers; the code does not need them.
        if attribute.path().is_ident("doc") {
            return;
        }
        match &attribute.meta {
            Meta::List(list) => self.scan(list.tokens.clone()),
            _ => visit::visit_attribute(self, attribute),
        }
    }
}
