//! The parts of a run: the host kernel and our programs, linked statically.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{LabError, at};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const CLOUD_PACKAGE: &str = "linux-image-cloud-amd64";

/// Our programs, built for the lab.
pub(crate) struct Programs {
    pub(crate) init: PathBuf,
    pub(crate) exoprobe: PathBuf,
    pub(crate) embed: PathBuf,
    pub(crate) count_getpid: PathBuf,
    pub(crate) tests: PathBuf,
    pub(crate) counts: PathBuf,
}

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

/// The bzImage of the lab's host, built at the first use.
pub(crate) fn host_kernel() -> Result<PathBuf, LabError> {
    let root = root();
    let mut script = Command::new(root.join("scripts/kernel.sh"));
    script.args(["lab-host", "linux-source-6.1"]).arg(root.join("tests/lab/host-kernel.config"));
    let folder = answer("scripts/kernel.sh", &mut script)?;
    Ok(Path::new(folder.trim_end()).join("bzImage"))
}

/// The emulator, built at the first use.
pub(crate) fn bochs() -> Result<PathBuf, LabError> {
    let mut script = Command::new(root().join("scripts/bochs.sh"));
    let program = answer("scripts/bochs.sh", &mut script)?;
    Ok(PathBuf::from(program.trim_end()))
}

/// Debian's kernel for virtual machines, of the version that apt offers; kept in the cache.
pub(crate) fn cloud_kernel() -> Result<PathBuf, LabError> {
    let mut script = Command::new(root().join("scripts/debian-kernel.sh"));
    let file = answer("scripts/debian-kernel.sh", script.arg(CLOUD_PACKAGE))?;
    Ok(PathBuf::from(file.trim_end()))
}

/// Builds all programs in one go.
pub(crate) fn programs() -> Result<Programs, LabError> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(root())
        .args(["build", "--release", "--locked", "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .args([
            "-p",
            "exoprobe",
            "-p",
            "exoprobe-embed",
            "-p",
            "exoprobe-lab",
            "-p",
            "exoprobe-tests",
        ])
        .args(["--bin", "exoprobe", "--bin", "embed", "--bin", "count_getpid", "--bin", "lab-init"])
        .args(["--test", "integration", "--bench", "counts"])
        // Static, and without the debug information that the initramfs need not carry.
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .envs([("CARGO_PROFILE_RELEASE_DEBUG", "none"), ("CARGO_PROFILE_RELEASE_STRIP", "symbols")])
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let messages = answer("cargo build", &mut cargo)?;
    let find = |name| executable(&messages, name).ok_or(LabError::NoProgram(name));
    Ok(Programs {
        init: find("lab-init")?,
        exoprobe: find("exoprobe")?,
        embed: find("embed")?,
        count_getpid: find("count_getpid")?,
        tests: find("integration")?,
        counts: find("counts")?,
    })
}

/// Path of the executable of target `name`, from cargo's messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["target"]["name"] != name {
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
        ("guest/out/kprobe-events/vmlinux", "out/kprobe-events/vmlinux"),
        ("guest/out/tiny-6.12/bzImage", "out/tiny-6.12/bzImage"),
        ("guest/out/tiny-6.12/System.map", "out/tiny-6.12/System.map"),
        ("guest/out/tiny-6.12/initramfs.cpio", "out/tiny-6.12/initramfs.cpio"),
    ];
    let mut found = Vec::new();
    for (name, file) in files {
        let path = guest.join(file);
        std::fs::metadata(&path).map_err(at(&path))?;
        found.push((name, path));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = "not json\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"counts\"},\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"counts\"},\"executable\":\"/t/counts\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages, "counts"), Some(PathBuf::from("/t/counts")));
        assert_eq!(executable(messages, "lab-init"), None);
    }
}
