//! The parts of a run: the host kernel and our programs, linked statically.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{LabError, at};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A program of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// Cargo's kind of its target: `bin`, `test` or `bench`.
    pub(crate) kind: &'static str,
    pub(crate) name: &'static str,
}

/// Process 1 of the lab.
pub(crate) const INIT: Program = Program { kind: "bin", name: "lab-init" };

/// Root of the checkout.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Runs a program whose standard output is its answer and whose messages are for the user.
fn answer(program: &'static str, command: &mut Command) -> Result<String, LabError> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| LabError::Start { program, source })?;
    if !output.status.success() {
        return Err(LabError::Failed { program, how: output.status.to_string() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The Linux of the lab's host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HostKernel {
    /// Of most machines.
    Diskless,
    /// With drivers of a second disk.
    WithDisk,
}

impl HostKernel {
    /// Its bzImage, built at the first use.
    pub(crate) fn image(self) -> Result<PathBuf, LabError> {
        let (name, configs): (_, &[_]) = match self {
            Self::Diskless => ("lab-host", &["host-kernel.config"]),
            Self::WithDisk => ("lab-host-disk", &["host-kernel.config", "host-disk.config"]),
        };
        let root = root();
        let mut script = Command::new(root.join("scripts/kernel.sh"));
        script.args([name, "linux-source-6.1"]);
        script.args(configs.iter().map(|config| root.join("tests/lab").join(config)));
        let folder = answer("scripts/kernel.sh", &mut script)?;
        Ok(Path::new(folder.trim_end()).join("bzImage"))
    }
}

/// The emulator, built at the first use.
pub(crate) fn bochs() -> Result<PathBuf, LabError> {
    let mut script = Command::new(root().join("scripts/bochs.sh"));
    let program = answer("scripts/bochs.sh", &mut script)?;
    Ok(PathBuf::from(program.trim_end()))
}

/// The kernel of a package of Debian's, of the version that apt offers, and the modules that its
/// virtio devices need; kept in the cache.
pub(crate) fn debian_kernel(package: &str) -> Result<[(&'static str, PathBuf); 2], LabError> {
    let mut script = Command::new(root().join("scripts/debian-kernel.sh"));
    let file = answer("scripts/debian-kernel.sh", script.arg(package))?;
    let kernel = PathBuf::from(file.trim_end());
    let modules = kernel.with_file_name("modules.cpio");
    Ok([("guest/out/stock/bzImage", kernel), ("guest/out/stock/modules.cpio", modules)])
}

/// The tools of Debian's package bpftrace, each where the package has it.
///
/// # Errors
/// [`LabError::Package`] without that package.
pub(crate) fn bpftrace_tools() -> Result<Vec<(String, PathBuf)>, LabError> {
    let folder = Path::new("/usr/sbin");
    let entries = folder.read_dir().map_err(at(folder))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut tools = paths.map_err(at(folder))?;
    tools.retain(|path| path.extension().is_some_and(|extension| extension == "bt"));
    if tools.is_empty() {
        let (path, source) = (folder.join("opensnoop.bt"), std::io::ErrorKind::NotFound.into());
        return Err(LabError::Package { path, source });
    }
    let name = |path: &Path| path.display().to_string().trim_start_matches('/').to_owned();
    Ok(tools.into_iter().map(|path| (name(&path), path)).collect())
}

/// Builds programs in one go, as `make test` does: for the same target, with the features of the
/// whole workspace, so that one build serves here and in the lab. Writes them without symbols,
/// which the initramfs need not carry, into the folder `to`.
pub(crate) fn build(
    programs: &BTreeSet<Program>,
    profile: &str,
    to: &Path,
) -> Result<(), LabError> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root()).args(["build", "--locked", "--workspace"]);
    for Program { kind, name } in programs {
        cargo.args([&format!("--{kind}"), *name]);
    }
    cargo
        .args(["--profile", profile, "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let messages = answer("cargo build", &mut cargo)?;
    std::fs::create_dir_all(to).map_err(at(to))?;
    for Program { kind, name } in programs {
        let built = executable(&messages, kind, name).ok_or(LabError::NoProgram(name))?;
        answer("strip", Command::new("strip").arg("-o").arg(to.join(name)).arg(built))?;
    }
    Ok(())
}

/// Path of the executable of a target, from cargo's messages. That of a program's unit tests is
/// another.
fn executable(messages: &str, kind: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let is_wanted = message["reason"] == "compiler-artifact"
            && target["name"] == name
            && target["kind"][0] == kind
            && (kind != "bin" || message["profile"]["test"] == false);
        if !is_wanted {
            return None;
        }
        message["executable"].as_str().map(PathBuf::from)
    })
}

/// The guest's files as [`crate::image::Contents`]: what `make guest` built.
pub(crate) fn guest_files() -> Result<Vec<(&'static str, PathBuf)>, LabError> {
    let guest = root().join("guest");
    let files = [
        ("guest/cmdline", "cmdline"),
        ("guest/out/vmlinux", "out/vmlinux"),
        ("guest/out/bzImage", "out/bzImage"),
        ("guest/out/System.map", "out/System.map"),
        ("guest/out/vmlinux.btf", "out/vmlinux.btf"),
        ("guest/out/initramfs.cpio", "out/initramfs.cpio"),
        ("guest/out/tiny-6.12/bzImage", "out/tiny-6.12/bzImage"),
        ("guest/out/tiny-6.12/System.map", "out/tiny-6.12/System.map"),
        ("guest/out/tiny-6.12/initramfs.cpio", "out/tiny-6.12/initramfs.cpio"),
    ];
    let mut found = Vec::new();
    // Only for the counts of the guest's own event.
    let own_event = guest.join("out/kprobe-events/vmlinux");
    if own_event.exists() {
        found.push(("guest/out/kprobe-events/vmlinux", own_event));
    }
    for (name, file) in files {
        let path = guest.join(file);
        std::fs::metadata(&path).map_err(at(&path))?;
        found.push((name, path));
    }
    Ok(found)
}

/// The files of Debian's QEMU, which run side by side; fetched at the first use.
pub(crate) fn qemu() -> Result<Vec<PathBuf>, LabError> {
    let mut script = Command::new(root().join("scripts/qemu.sh"));
    let folder = answer("scripts/qemu.sh", &mut script)?;
    let folder = PathBuf::from(folder.trim_end());
    let entries = std::fs::read_dir(&folder).map_err(at(&folder))?;
    let mut files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(at(&folder))?;
    files.sort();
    Ok(files)
}

/// The folder of Debian's image, built at the first use: `disk.raw`, `vmlinuz` and `initrd.img`.
pub(crate) fn debian_image() -> Result<PathBuf, LabError> {
    let mut script = Command::new(root().join("scripts/debian-image.sh"));
    let folder = answer("scripts/debian-image.sh", &mut script)?;
    Ok(PathBuf::from(folder.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let artifact = |kind: &str, test: bool, path: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "target": {"name": "counts", "kind": [kind]},
                "profile": {"test": test},
                "executable": path,
            })
        };
        let messages = [artifact("bin", true, "/t/1"), artifact("bin", false, "/t/2")];
        let bench = artifact("bench", true, "/t/3");
        let messages = format!("not json\n{}\n{}\n{bench}\n", messages[0], messages[1]);
        let find = |kind, name| executable(&messages, kind, name);
        assert_eq!(find("bin", "counts"), Some(PathBuf::from("/t/2")));
        assert_eq!(find("bench", "counts"), Some(PathBuf::from("/t/3")));
        assert_eq!((find("test", "counts"), find("bin", "lab-init")), (None, None));
    }
}
