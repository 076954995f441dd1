//! `circles`: fails if files of a crate import each other in a circle.
//!
//! An import counts as an edge to the file that declares the name, also through a re-export.
//! Declarations of modules are no edges, and neither is a re-export by itself: a folder's `mod.rs`
//! may list what its files offer. Code that only tests build is left out.

mod circle;
mod collect;
mod error;
mod read;
mod resolve;
#[cfg(test)]
mod tests;
mod tree;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use circle::Imports;
use error::CheckError;
use workspace::Workspace;

#[derive(Parser)]
#[command(about = "Fails if files of a crate in this workspace import each other in a circle")]
struct Cli {}

fn main() -> ExitCode {
    let Cli {} = Cli::parse();
    match check() {
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

/// Prints each circle. Returns their number.
fn check() -> Result<usize, CheckError> {
    let workspace = Workspace::find()?;
    let mut count = 0;
    for root in &workspace.roots {
        let mut tree = read::read(root)?;
        for file in &mut tree.files {
            if let Ok(relative) = file.strip_prefix(&workspace.folder) {
                *file = relative.to_owned();
            }
        }
        for circle in Imports::of(&tree).circles() {
            print!("{circle}");
            count += 1;
        }
    }
    Ok(count)
}
