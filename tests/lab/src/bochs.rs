//! The emulator's process.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::error::{LabError, at};
use crate::watch::Emulator;

/// File, in the folder of a run, of what Bochs itself prints.
const OUTPUT: &str = "bochs.txt";

/// A running Bochs; dropping it ends it.
pub(crate) struct Bochs(Child);

impl Bochs {
    /// Starts `program` in the folder `dir`, which has its `bochsrc`.
    pub(crate) fn start(program: &Path, dir: &Path) -> Result<Self, LabError> {
        let path = dir.join(OUTPUT);
        let output = File::create(&path).map_err(at(&path))?;
        let errors = output.try_clone().map_err(at(&path))?;
        // setpriv: should this process be killed, Bochs goes too.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["-q", "-f", "bochsrc"])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|source| LabError::Start { program: "bochs", source })?;
        Ok(Self(child))
    }
}

impl Emulator for Bochs {
    fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}

impl Drop for Bochs {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
