//! The `exoprobe` command.

use std::process::ExitCode;

use clap::Parser;

/// Linux kprobes from outside the guest.
#[derive(Parser)]
#[command(version, about)]
enum Command {
    /// Boot a guest and serve the API
    Run(Box<exoprobe::run::RunArgs>),
    /// Print the OpenAPI document
    Openapi,
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Openapi => {
            print!("{}", exoprobe::openapi_json());
            ExitCode::SUCCESS
        }
        Command::Run(args) => match exoprobe::run::main(*args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("exoprobe: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
