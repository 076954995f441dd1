//! The modules of a crate: names that each declares and imports, and paths that its code uses.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Index into [`Tree::modules`].
pub(crate) type ModuleId = usize;
/// Index into [`Tree::files`].
pub(crate) type FileId = usize;

/// A `use` of one name, or of all names of a module.
pub(crate) struct Import {
    /// Segments as written: `crate`, `super`, ...
    pub(crate) path: Vec<String>,
    /// Name in the importing module; `None` for a glob.
    pub(crate) name: Option<String>,
    /// Other modules see the name, so the import may be there only for them.
    pub(crate) is_re_export: bool,
}

/// One module, in a file of its own or inline.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) parent: Option<ModuleId>,
    pub(crate) file: FileId,
    pub(crate) children: HashMap<String, ModuleId>,
    pub(crate) items: HashSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths in code, as written.
    pub(crate) mentions: HashSet<Vec<String>>,
}

/// A crate. The first module is its root.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) modules: Vec<Module>,
}
