//! Set-up that fails: each script says what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Puts programs of these texts first in `PATH`. Returns the exit status and standard error of
/// `script`.
fn run(script: &[&str], programs: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in programs {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let script_file = Path::new(ROOT).join(script[0]);
    let output = Command::new(script_file).args(&script[1..]).env("PATH", path).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_old_rust_is_refused_with_the_version_that_is_needed() {
    let (status, said) =
        run(&["scripts/setup.sh"], &[("cargo", "echo 'cargo 1.63.0 (fd9c4297c)'")]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("Rust 1.63.0 is too old: 1.90 or later is needed"), "{said}");
    assert!(said.contains("rustup update stable"), "{said}");
}

#[test]
fn a_newer_rust_is_taken() {
    let (status, said) = run(
        &["scripts/setup.sh"],
        &[("cargo", "echo 'cargo 1.101.0'"), ("dpkg-query", "echo 'install ok installed'")],
    );
    assert_eq!((status, said.as_str()), (Some(0), ""));
}

#[test]
fn a_full_disk_is_refused_with_the_space_that_is_needed() {
    let (status, said) = run(
        &["scripts/setup.sh", "--lab"],
        &[("df", "echo Avail; echo 1048576"), ("du", "printf '0\\ttarget\\n'")],
    );
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("builds need about 15 GiB"), "{said}");
    assert!(said.contains("1 GiB are free"), "{said}");
}

#[test]
fn without_a_network_apts_failure_says_so() {
    let apt = "echo 'E: Could not resolve deb.debian.org' >&2; exit 100";
    let (status, said) =
        run(&["scripts/setup.sh"], &[("dpkg-query", "exit 1"), ("apt-get", apt), ("id", "echo 0")]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no network for Debian's packages"), "{said}");
}

#[test]
fn without_a_network_miri_says_what_is_missing() {
    let rustup = "echo 'error: could not download file' >&2; exit 1";
    let (status, said) = run(&["scripts/miri.sh", "setup"], &[("rustup", rustup)]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("installing Rust's nightly-20"), "{said}");
    assert!(said.contains("could not download") && said.contains("is there a network"), "{said}");
}

#[test]
fn apt_is_asked_with_an_index_that_is_kept_and_says_what_it_lacks() {
    let apt = r#"case "$*" in *Dir::Cache::pkgcache=/*) ;; *) echo "no index: $*" >&2 ;; esac"#;
    let scripts = [
        &["scripts/qemu.sh"][..],
        &["scripts/debian-kernel.sh", "linux-image-amd64"],
        &["scripts/trace-readers.sh"],
        &["scripts/tracer-oracle.sh", "linux-image-amd64", "commands", "results"],
    ];
    for script in scripts {
        let (status, said) = run(script, &[("apt-cache", apt)]);
        assert_eq!(status, Some(1), "{script:?}: {said}");
        assert!(said.contains("apt knows no"), "{script:?}: {said}");
        assert!(said.contains("sudo apt-get update"), "{script:?}: {said}");
        assert!(!said.contains("no index"), "{script:?}: {said}");
    }
}

#[test]
fn without_the_right_to_install_the_line_to_run_is_printed() {
    let (status, said) =
        run(&["scripts/setup.sh"], &[("dpkg-query", "exit 1"), ("id", "echo 1000")]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("apt-get install -y"), "{said}");
}

#[test]
fn a_kvm_device_that_is_missing_or_does_not_open_has_its_remedy() {
    let (status, said) = run(&["scripts/kvm.sh", "/dev/no-kvm"], &[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("there is no /dev/no-kvm"), "{said}");
    let (status, said) = run(&["scripts/kvm.sh", "/tmp"], &[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("sudo usermod -aG kvm"), "{said}");
}
