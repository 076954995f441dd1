//! Booting is slow: a kernel is booted once for all tests of a run, which restore its snapshot.
//!
//! Where [`KEPT_ENV`] names a folder, snapshots are kept there for later runs: `make test` does so,
//! in a folder by the hash of all that they depend on (`scripts/test-snapshots.sh`).

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use exoprobe_vmm::{BootFiles, Host, HostSides, Vm, VmConfig};

use crate::files::LINUX_6_12;
use crate::{TestGuest, guest_file, host, unfiltered_host};

/// Enough for its bzImage to unpack itself to anywhere KASLR may choose.
const LINUX_6_12_MIB: u64 = 64;

/// Initcalls of Linux 6.12 that no test needs, in place of the tiny kernel's /sys/module, which
/// modules need. The first that has functions for BPF programs makes the kernel check all of its
/// types, and so does the first module with types: 17 s where KVM emulates, and a minute while the
/// ticks of many vCPUs interrupt it.
const LEFT_OUT: &str = "kfunc_init,crypto_kfunc_init,bpf_kfunc_init,bpf_rstat_kfunc_init,\
                        xdp_metadata_init,bpf_prog_test_run_init,cubictcp_register,\
                        init_subsystem,btf_module_init,\
                        slab_late_init,param_sysfs_builtin_init,";

/// The name of each snapshot, in its folder.
const FILE: &str = "snapshot";

/// A kernel that tests boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestKernel {
    /// The tiny guest's, Linux 6.1, from its vmlinux.
    Tiny,
    /// Linux 6.12 with modules, ORC tables, BTF and KASLR, from its bzImage: see `guest/README.md`.
    Linux6_12,
}

impl TestKernel {
    /// A file of its build.
    ///
    /// # Panics
    /// When it was not built: `make guest guest-6.12` does that.
    #[must_use]
    pub fn file(self, name: &str) -> PathBuf {
        match self {
            Self::Tiny => guest_file(name),
            Self::Linux6_12 => guest_file(&format!("{LINUX_6_12}/{name}")),
        }
    }

    /// The machine that it boots on.
    ///
    /// # Panics
    /// As [`Self::file`].
    #[must_use]
    pub fn config(self, vcpus: u8) -> VmConfig {
        match self {
            Self::Tiny => TestGuest::config("vmlinux", vcpus),
            Self::Linux6_12 => {
                let tiny = TestGuest::config(&format!("{LINUX_6_12}/bzImage"), vcpus);
                VmConfig {
                    initramfs: Some(self.file("initramfs.cpio")),
                    memory_mib: LINUX_6_12_MIB,
                    cmdline: tiny.cmdline.replace("param_sysfs_init,", LEFT_OUT),
                    ..tiny
                }
            }
        }
    }

    /// The snapshot of a freshly booted guest, taken once for all tests of a run.
    ///
    /// # Panics
    /// When the guest does not boot, or did not when another test wanted it.
    #[must_use]
    pub fn snapshot(self, vcpus: u8) -> PathBuf {
        shared(&format!("{self:?}-{vcpus}"), |_, snapshot| {
            take_snapshot(&self.config(vcpus), snapshot);
        })
    }

    /// A machine as it was right after boot, which may be rebooted.
    ///
    /// # Panics
    /// When it cannot be restored.
    #[must_use]
    pub fn restored_vm(self, vcpus: u8) -> Vm {
        self.restored_on(host(), vcpus)
    }

    fn restored_on(self, host: &Host, vcpus: u8) -> Vm {
        let mut vm = Vm::restore(host, &self.snapshot(vcpus), &HostSides::default())
            .expect("the snapshot is whole");
        let VmConfig { kernel, initramfs, cmdline, .. } = self.config(vcpus);
        let files = BootFiles { kernel, initramfs, cmdline: Some(cmdline) };
        vm.set_boot_files(files).expect("the tests' own command line");
        vm
    }

    /// A guest as it was right after boot, for which no file is given: its symbols come from its
    /// memory.
    ///
    /// # Panics
    /// When it cannot be restored.
    #[must_use]
    pub fn restored(self, vcpus: u8) -> TestGuest {
        let guest = TestGuest::of_kernel(self.restored_vm(vcpus), None);
        guest.power_on();
        guest
    }
}

impl TestGuest {
    /// A guest as it was right after boot.
    ///
    /// # Panics
    /// When it cannot be restored.
    #[must_use]
    pub fn restored(vcpus: u8) -> Self {
        Self::start(TestKernel::Tiny.restored_vm(vcpus))
    }

