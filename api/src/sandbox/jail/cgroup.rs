//! A cgroup of the service's own (cgroup v2), with limits.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::JailError;

/// Where cgroup v2 is mounted: alone, or beside v1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The cgroup that has those of services, each called by its process' number.
const PARENT: &str = "exoprobe";

/// A limit: `FILE=VALUE`, as in `memory.max=1G`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    file: String,
    value: String,
}

impl Setting {
    fn controller(&self) -> &str {
        self.file.split('.').next().unwrap_or_default()
    }

    fn refused(&self, reason: impl fmt::Display) -> JailError {
        JailError::Cgroup { setting: self.to_string(), reason: reason.to_string() }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.file, self.value)
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "give FILE=VALUE, as in memory.max=1G";
        let (file, value) = text.split_once('=').ok_or(FORM)?;
        let is_word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        if !file.contains('.') || !file.split('.').all(is_word) {
            return Err(format!("`{file}` is no file of a controller: {FORM}"));
        }
        if file.starts_with("cgroup.") {
            return Err(format!("`{file}` is no limit: {FORM}"));
        }
        if value.is_empty() || value.contains(char::is_control) {
            return Err(format!("`{file}` needs a value in one line: {FORM}"));
        }
        Ok(Self { file: file.to_owned(), value: value.to_owned() })
    }
}

/// Makes a cgroup with these limits and moves the process there. Those of services that ended are
/// removed.
///
/// # Errors
/// [`JailError::Cgroup`]
pub(super) fn join(settings: &[Setting]) -> Result<(), JailError> {
    let Some(first) = settings.first() else { return Ok(()) };
    let is_v2 = |mount: &&Path| mount.join("cgroup.controllers").exists();
    let mount = MOUNTS.map(Path::new).into_iter().find(is_v2);
    let mount = mount.ok_or_else(|| first.refused("cgroup v2 is not mounted"))?;
    join_in(mount, settings, std::process::id())
}

fn join_in(mount: &Path, settings: &[Setting], pid: u32) -> Result<(), JailError> {
    let Some(first) = settings.first() else { return Ok(()) };
    let failed =
        |path: &Path, error: &io::Error| first.refused(format!("{}: {error}", path.display()));
    let file = mount.join("cgroup.controllers");
    let controllers = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
    let parent = mount.join(PARENT);
    make(&parent).map_err(|error| failed(&parent, &error))?;
    for setting in settings {
        let controller = setting.controller();
        if !controllers.split_whitespace().any(|it| it == controller) {
            let has = controllers.trim();
            return Err(setting.refused(format!(
                "{} has no controller `{controller}` (it has: {has})",
                mount.display()
            )));
        }
        for level in [mount, &parent] {
            let file = level.join("cgroup.subtree_control");
            fs::write(&file, format!("+{controller}"))
                .map_err(|error| setting.refused(format!("{}: {error}", file.display())))?;
        }
    }
    remove_ended(&parent);
    let own: PathBuf = parent.join(pid.to_string());
    make(&own).map_err(|error| failed(&own, &error))?;
    for setting in settings {
        let file = own.join(&setting.file);
        // Never made: a controller has it, or it is no file of one.
        let opened = fs::OpenOptions::new().write(true).open(&file);
        opened
            .and_then(|mut opened| io::Write::write_all(&mut opened, setting.value.as_bytes()))
            .map_err(|error| setting.refused(format!("{}: {error}", file.display())))?;
    }
    let file = own.join("cgroup.procs");
    fs::write(&file, "0").map_err(|error| failed(&file, &error))
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes cgroups of processes that are no more; what cannot be removed is left.
fn remove_ended(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_number = name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        if is_number && !Path::new("/proc").join(&name).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_file_of_a_controller_and_a_value() {
        let setting: Setting = "memory.max=1G".parse().unwrap();
        assert_eq!((setting.controller(), &*setting.to_string()), ("memory", "memory.max=1G"));
        let io: Setting = "io.max=8:0 rbps=1".parse().unwrap();
        assert_eq!((&*io.file, &*io.value), ("io.max", "8:0 rbps=1"));
        "hugetlb.2MB.max=0".parse::<Setting>().unwrap();
        for (text, reason) in [
            ("memory.max", "give FILE=VALUE"),
            ("memory=1", "`memory` is no file"),
            ("../memory.max=1", "`../memory.max` is no file"),
            ("memory..max=1", "no file"),
            ("/memory.max=1", "no file"),
            ("cgroup.procs=1", "`cgroup.procs` is no limit"),
            ("memory.max=", "needs a value"),
            ("memory.max=1\n2", "in one line"),
        ] {
            let error = text.parse::<Setting>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    /// A folder in place of cgroup v2: what is written where can be seen in it.
    #[test]
    fn controllers_are_switched_on_on_the_way_and_the_process_moves_last() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        fs::write(mount.join("cgroup.controllers"), "cpu memory\n").unwrap();
        let own = mount.join("exoprobe/4294967290");
        let ended = mount.join("exoprobe/4294967291");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&ended).unwrap();
        fs::create_dir_all(mount.join("exoprobe/kept")).unwrap();
        fs::write(own.join("memory.max"), "").unwrap();
        let setting = |text: &str| text.parse::<Setting>().unwrap();
        let error = join_in(mount, &[setting("io.max=1")], 4_294_967_290).unwrap_err().to_string();
        assert!(error.contains("no controller `io` (it has: cpu memory)"), "{error}");
        let error = join_in(mount, &[setting("memory.mox=1")], 4_294_967_290).unwrap_err();
        assert!(error.to_string().contains("--cgroup memory.mox=1: "), "{error}");
        assert!(!own.join("memory.mox").exists() && !own.join("cgroup.procs").exists());
        join_in(mount, &[setting("memory.max=1G")], 4_294_967_290).unwrap();
        let read = |path: &str| fs::read_to_string(mount.join(path)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory");
        assert_eq!(read("exoprobe/cgroup.subtree_control"), "+memory");
        assert_eq!(read("exoprobe/4294967290/memory.max"), "1G");
        assert_eq!(read("exoprobe/4294967290/cgroup.procs"), "0");
        assert!(!ended.exists() && mount.join("exoprobe/kept").exists());
    }
}
