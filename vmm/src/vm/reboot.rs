//! Boots the same guest again, in the same machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvm_bindings::kvm_regs;

use super::cmdline::final_cmdline;
use super::control::{Vm, wait_each};
use crate::boot::{self, BootError};
use crate::config::{ConfigError, VmConfig};
use crate::locked::{self, LockError};
use crate::ram;
use crate::status::{StopReason, StopRecord};
use crate::vcpu::{Command, Refusal};
use exoprobe_guest::GuestRam;
use exoprobe_guest::VcpuError;
use exoprobe_guest::kvm::request_msr_exits;
use exoprobe_guest::memory::MemoryError;

/// The reason why a guest was not booted again.
#[derive(Debug, thiserror::Error)]
pub enum RebootError {
    /// It was never started.
    #[error("the guest was not started yet")]
    NotStarted,
    /// The guest comes from a snapshot, and no files to boot it from were named.
    #[error(
        "the guest comes from a snapshot, and files that a snapshot names are not read: start the service with \
         `exoprobe run --restore SNAPSHOT --kernel PATH` (and --initramfs, --cmdline) to boot it again"
    )]
    NoFiles,
    /// A vCPU gave no answer.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// Kernel or initramfs have become unusable.
    #[error("the guest cannot be booted again: {0}")]
    Boot(#[from] BootError),
    /// The host has no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory cannot be locked again.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// KVM refused a step.
    #[error("KVM refused to {step}: {source}")]
    Kvm {
        /// The step.
        step: &'static str,
        /// KVM's error.
        source: kvm_ioctls::Error,
    },
}

impl From<Refusal> for RebootError {
    fn from((step, source): Refusal) -> Self {
        Self::Kvm { step, source }
    }
}

fn kvm(step: &'static str) -> impl Fn(kvm_ioctls::Error) -> RebootError {
    move |source| RebootError::Kvm { step, source }
}

/// Files to boot a restored guest from: a snapshot's own names of them are not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFiles {
    /// Linux kernel: an ELF vmlinux or a bzImage.
    pub kernel: PathBuf,
    /// Initial RAM file system, if any.
    pub initramfs: Option<PathBuf>,
    /// Kernel command line; that of the snapshot if there is none.
    pub cmdline: Option<String>,
}

impl Vm {
    /// Sets the files that [`Self::reboot`] boots a restored guest from. Its later snapshots
    /// contain them, too.
    ///
    /// # Errors
    /// [`ConfigError`]: the command line cannot be used.
    pub fn set_boot_files(&mut self, files: BootFiles) -> Result<(), ConfigError> {
        let BootFiles { kernel, initramfs, cmdline } = files;
        let cmdline = cmdline.unwrap_or_else(|| self.config.cmdline.clone());
        let config = VmConfig { kernel, initramfs, cmdline, ..self.config.clone() };
        config.validate()?;
        self.config = config;
        self.has_boot_files = true;
        Ok(())
    }

    /// Boots the guest again from its configuration, in any state: running, paused, held or
    /// stopped. Reads its kernel and initramfs anew; memory and devices are as at the first boot.
    /// The logs of serial ports and virtio console, the console's size, the exits' counts and the
    /// guest's time continue; input that waits is dropped.
    ///
    /// # Errors
    /// [`RebootError`]; [`RebootError::NoFiles`] after [`Self::restore`] without
    /// [`Self::set_boot_files`]. With kernel or initramfs unusable, or before the start, the guest
    /// continues as it was; after a later failure it has stopped ([`StopReason::Failed`], or its
    /// earlier reason).
    pub fn reboot(&self) -> Result<(), RebootError> {
        let _control = self.lock();
        self.reboot_locked()
    }

    /// As [`Self::reboot`], for a guest whose stop was seen in boot `boot` (see [`Self::boots`]):
    /// does nothing, and returns false, if it was booted since.
    ///
    /// # Errors
    /// As [`Self::reboot`].
    pub fn reboot_after(&self, boot: u64) -> Result<bool, RebootError> {
        let _control = self.lock();
        if self.boots() != boot {
            return Ok(false);
        }
        self.reboot_locked().map(|()| true)
    }

    /// Locks the guest's memory, so that the host never writes it to its swap; a reboot locks it
    /// again. Pages take the host's memory when they are first accessed, as without it.
    ///
    /// # Errors
    /// [`LockError`]; a part may be locked.
    pub fn lock_memory(&self) -> Result<(), LockError> {
        let _control = self.lock();
        locked::lock(&self.machine.ram, &self.machine.hidden)?;
        self.is_locked.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Boots of this machine, the present one included: 1 until [`Self::reboot`], also after
    /// [`Self::restore`].
    #[must_use]
    pub fn boots(&self) -> u64 {
        self.machine.status.boots()
    }

    fn reboot_locked(&self) -> Result<(), RebootError> {
        if self.machine.hook().is_none() {
            return Err(RebootError::NotStarted);
        }
        if !self.has_boot_files {
            return Err(RebootError::NoFiles);
        }
        // Loaded into separate memory: faults of the files are found before the guest is changed.
        self.load(&GuestRam::anonymous(&self.machine.ram.ranges())?)?;
        // After this, no vCPU's thread sends a message to another or stops the machine.
        self.halt_all()?;
        self.boot_again().inspect_err(|error| {
            let reason = StopReason::Failed { message: format!("rebooting: {error}") };
            let (regs, seconds) = (kvm_regs::default(), self.clock.seconds(self.clock.now()));
            self.machine.stop(StopRecord { reason, vcpu: 0, regs, seconds });
        })
    }

    fn load(&self, ram: &GuestRam) -> Result<boot::BootEntry, BootError> {
        let cmdline = final_cmdline(&self.config.cmdline, self.config.vcpus, self.machine.profile);
        boot::load(ram, &self.config, &cmdline, self.machine.profile)
    }

    /// All vCPUs are halted.
    fn boot_again(&self) -> Result<(), RebootError> {
        let machine = &self.machine;
        self.power_on()?;
        if let Some(hook) = machine.hook() {
            hook.reset();
        }
        ram::clear(&machine.ram)?;
        if self.is_locked.load(Ordering::SeqCst) {
            locked::lock(&machine.ram, &machine.hidden)?;
        }
        machine.hidden.reset();
        let entry = self.load(&machine.ram)?;
        self.vcpu(0)?.ask(|reply| Command::SetEntry(entry, reply))?;
        machine.entry.begin_boot();
        let mut begun = Ok(Vec::new());
        machine.status.begin_boot(|| begun = self.begin_each(Command::Resume));
        Ok(wait_each(begun?)?)
    }

    /// Resets devices and vCPUs to the state in which they were made.
    fn power_on(&self) -> Result<(), RebootError> {
        let machine = &self.machine;
        // A guest from a snapshot did without what a boot needs.
        request_msr_exits(&self.fd, machine.reports_kernel_entry, machine.profile.software)
            .map_err(kvm("hand over writes of model-specific registers"))?;
        // Devices that raise interrupts are reset before those that receive them.
        for port in &self.serial {
            port.reset();
        }
        machine.bus.pci().reset();
        if let Some(console) = &self.devices.console {
            console.drop_input();
        }
        machine.bus.power().reset();
        machine.console_watch.reset();
        self.power_on.chips.restore(&self.fd).map_err(kvm("reset its interrupt chips"))?;
        for (vcpu, state) in self.vcpus().zip(&self.power_on.vcpus) {
            vcpu.ask(|reply| Command::PowerOn(Arc::clone(state), reply))??;
        }
        Ok(())
    }
}
