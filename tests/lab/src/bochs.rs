//! The emulators' processes.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::build::Build;
use crate::error::{LabError, at};
use crate::watch::Emulator;

/// A running Bochs; dropping it ends it.
pub(crate) struct Bochs {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Bochs {
    /// Starts Bochs in the folder `dir`, which has its `bochsrc` and the debugger's commands `rc`.
    ///
    /// Debian's Bochs draws on a terminal or not at all, so it is given one whose content is not
    /// used (it goes to `terminal.txt`).
    pub(crate) fn start(build: Build, dir: &Path) -> Result<Self, LabError> {
        let program = build.program()?;
        let path = dir.join("terminal.txt");
        let mut log = File::create(&path).map_err(at(path))?;
        let (master, slave) = terminal()?;
        let copy = |fd: &OwnedFd| fd.try_clone().map(Stdio::from).map_err(at("terminal"));
        // setpriv: should this process be killed, Bochs goes too.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(build.arguments())
            .current_dir(dir)
            .env("TERM", "vt100")
            .stdin(copy(&slave)?)
            .stdout(copy(&slave)?)
            .stderr(copy(&slave)?)
            .spawn()
            .map_err(|source| LabError::Start { program: "bochs", source })?;
        let mut master = File::from(master);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // EIO is how a terminal ends whose other side is closed.
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                if std::io::Write::write_all(&mut log, &buffer[..count]).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, reader: Some(reader) })
    }
}

impl Emulator for Bochs {
    fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Bochs {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

/// Both ends of a new pseudo-terminal (pty(7)).
fn terminal() -> Result<(OwnedFd, OwnedFd), LabError> {
    let open = || -> rustix::io::Result<(OwnedFd, String)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(master.as_fd())?;
        unlockpt(master.as_fd())?;
        let name = ptsname(master.as_fd(), Vec::new())?;
        Ok((master, name.to_string_lossy().into_owned()))
    };
    let (master, name) = open().map_err(LabError::Terminal)?;
    // It is for Bochs, and must not become this process's own.
    let flags = i32::try_from(OpenptFlags::NOCTTY.bits()).expect("a flag of open(2)");
    let slave = File::options().read(true).write(true).custom_flags(flags).open(&name);
    let slave = slave.map_err(at(name))?;
    Ok((master, slave.into()))
}
