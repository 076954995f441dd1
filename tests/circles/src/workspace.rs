//! The targets of a workspace, as `cargo metadata` lists them.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::error::CheckError;

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

/// The workspace's folder, and the root file of each crate in it.
pub(crate) struct Workspace {
    pub(crate) folder: PathBuf,
    pub(crate) roots: Vec<PathBuf>,
}

impl Workspace {
    /// Lists the crates of the workspace that the current folder belongs to: libraries, programs, tests and benches.
    pub(crate) fn find() -> Result<Workspace, CheckError> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
            .output()
            .map_err(|error| CheckError::Metadata(error.to_string()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(CheckError::Metadata(text.trim().to_owned()));
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)
            .map_err(|error| CheckError::Metadata(error.to_string()))?;
        let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
        let mut roots: Vec<PathBuf> = targets.map(|target| target.src_path).collect();
        roots.sort();
        Ok(Workspace { folder: metadata.workspace_root, roots })
    }
}
