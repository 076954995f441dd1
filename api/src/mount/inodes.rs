//! Numbers of files and folders.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use fuser::INodeNo;

use super::path::TracePath;

/// Paths by inode number. A number comes from its path, so that it is the same each time,
/// and is kept until the kernel forgets it.
pub(super) struct Inodes {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<TracePath, u64>,
    hash: fn(&TracePath) -> u64,
}

struct Node {
    path: TracePath,
    /// The kernel's references to it.
    lookups: u64,
}

impl Inodes {
    pub(super) fn new() -> Self {
        Self::with_hash(|path| {
            let mut hasher = DefaultHasher::new();
            path.hash(&mut hasher);
            hasher.finish()
        })
    }

    fn with_hash(hash: fn(&TracePath) -> u64) -> Self {
        Self { nodes: HashMap::new(), numbers: HashMap::new(), hash }
    }

    /// The path that has that number; `None` when the kernel has forgotten it.
    pub(super) fn path(&self, number: INodeNo) -> Option<TracePath> {
        if number == INodeNo::ROOT {
            return Some(TracePath::root());
        }
        self.nodes.get(&number.0).map(|node| node.path.clone())
    }

    /// The number of a path, without a reference of the kernel's.
    pub(super) fn number(&self, path: &TracePath) -> INodeNo {
        if *path == TracePath::root() {
            return INodeNo::ROOT;
        }
        if let Some(known) = self.numbers.get(path) {
            return INodeNo(*known);
        }
        let mut number = (self.hash)(path);
        // 0 is none, and 1 the root.
        while number <= INodeNo::ROOT.0 || self.nodes.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        INodeNo(number)
    }

    /// The number of a path, with a reference that the kernel will drop.
    pub(super) fn look_up(&mut self, path: &TracePath) -> INodeNo {
        let number = self.number(path);
        if number != INodeNo::ROOT {
            let node = Node { path: path.clone(), lookups: 0 };
            self.nodes.entry(number.0).or_insert(node).lookups += 1;
            self.numbers.insert(path.clone(), number.0);
        }
        number
    }

    /// Drops `lookups` of the kernel's references.
    pub(super) fn forget(&mut self, number: INodeNo, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number.0) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            self.numbers.remove(&node.path);
            self.nodes.remove(&number.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> TracePath {
        TracePath::root().child(name).unwrap()
    }

    #[test]
    fn a_number_is_the_same_each_time_and_goes_when_it_is_forgotten() {
        let mut inodes = Inodes::new();
        let number = inodes.number(&path("trace"));
        assert_eq!(inodes.path(number), None, "no reference yet");
        assert_eq!(inodes.look_up(&path("trace")), number);
        assert_eq!(inodes.look_up(&path("trace")), number);
        assert_ne!(inodes.look_up(&path("events")), number);
        inodes.forget(number, 1);
        assert_eq!(inodes.path(number), Some(path("trace")));
        inodes.forget(number, 1);
        assert_eq!(inodes.path(number), None);
        assert_eq!(inodes.number(&path("trace")), number);
        assert_eq!((inodes.nodes.len(), inodes.numbers.len()), (1, 1));
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let mut inodes = Inodes::new();
        assert_eq!(inodes.look_up(&TracePath::root()), INodeNo::ROOT);
        inodes.forget(INodeNo::ROOT, 5);
        assert_eq!(inodes.path(INodeNo::ROOT), Some(TracePath::root()));
        assert!(inodes.nodes.is_empty());
    }

    #[test]
    fn paths_of_one_hash_have_numbers_of_their_own_and_keep_them() {
        let mut inodes = Inodes::with_hash(|_| 0);
        let (a, b) = (inodes.look_up(&path("a")), inodes.look_up(&path("b")));
        assert_eq!((a, b), (INodeNo(2), INodeNo(3)));
        inodes.forget(a, 1);
        assert_eq!(inodes.look_up(&path("b")), b, "though the other place is free now");
        assert_eq!(inodes.path(b), Some(path("b")));
    }
}
