//! The `exoprobe` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    exoprobe::cli::main()
}
