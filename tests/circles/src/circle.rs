//! Circles: sets of files each of which needs, by way of others, each other one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::resolve::resolve;
use crate::tree::{FileId, Tree};

/// Which file imports which names of which other file.
pub(crate) struct Imports<'a> {
    files: &'a [PathBuf],
    names: BTreeMap<(FileId, FileId), BTreeSet<String>>,
}

/// Files that import each other in a circle, and the names that tie them.
pub(crate) struct Circle {
    names: BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>,
}

impl<'a> Imports<'a> {
    /// Resolves all imports and paths of a crate.
    pub(crate) fn of(tree: &'a Tree) -> Imports<'a> {
        let mut names: BTreeMap<(FileId, FileId), BTreeSet<String>> = BTreeMap::new();
        for (id, module) in tree.modules.iter().enumerate() {
            let imports = module.imports.iter().filter(|import| !import.is_re_export);
            let imports = imports.map(|import| &import.path);
            for path in imports.chain(&module.mentions) {
                for declaration in resolve(tree, id, path) {
                    if declaration.file != module.file {
                        let edge = (module.file, declaration.file);
                        names.entry(edge).or_default().insert(declaration.name);
                    }
                }
            }
        }
        Imports { files: &tree.files, names }
    }

    /// Finds the circles among the files.
    pub(crate) fn circles(&self) -> Vec<Circle> {
        let graph: DiGraphMap<FileId, ()> = self.names.keys().copied().collect();
        let sets = tarjan_scc(&graph).into_iter().filter(|set| set.len() > 1);
        let mut circles: Vec<Circle> = sets
            .map(|set| {
                let inside = |file| set.contains(&file);
                let ties = self.names.iter().filter(|((from, to), _)| inside(*from) && inside(*to));
                let path = |file: FileId| self.files[file].clone();
                Circle {
                    names: ties
                        .map(|(&(from, to), names)| ((path(from), path(to)), names.clone()))
                        .collect(),
                }
            })
            .collect();
        circles.sort_by(|one, other| one.names.keys().cmp(other.names.keys()));
        circles
    }
}

impl Circle {
    /// The files of the circle, in order of their paths.
    pub(crate) fn files(&self) -> BTreeSet<&Path> {
        self.names.keys().map(|(from, _)| from.as_path()).collect()
    }
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "circle of {} files:", self.files().len())?;
        for file in self.files() {
            writeln!(f, "    {}", file.display())?;
        }
        for ((from, to), names) in &self.names {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            writeln!(f, "  {} -> {}: {}", from.display(), to.display(), names.join(", "))?;
        }
        Ok(())
    }
}
