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
