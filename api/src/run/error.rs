//! Why `exoprobe run` failed.

use exoprobe_vmm::MacAddr;

use crate::http::TokenError;
use crate::sandbox::jail::JailError;
use crate::sandbox::seccomp::SeccompError;
use crate::service::{ListenError, StartError};
use crate::token_file::TokenFileError;

/// Why `exoprobe run` failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guest or the engine.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The sockets.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The jail.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// The filters of system calls.
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
    /// Reboots of a restored guest, from no file.
    #[error(
        "--reboot with --restore needs --kernel PATH (and --initramfs): files that a snapshot names are not booted from"
    )]
    NoKernel,
    /// An address for an interface of a restored guest, which knows its own.
    #[error("--net with --restore: leave out mac={0}, the guest keeps the address that it has")]
    KeptMac(MacAddr),
    /// A CID for a restored guest, which knows its own.
    #[error("--vsock with --restore: leave out cid={0}, the guest keeps the CID that it has")]
    KeptCid(u32),
    /// TCP without a token.
    #[error("--listen needs a token: give --token-file PATH or set EXOPROBE_TOKEN")]
    NoToken,
    /// The token cannot be used.
    #[error("{from}: {source}")]
    Token {
        /// Where it came from.
        from: String,
        /// Why.
        source: TokenError,
    },
    /// The token's file cannot be used.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The host refused threads, signals or the like.
    #[error("cannot start the service: {0}")]
    Io(#[from] std::io::Error),
    /// A part of the service panicked.
    #[error("a part of the service failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A thread of the service ended, without which hits are not recorded or output is not seen.
    #[error("the service's thread {0} ended unexpectedly; the guest was stopped")]
    Worker(&'static str),
    /// With `--exit-with-guest`: the guest did not end well.
    #[error("{0}")]
    Guest(String),
}
