//! The tracer's folder: files by their paths, and the trace instances in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exoprobe_probes::Engine;

use crate::error::TracerError;
use crate::instance::Instance;
use crate::node::{EventFile, Node, NodeKind, split_instance};
use crate::readers::{KeptEvents, LinesReader, Pipe, RawPipe};

/// Most instances: each looks at every hit of its events.
const INSTANCES_MAX: usize = 64;
/// Memory for events of a new instance, in bytes for each vCPU: as many as in the kernel.
const INSTANCE_BYTES: usize = 1408 << 10;
/// Longest name of an instance, in bytes, as Linux's own file systems have it.
const NAME_MAX: usize = 255;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: NodeKind,
}

/// The tracer of one guest.
pub struct Tracer {
    top: Arc<Instance>,
    vcpus: usize,
    /// Those of the folder `instances`, by name.
    instances: Mutex<BTreeMap<String, Arc<Instance>>>,
}

impl Tracer {
    /// Of a guest with so many vCPUs. All events that come from now on are kept.
    #[must_use]
    pub fn new(engine: Arc<Engine>, vcpus: usize) -> Self {
        let top = Arc::new(Instance::top(engine, vcpus));
        Self { top, vcpus, instances: Mutex::default() }
    }

    /// The engine that it is over.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        self.top.engine()
    }

    fn instances(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Instance>>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance that a path is in, and the path within it.
    fn at(&self, path: &str) -> Result<(Arc<Instance>, String), TracerError> {
        let Some((name, rest)) = split_instance(path) else {
            return Ok((Arc::clone(&self.top), path.to_owned()));
        };
        match self.instances().get(name) {
            Some(instance) => Ok((Arc::clone(instance), rest)),
            None => Err(no_instance(name)),
        }
    }

    /// Entries of a folder; `None` of a file.
    ///
    /// # Errors
    /// [`TracerError`], `ENOENT`.
    pub fn list(&self, path: &str) -> Result<Option<Vec<Item>>, TracerError> {
        let (of, path) = self.at(path)?;
        if of.find(&path)? == Node::Instances {
            let folder = |name: &String| Item { name: name.clone(), kind: NodeKind::Directory };
            return Ok(Some(self.instances().keys().map(folder).collect()));
        }
        let entries = of.list(&path)?;
        Ok(entries.map(|all| all.into_iter().map(|(name, kind)| Item { name, kind }).collect()))
    }

    /// Returns true for the path of a trace instance, whether or not it is there.
    #[must_use]
    pub fn is_instance(path: &str) -> bool {
        split_instance(path).is_some_and(|(_, rest)| rest.is_empty())
    }

    /// Makes a trace instance: a folder in `instances`.
    ///
    /// # Errors
    /// [`TracerError`]: `EEXIST`; `EPERM` elsewhere; `ENOENT` where there is no folder for it;
    /// `EINVAL`, `ENAMETOOLONG` for its name; `ENOMEM`.
    pub fn make_folder(&self, path: &str) -> Result<(), TracerError> {
        if self.at(path).and_then(|(of, path)| of.find(&path)).is_ok() {
            return Err(TracerError::new("EEXIST", format!("there is a `{path}` already")));
        }
        let name = match split_instance(path) {
            Some((name, rest)) if rest.is_empty() => name,
            _ => return Err(self.no_folder_at(path)),
        };
        if name == "." || name == ".." || name.contains('\0') {
            return Err(TracerError::new("EINVAL", "no folder can have this name"));
        }
        if name.len() > NAME_MAX {
            let message = format!("a name has at most {NAME_MAX} bytes");
            return Err(TracerError::new("ENAMETOOLONG", message));
        }
        let mut instances = self.instances();
        if instances.contains_key(name) {
            return Err(TracerError::new("EEXIST", format!("there is a `{path}` already")));
        }
        if instances.len() >= INSTANCES_MAX {
            let message = format!("there are {INSTANCES_MAX} instances, and may be no more");
            return Err(TracerError::new("ENOMEM", message));
        }
        let own = self.engine().add_instance(INSTANCE_BYTES * self.vcpus.max(1))?;
        let new = self.top.of(own, format!("instances/{name}/"));
        instances.insert(name.to_owned(), Arc::new(new));
        Ok(())
    }

    /// Why a folder cannot be made at a path that is none of an instance.
    fn no_folder_at(&self, path: &str) -> TracerError {
        let above = path.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above);
        match self.list(above) {
            Ok(Some(_)) => {
                TracerError::new("EPERM", "folders are made in the folder `instances` alone")
            }
            Ok(None) => TracerError::new("ENOTDIR", format!("`{above}` is no folder")),
            Err(error) => error,
        }
    }

    /// Removes a trace instance, with its events.
    ///
    /// # Errors
    /// [`TracerError`]: `ENOENT`; `EPERM` of another folder, `ENOTDIR` of a file; `EBUSY` while one
    /// of its files `trace_pipe` or `trace_pipe_raw` is read, and, as in the kernel, while one of
    /// its histograms has variables.
    pub fn remove_folder(&self, path: &str) -> Result<(), TracerError> {
        let name = match split_instance(path) {
            Some((name, rest)) if rest.is_empty() => name,
            _ => {
                return Err(match self.list(path)? {
                    Some(_) => TracerError::new("EPERM", "this folder cannot be removed"),
                    None => TracerError::new("ENOTDIR", format!("`{path}` is no folder")),
                });
            }
        };
        let mut instances = self.instances();
        let found = instances.get(name).ok_or_else(|| no_instance(name))?;
        if found.is_waited_for() {
            return Err(TracerError::new("EBUSY", "its events are being read: end that first"));
        }
        if let Some(own) = found.scope().own {
            if self.engine().has_variables_in(own) {
                let message = "a histogram in it has variables: remove that first";
                return Err(TracerError::new("EBUSY", message));
            }
            self.engine().remove_instance(own)?;
        }
        instances.remove(name);
        Ok(())
    }

    /// The events of a trace instance, by its name; without one, those of the tracer's own folder.
    ///
    /// # Errors
    /// [`TracerError`], `ENOENT`.
    pub fn events(&self, instance: Option<&str>) -> Result<KeptEvents, TracerError> {
        let Some(name) = instance else { return Ok(self.top.events()) };
        // Taken under the lock: it cannot go meanwhile.
        self.instances().get(name).map(|found| found.events()).ok_or_else(|| no_instance(name))
    }

    /// A reader of a file that has no end, whose readers wait for what comes.
    #[must_use]
    pub fn pipe(&self, path: &str) -> Option<Pipe> {
        self.waiting(path, |of, path| of.pipe(path))
    }

    /// A reader of a file that has pages of the ring buffer.
    #[must_use]
    pub fn raw_pipe(&self, path: &str) -> Option<RawPipe> {
        self.waiting(path, |of, path| of.raw_pipe(path))
    }

    /// Opens a file that is waited for. Its instance cannot go meanwhile.
    fn waiting<T>(
        &self,
        path: &str,
        open: impl FnOnce(&Arc<Instance>, &str) -> Option<T>,
    ) -> Option<T> {
        let Some((name, rest)) = split_instance(path) else { return open(&self.top, path) };
        let instances = self.instances();
        open(instances.get(name)?, &rest)
    }

    /// A reader of a file `trace` or `hist`, or of a snapshot, with the lines that come before it;
    /// `None` of other files, for [`Self::read`].
    #[must_use]
    pub fn open_lines(&self, path: &str) -> Option<(String, LinesReader)> {
        let (of, path) = self.at(path).ok()?;
        of.open_lines(&path)
    }

    /// Returns true for a file `hist`. Its reader keeps the entries that it shows, also those that
    /// were cleared meanwhile.
    #[must_use]
    pub fn is_histogram(&self, path: &str) -> bool {
        let found = self.at(path).and_then(|(of, path)| of.find(&path));
        matches!(found, Ok(Node::OfEvent(_, _, EventFile::Hist)))
    }

    /// The text of a file as it is now.
    ///
    /// # Errors
    /// [`TracerError`]: `ENOENT`, `EISDIR`, and what the engine says.
    pub fn read(&self, path: &str) -> Result<String, TracerError> {
        let (of, path) = self.at(path)?;
        of.read(&path, || self.tasks())
    }

    /// The tasks of all events that are kept. One of several names has that of the top's events.
    fn tasks(&self) -> BTreeMap<u32, String> {
        let instances: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        let of_instances = instances.iter().flat_map(|instance| instance.tasks());
        of_instances.chain(self.top.tasks()).collect()
    }

    /// Opens a file for writing from its begin (O_TRUNC), as a shell's `>` does.
    ///
    /// # Errors
    /// [`TracerError`]: `ENOENT`, `EISDIR`, `EACCES`, `EBUSY`.
    pub fn truncate(&self, path: &str) -> Result<(), TracerError> {
        let (of, path) = self.at(path)?;
        of.truncate(&path)
    }

    /// Writes to a file: all of a text, as one write.
    ///
    /// # Errors
    /// [`TracerError`], as the file says; what came before a fault stays.
    pub fn write(&self, path: &str, text: &str) -> Result<(), TracerError> {
        let (of, path) = self.at(path)?;
        of.write(&path, text)
    }
}

impl Drop for Tracer {
    /// Disables the events of its instances.
    fn drop(&mut self) {
        for instance in self.instances().values() {
            if let Some(own) = instance.scope().own {
                // An error is of a place that the guest has rewritten.
                let _ = self.engine().remove_instance(own);
            }
        }
    }
}

fn no_instance(name: &str) -> TracerError {
    TracerError::new("ENOENT", format!("there is no instance `{name}`"))
}
