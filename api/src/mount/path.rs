//! Places in the tracer's folder.

use crate::client::ApiPath;

/// The route that the tracer's folder is at.
const ROUTE: &str = "tracefs";
/// The folder of trace instances.
const INSTANCES: &str = "instances";
/// Longest name that there is, in bytes, as Linux's own file systems have it.
const NAME_MAX: usize = 255;

/// A file or folder: names from the top down, with `/` between. None of them leads elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TracePath(String);

impl TracePath {
    /// The tracer's folder itself.
    pub(super) fn root() -> Self {
        Self::default()
    }

    /// Path of that name in this folder. `None` for a name that no file can have: an empty or too
    /// long one, `.`, `..`, or one with `/` or NUL in it.
    pub(super) fn child(&self, name: &str) -> Option<Self> {
        let odd = name.is_empty() || name.len() > NAME_MAX || name == "." || name == "..";
        if odd || name.contains(['/', '\0']) {
            return None;
        }
        Some(Self(if self.0.is_empty() { name.to_owned() } else { format!("{}/{name}", self.0) }))
    }

    /// The folder that it is in, and its name there; `None` of the root.
    pub(super) fn parent(&self) -> Option<(Self, &str)> {
        if self.0.is_empty() {
            return None;
        }
        let (folder, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(folder.to_owned()), name))
    }

    /// Returns true of the folder of trace instances, in which others can be made.
    pub(super) fn has_instances(&self) -> bool {
        self.0 == INSTANCES
    }

    /// Returns true if it is somewhere in a folder.
    pub(super) fn is_in(&self, folder: &Self) -> bool {
        self.0.strip_prefix(&folder.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Where the service has it.
    pub(super) fn api(&self) -> ApiPath {
        let names = self.0.split('/').filter(|name| !name.is_empty());
        ApiPath::new(&[ROUTE].into_iter().chain(names).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> TracePath {
        names.iter().fold(TracePath::root(), |path, name| path.child(name).unwrap())
    }

    #[test]
    fn names_are_encoded_and_stay_in_their_folder() {
        assert_eq!(TracePath::root().api().as_str(), "/v1/tracefs");
        let odd = path(&["events", "a b%2F..", "é?#"]);
        assert_eq!(odd.api().as_str(), "/v1/tracefs/events/a%20b%252F../%C3%A9%3F%23");
        for name in ["", ".", "..", "a/b", "../x", "nul\0"] {
            assert_eq!(TracePath::root().child(name), None, "{name:?}");
        }
        assert!(TracePath::root().child(&"x".repeat(NAME_MAX)).is_some());
        assert_eq!(TracePath::root().child(&"x".repeat(NAME_MAX + 1)), None);
        assert!(TracePath::root().child("...").is_some());
    }

    #[test]
    fn parents_are_the_way_back() {
        assert_eq!(TracePath::root().parent(), None);
        assert_eq!(path(&["trace"]).parent(), Some((TracePath::root(), "trace")));
        let deep = path(&["events", "kprobes", "enable"]);
        assert_eq!(deep.parent(), Some((path(&["events", "kprobes"]), "enable")));
        assert!(deep.is_in(&path(&["events"])) && deep.is_in(&path(&["events", "kprobes"])));
        for other in [path(&["event"]), path(&["events", "kprobe"]), deep.clone()] {
            assert!(!deep.is_in(&other), "{other:?}");
        }
        assert!(path(&["instances"]).has_instances() && !deep.has_instances());
    }
}
