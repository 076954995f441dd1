//! Landlock: the kernel refuses files, ports, and processes that the policy does not name.

use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};
use rustix::fs::{FileType, fstat};

use super::error::{JailError, step};
use super::path;
use super::reach::Access;

/// The newest landlock of which all is asked for; of an older kernel's, what it has.
const NEWEST: ABI = ABI::V6;

/// How much of landlock is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enforced {
    All,
    /// The rights that this version of the kernel knows.
    Part(ABI),
    Not,
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("landlock"),
            Self::Part(abi) => write!(f, "a part of landlock (ABI {})", *abi as i32),
            Self::Not => f.write_str("no landlock (this kernel has none)"),
        }
    }
}

/// Restricts this thread, and all that it starts, to these files, its own folder, and the TCP port
/// to listen on, for good. The files have no links in their paths.
///
/// # Errors
/// [`JailError`].
pub(super) fn restrict(
    files: impl Iterator<Item = (PathBuf, Access)>,
    folder: &Path,
    listen: Option<u16>,
) -> Result<Enforced, JailError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let mut rules = allow(rules, folder, own())?;
    for (path, access) in files {
        if let Some(rights) = rights(access) {
            rules = allow(rules, &path, rights)?;
        }
    }
    if let Some(port) = listen {
        rules = rules.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    let status = rules.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Enforced::All,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            Enforced::Part(effective_abi)
        }
        _ => Enforced::Not,
    })
}

fn allow(
    rules: RulesetCreated,
    found: &Path,
    mut rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, JailError> {
    let file = path::open(found)?;
    let stat = fstat(&file).map_err(step("look at a file of the jail"))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        // Its size, and discards.
        rights |= AccessFs::IoctlDev;
    }
    Ok(rules.add_rule(PathBeneath::new(file, rights))?)
}

fn rights(access: Access) -> Option<BitFlags<AccessFs>> {
    Some(match access {
        Access::Read => AccessFs::ReadFile.into(),
        Access::Write => make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate}),
        Access::Device => make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev}),
        Access::ReadFolder => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
        // Of sockets landlock restricts none that have a path.
        Access::Connect => return None,
    })
}

/// Rights in the jail's own folder: no devices, no FIFOs, no programs.
fn own() -> BitFlags<AccessFs> {
    make_bitflags!(AccessFs::{
        ReadFile | ReadDir | WriteFile | Truncate | RemoveFile | RemoveDir | MakeReg | MakeDir
            | MakeSock | MakeSym | Refer
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;

    use nix::sys::signal::kill;
    use nix::unistd::Pid;
    use rustix::fs::{CWD, Mode, mknodat};

    use super::*;

    fn is_refused<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Carries out `work` in a thread that is restricted; rules are a thread's. Without landlock,
    /// or with an older kernel's, prints that the test is skipped.
    fn restricted(files: &[(PathBuf, Access)], own: &Path, port: u16, work: impl FnOnce() + Send) {
        let restricted = || match restrict(files.iter().cloned(), own, Some(port)).unwrap() {
            Enforced::All => work(),
            less => crate::log::say!("skipped, {less}: {:?}", std::thread::current().name()),
        };
        std::thread::scope(|scope| scope.spawn(restricted).join().unwrap());
    }

    #[test]
    fn files_that_are_not_named_and_uses_that_are_not_allowed_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let [named, disk, other, own] = ["named", "disk", "other", "own"].map(|it| dir.join(it));
        [&named, &disk, &other].into_iter().for_each(|path| fs::write(path, "text").unwrap());
        fs::create_dir(&own).unwrap();
        // Linked statically in `make test`: it is executed without the host's libraries.
        fs::copy(std::env::current_exe().unwrap(), own.join("program")).unwrap();
        let files = [(named.clone(), Access::Read), (disk.clone(), Access::Write)];
        let open = |path: &Path| File::options().write(true).open(path);
        restricted(&files, &own, 1, || {
            assert_eq!(fs::read(&named).unwrap(), b"text");
            assert!(is_refused(open(&named)), "it is only read");
            open(&disk).unwrap().set_len(1).unwrap();
            assert!(is_refused(File::open(&other)) && is_refused(fs::read_dir(dir)));
            assert!(
                is_refused(File::create(dir.join("new"))) && is_refused(fs::remove_file(&disk))
            );
            fs::write(own.join("snap"), "new").unwrap();
            fs::rename(own.join("snap"), own.join("renamed")).unwrap();
            fs::create_dir(own.join("folder")).unwrap();
            symlink(&other, own.join("link")).unwrap();
            UnixListener::bind(own.join("socket")).unwrap();
            fs::remove_file(own.join("renamed")).unwrap();
            assert!(is_refused(File::open(own.join("link"))), "a link leads nowhere else");
            let fifo = mknodat(CWD, own.join("fifo"), FileType::Fifo, Mode::RWXU, 0);
            assert!(is_refused(fifo.map_err(io::Error::from)), "no special files");
            assert!(
                is_refused(Command::new(own.join("program")).arg("--list").status()),
                "no programs"
            );
        });
    }

    #[test]
    fn the_port_to_listen_on_is_the_only_way_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let outside = listener.local_addr().unwrap();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let name = format!("exoprobe-landlock-{}", std::process::id());
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let _abstract = UnixListener::bind_addr(&name).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Pid::from_raw(child.id().cast_signed());
        kill(process, None).unwrap();
        restricted(&[], dir.path(), port, || {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert!(is_refused(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))), "another port");
            assert!(is_refused(TcpStream::connect(outside)), "no connections");
            assert!(is_refused(UnixStream::connect_addr(&name)), "no abstract sockets");
            let signal = kill(process, None).map_err(io::Error::from);
            assert!(is_refused(signal), "no signals to other processes");
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
