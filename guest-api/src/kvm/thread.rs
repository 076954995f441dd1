//! A vCPU's thread, as other threads see it.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use kvm_ioctls::{Error, VcpuFd};

use super::kick;
use crate::registers::VcpuError;

/// The channel for the answer to a command.
pub type Reply<T> = SyncSender<Result<T, Error>>;

/// The thread of a vCPU, and its queue of commands. A command takes the vCPU out of the guest:
/// KVM_RUN returns EINTR, even if the command came just before it. The thread then calls
/// [`VcpuFd::set_kvm_immediate_exit`] with 0, and carries out all commands of its queue after that.
///
/// ```no_run
/// use exoprobe_guest::kvm::{Request, VcpuThread};
/// use exoprobe_guest::{GuestClock, Registers, VcpuError};
/// use kvm_ioctls::VcpuFd;
///
/// fn run_and_look(vcpu: VcpuFd, clock: GuestClock) -> Result<Registers, VcpuError> {
///     let thread = VcpuThread::<Request>::spawn(0, vcpu, move |mut vcpu, requests| {
///         while vcpu.run().is_err_and(|error| error.errno() == libc::EINTR) {
///             vcpu.set_kvm_immediate_exit(0);
///             while let Ok(request) = requests.try_recv() {
///                 request.serve(&vcpu, &clock);
///             }
///         }
///     });
///     thread.expect("the host has threads").registers()
/// }
/// ```
pub struct VcpuThread<C> {
    index: u8,
    commands: Sender<C>,
    /// Taken out before it is joined, so that no ended thread is kicked.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<C: Send + 'static> VcpuThread<C> {
    /// Starts the thread of vCPU `index`, which runs `body`.
    ///
    /// # Errors
    /// The host's, from sigaction, mmap and the thread's start.
    pub fn spawn(
        index: u8,
        vcpu: VcpuFd,
        body: impl FnOnce(VcpuFd, Receiver<C>) + Send + 'static,
    ) -> io::Result<Self> {
        kick::install_handler().map_err(io::Error::from_raw_os_error)?;
        let (commands, queue) = channel();
        let run_page = kick::RunPage::map(&vcpu)?;
        let (ready, armed) = sync_channel(1);
        let thread = thread::Builder::new().name(format!("vcpu{index}")).spawn(move || {
            let _kickable = kick::Armed::new(&run_page);
            let _ = ready.send(());
            body(vcpu, queue);
        })?;
        // A kick before the thread is armed would be lost.
        let _ = armed.recv();
        Ok(Self { index, commands, thread: Mutex::new(Some(thread)) })
    }

    /// Index of the vCPU.
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Sends a command, and takes the vCPU out of the guest.
    ///
    /// # Errors
    /// [`VcpuError::Gone`] if the thread has ended.
    pub fn send(&self, command: C) -> Result<(), VcpuError> {
        self.commands.send(command).map_err(|_| VcpuError::Gone(self.index))?;
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            kick::kick(thread).map_err(|_| VcpuError::Gone(self.index))?;
        }
        Ok(())
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn begin<T>(&self, make: impl FnOnce(Reply<T>) -> C) -> Result<Pending<T>, VcpuError> {
        let (reply, answer) = sync_channel(1);
        self.send(make(reply))?;
        Ok(Pending { index: self.index, answer })
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// As [`Self::send`]; [`VcpuError::Kvm`] if that is the answer.
    pub fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> C) -> Result<T, VcpuError> {
        self.begin(make)?.wait()
    }

    /// Returns true if the thread has ended.
    pub fn has_ended(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread's end, which a command must have requested.
    ///
    /// # Errors
    /// [`thread::Result`]'s error: the thread panicked.
    pub fn join(&self) -> thread::Result<()> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.map_or(Ok(()), JoinHandle::join)
    }
}

/// The answer to a command, which may not have arrived yet.
pub struct Pending<T> {
    index: u8,
    answer: Receiver<Result<T, Error>>,
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// [`VcpuError::Gone`] if the thread has ended without an answer, [`VcpuError::Kvm`] if that is
    /// the answer.
    pub fn wait(self) -> Result<T, VcpuError> {
        let answer = self.answer.recv().map_err(|_| VcpuError::Gone(self.index))?;
        answer.map_err(VcpuError::Kvm)
    }
}
