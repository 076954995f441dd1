//! `circles`: fails if files of a crate import each other in a circle.
//!
//! An import counts as an edge to the file that declares the name, also through a re-export.
//! Declarations of modules are no edges, and neither is a re-export by itself: a folder's `mod.rs` may
//! list what its files offer. Code that only tests build is left out.

mod circle;
mod collect;
mod error;
mod read;
mod resolve;
#[cfg(test)]
mod tests;
mod tree;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use circle::Imports;
use error::CheckError;
use workspace::Workspace;

#[derive(Parser)]
#[command(about = "Fails if files of a crate in this workspace import each other in a circle")]
struct Cli {
    /// Report circles in this folder of the workspace, but do not fail because of them
    #[arg(long, value_name = "FOLDER")]
    not_yet: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match check(&Cli::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(count) => {
            eprintln!(
                "circles: {count} found; move what both files need into one that they import"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("circles: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints each circle. Returns how many lie outside the excused folders.
fn check(cli: &Cli) -> Result<usize, CheckError> {
    let workspace = Workspace::find()?;
    for folder in &cli.not_yet {
        println!("not checked yet: {}", folder.display());
    }
    let mut count = 0;
    for root in &workspace.roots {
        let mut tree = read::read(root)?;
        for file in &mut tree.files {
            if let Ok(relative) = file.strip_prefix(&workspace.folder) {
                *file = relative.to_owned();
            }
        }
        let imports = Imports::of(&tree);
        let is_excused = |file: &Path| cli.not_yet.iter().any(|folder| file.starts_with(folder));
        for circle in imports.circles(|file| !is_excused(file)) {
            print!("{circle}");
            count += 1;
        }
        for circle in imports.circles(|_| true) {
            if circle.files().into_iter().any(is_excused) {
                println!("not yet free of a {circle}");
            }
        }
    }
    Ok(count)
}
