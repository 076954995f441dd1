//! Jailed services, and the files that they need.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use exoprobe_tests::http::{Answer, request};
use exoprobe_tests::{PATIENCE, Service, TestGuest, exoprobe, finish, guest_file};

/// An ordinary user and group.
pub(crate) const USER: u32 = 65534;
/// The group that has `/dev/kvm`, in the tests' own folder.
pub(crate) const KVM_GROUP: u32 = 65500;

/// A folder that all users can read, with the program, the tiny guest's snapshot and files, and a
/// KVM device for a group.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let place = Self { dir };
        place.copy(Path::new(exoprobe().get_program()), "exoprobe", 0o755);
        place.copy(&TestGuest::snapshot(1), "snapshot", 0o644);
        place.copy(&guest_file("vmlinux"), "vmlinux", 0o644);
        place.copy(&guest_file("initramfs.cpio"), "initramfs.cpio", 0o644);
        place
    }

    fn copy(&self, from: &Path, name: &str, mode: u32) {
        fs::copy(from, self.path(name)).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// A file that the ordinary user owns.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().write_all(content).unwrap();
        chown(&path, Some(USER), Some(USER)).unwrap();
        path
    }

    /// A folder of the ordinary user's, closed to others.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(USER), Some(USER)).unwrap();
        path
    }

    /// `exoprobe run` of the tiny guest, restored, which may be rebooted.
    pub(crate) fn run(&self, program: &mut Command, args: &[&str]) {
        let [snapshot, kernel, initramfs] =
            ["snapshot", "vmlinux", "initramfs.cpio"].map(|name| self.text(name));
        program.args(["run", "--restore", &snapshot, "--kernel", &kernel]);
        program.args(["--initramfs", &initramfs]).args(args);
    }

    /// The program as the ordinary user, in the group that has the folder's own KVM device. Runs
    /// `mknod` and `setpriv`, which the lab lacks, as it lacks a shell.
    pub(crate) fn as_user(&self, args: &[&str]) -> Command {
        let kvm = self.text("kvm");
        if !self.path("kvm").exists() {
            let made = ["-m", "660", &kvm, "c", "10", "232"];
            assert!(finish(Command::new("mknod").args(made), PATIENCE).status.success());
            chown(&kvm, Some(0), Some(KVM_GROUP)).unwrap();
        }
        let mut command = Command::new("setpriv");
        let [user, group] = [USER, KVM_GROUP].map(|id| id.to_string());
        command.args(["--reuid", &user, "--regid", &user, "--groups", &group]);
        command.arg(self.path("exoprobe"));
        self.run(&mut command, &[&["--kvm", &*kvm][..], args].concat());
        command
    }

    /// Starts root's service, jailed in the folder `jail` as the ordinary user.
    pub(crate) fn jailed(&self, args: &[&str]) -> Service {
        let mut command = exoprobe();
        let (folder, user) = (self.text("jail"), USER.to_string());
        let jail = ["--jail", &folder, "--uid", &user, "--gid", &user];
        self.run(&mut command, &[&jail[..], args].concat());
        Service::started_by(&mut command, &self.path("jail/exoprobe.sock"))
    }

    /// The messages of root's service, which must not start in the folder `jail`.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let mut command = exoprobe();
        self.run(&mut command, args);
        refusal(&mut command)
    }

    /// The same of a guest that is booted, not restored.
    pub(crate) fn refused_at_boot(&self, args: &[&str]) -> String {
        let mut command = exoprobe();
        command.args(["run", "--kernel", &self.text("vmlinux")]).args(args);
        refusal(&mut command)
    }
}

/// The messages of a command, which must fail.
pub(crate) fn refusal(command: &mut Command) -> String {
    let output = finish(command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} was taken: {text}");
    text
}

/// Has a service write a snapshot or a dump (`what`).
pub(crate) fn write(service: &Service, what: &str, path: &Path) -> Answer {
    let body = serde_json::json!({ "path": path }).to_string();
    let mut stream = UnixStream::connect(service.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let headers = ["content-type: application/json"];
    let path = format!("/v1/vm/{what}");
    stream.write_all(&request("POST", &path, &headers, body.as_bytes())).unwrap();
    Answer::read(stream)
}

/// All that can be reached by a path in a service's root: files, and folders without content.
pub(crate) fn reachable(service: &Service) -> Vec<String> {
    let root = PathBuf::from(format!("/proc/{}/root", service.pid()));
    let mut found = Vec::new();
    let mut ahead = vec![root.clone()];
    while let Some(folder) = ahead.pop() {
        let entries: Vec<_> = fs::read_dir(&folder).unwrap().map(Result::unwrap).collect();
        let shown = || format!("/{}", folder.strip_prefix(&root).unwrap().display());
        if entries.is_empty() {
            found.push(shown());
        }
        for entry in entries {
            match entry.file_type().unwrap().is_dir() {
                true => ahead.push(entry.path()),
                false => {
                    let path = entry.path();
                    found.push(format!("/{}", path.strip_prefix(&root).unwrap().display()));
                }
            }
        }
    }
    found.sort();
    found
}
