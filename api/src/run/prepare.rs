//! All that is decided before the service has threads: the configuration, the token, the jail.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use exoprobe_vmm::NetLink;

use super::args::{RunArgs, service_config};
use super::error::RunError;
use super::jail_option::JailFolder;
use crate::http::Token;
use crate::log::say;
use crate::sandbox::jail::{JailError, Reach};
use crate::service::ServiceConfig;
use crate::token_file;

/// The token of TCP clients, when no file holds it.
const TOKEN_ENV: &str = "EXOPROBE_TOKEN";

/// A service that can be started.
pub(super) struct Prepared {
    pub(super) args: RunArgs,
    pub(super) config: ServiceConfig,
    /// The unix socket to listen on.
    pub(super) socket: PathBuf,
    /// Where TCP clients connect, and their token.
    pub(super) tcp: Option<(SocketAddr, Token)>,
}

/// Checks the arguments, reads the token, and enters the jail, if there is to be one. There is one
/// thread so far.
///
/// # Errors
/// [`RunError`].
pub(super) fn prepare(mut args: RunArgs) -> Result<Prepared, RunError> {
    if args.reboot && args.restore.is_some() && args.kernel.is_none() {
        return Err(RunError::NoKernel);
    }
    let folder = args.jail.folder()?;
    if let Some(folder) = &folder {
        put_into(&mut args, folder)?;
    }
    let tcp = match args.listen {
        Some(address) => Some((address, token(args.token_file.as_deref())?)),
        None => None,
    };
    let config = service_config(&args)?;
    // Here and not later: the default has the user in its name, and a filter forbids to ask for it.
    let socket = args.socket();
    if let Some(folder) = &folder {
        let jail = args.jail.jail(folder)?;
        let entered = jail.enter(&Reach::of(&config.file, folder.path()))?;
        say!("jailed in {}: {entered}", folder.path().display());
    }
    Ok(Prepared { args, config, socket, tcp })
}

/// Has all paths be such that they mean the same in the jail.
fn put_into(args: &mut RunArgs, folder: &JailFolder) -> Result<(), JailError> {
    args.jail.jail = Some(folder.path().to_owned());
    let files = [
        &mut args.kernel,
        &mut args.initramfs,
        &mut args.symbols,
        &mut args.btf,
        &mut args.debug_info,
        &mut args.restore,
        &mut args.token_file,
    ];
    let plain = |path: &mut PathBuf| -> Result<(), JailError> {
        *path = folder.plain(path)?;
        Ok(())
    };
    files.into_iter().flatten().try_for_each(plain)?;
    args.disks.iter_mut().map(|disk| &mut disk.path).chain([&mut args.kvm]).try_for_each(plain)?;
    for net in &mut args.nets {
        if let NetLink::Socket(path) = &mut net.link {
            plain(path)?;
        }
    }
    if let Some(vsock) = &mut args.vsock {
        vsock.socket = folder.socket("--vsock", &vsock.socket)?;
    }
    let socket = args.socket.take().unwrap_or_else(|| folder.path().join("exoprobe.sock"));
    args.socket = Some(folder.socket("--socket", &socket)?);
    Ok(())
}

fn token(file: Option<&Path>) -> Result<Token, RunError> {
    let (text, from) = match file {
        Some(path) => (token_file::read(path)?, path.display().to_string()),
        None => (std::env::var(TOKEN_ENV).map_err(|_| RunError::NoToken)?, TOKEN_ENV.to_owned()),
    };
    Token::new(&text).map_err(|source| RunError::Token { from, source })
}