    /// As [`Self::restored`], where vCPUs' threads may make any system call: to read KVM's
    /// statistics in a handler.
    ///
    /// # Panics
    /// When it cannot be restored.
    #[must_use]
    pub fn restored_unfiltered(vcpus: u8) -> Self {
        Self::start(TestKernel::Tiny.restored_on(&unfiltered_host(), vcpus))
    }

    /// The snapshot of a freshly booted tiny guest.
    ///
    /// # Panics
    /// As [`TestKernel::snapshot`].
    #[must_use]
    pub fn snapshot(vcpus: u8) -> PathBuf {
        TestKernel::Tiny.snapshot(vcpus)
    }
}

/// Boots a guest to its prompt, and takes its snapshot. What its engine would know of the kernel is
/// not in it.
///
/// # Panics
/// When the guest does not boot.
pub fn take_snapshot(config: &VmConfig, path: &Path) {
    let guest = TestGuest::boot_by_its_symbols(config);
    // Its first ticks go on to timers of high resolution, for which the kernel turns branches.
    guest.work("sleep 200");
    guest.vm.snapshot(path).expect("a snapshot can be taken");
}

/// What is known of a snapshot of this run.
#[derive(Default)]
enum Wanted {
    #[default]
    Untried,
    /// So that it is not waited for again.
    Failed,
    Taken(PathBuf),
}

/// Snapshots of this run by name. Each has a lock of its own, so that tests that want different
/// ones boot side by side.
static SNAPSHOTS: Mutex<BTreeMap<String, Arc<Mutex<Wanted>>>> = Mutex::new(BTreeMap::new());

/// The folder where snapshots of earlier runs are, and those of this one stay.
const KEPT_ENV: &str = "EXOPROBE_TEST_SNAPSHOTS";

/// A snapshot for all tests of a run, which is kept if the environment says so. Returns its path.
///
/// `make` takes it once, if no run did before. It is given a folder of its own, for files that
/// belong to it, and the path in there.
///
/// # Panics
/// When `make` does, or did when another test wanted the same.
pub fn shared(name: &str, make: impl FnOnce(&Path, &Path)) -> PathBuf {
    let mut snapshots = SNAPSHOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = Arc::clone(snapshots.entry(name.to_owned()).or_default());
    drop(snapshots);
    let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
    match &*wanted {
        Wanted::Taken(path) => return path.clone(),
        Wanted::Failed => panic!("{name} does not boot: see the test that wanted it first"),
        Wanted::Untried => *wanted = Wanted::Failed,
    }
    let folder = match std::env::var_os(KEPT_ENV) {
        Some(kept) => kept_folder(Path::new(&kept), name, make),
        None => {
            let folder = folder().join(name);
            std::fs::create_dir_all(&folder).expect("the folder of temporary files is there");
            take(name, &folder, make);
            folder
        }
    };
    let path = folder.join(FILE);
    *wanted = Wanted::Taken(path.clone());
    path
}

/// Returns the folder of a kept snapshot. Takes the snapshot if the folder does not exist. The
/// folder is renamed into place, so it is complete or absent.
fn kept_folder(parent: &Path, name: &str, make: impl FnOnce(&Path, &Path)) -> PathBuf {
    let kept = parent.join(name);
    if kept.exists() {
        return kept;
    }
    let temporary = tempfile::tempdir_in(parent).expect("the kept snapshots' folder is there");
    take(name, temporary.path(), make);
    match std::fs::rename(temporary.path(), &kept) {
        Ok(()) => drop(temporary.keep()),
        // Another run has just kept the same.
        Err(_) if kept.exists() => {}
        Err(error) => panic!("{}: {error}", kept.display()),
    }
    kept
}

fn take(name: &str, folder: &Path, make: impl FnOnce(&Path, &Path)) {
    let begun = Instant::now();
    make(folder, &folder.join(FILE));
    eprintln!("booted {name} for all tests in {:.1} s", begun.elapsed().as_secs_f64());
}

/// Copies a file with the time of its last change, as `cp --preserve=timestamps` does.
///
/// # Panics
/// When it cannot.
pub fn copy_with_time(from: &Path, to: &Path) {
    let copied = || {
        std::fs::copy(from, to)?;
        let modified = std::fs::metadata(from)?.modified()?;
        File::options().write(true).open(to)?.set_modified(modified)
    };
    copied().unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
}

/// The folder of this run's snapshots.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("exoprobe-tests-{}", std::process::id()))
}

/// Removes the snapshots of this run when it goes: `main` holds one.
#[derive(Debug)]
pub struct SnapshotCleanup;

impl Drop for SnapshotCleanup {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(folder()));
    }
}
