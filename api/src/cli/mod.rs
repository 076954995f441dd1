//! The command line: a client of the API, human tables by default, JSON for programs.

mod add;
mod added;
mod arguments;
mod background;
mod callers;
mod collect;
mod color;
mod connection;
mod console;
mod context;
mod definitions;
mod doctor;
mod error;
mod error_json;
mod event_text;
mod events;
#[cfg(test)]
mod examples;
mod export;
mod format;
mod hist;
#[cfg(test)]
mod hostile_text;
mod idle;
mod instance;
mod kprobes;
mod latency;
mod ls;
mod memory;
mod modules;
mod mount;
mod probe;
mod ps;
mod shell;
mod show;
mod stack;
mod stacks;
mod symbols;
#[cfg(test)]
mod tests;
mod top;
mod trace;
mod tty;
mod typed;
mod types;
mod vm;

use std::future::Future;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::log::say;
use connection::Connection;
use context::Context;
use error::CliError;

const EXAMPLES: &str = "\
Examples:
  exoprobe doctor
  exoprobe run --help
  exoprobe probe add 'p:getpid __x64_sys_getpid' 'r:read vfs_read $retval'
  exoprobe events --follow
  exoprobe top

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no connection or no answer in time";

/// Linux kprobes from outside the guest.
#[derive(Debug, Parser)]
#[command(name = "exoprobe", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a guest and serve its API
    Run(Box<crate::run::RunArgs>),
    /// List the services on this host
    #[command(after_help = ls::EXAMPLES)]
    Ls,
    /// Add, list, change and remove probes
    #[command(subcommand)]
    Probe(probe::ProbeCommand),
    /// Make, list and remove trace instances, and enable events in them
    #[command(subcommand)]
    Instance(instance::InstanceCommand),
    /// Print the events that probes recorded
    Events(events::EventsArgs),
    /// Show how often probes are hit, as it goes
    Top(top::TopArgs),
    /// Count hits by the values that they have, with a probe of its own for that time
    Hist(hist::HistArgs),
    /// Count the back-traces that lead to a function, with a probe of its own for that time
    Stacks(stacks::StacksArgs),
    /// Run a script in the bpftrace language over the guest
    Trace(trace::TraceArgs),
    /// Write the events as a trace for Perfetto's or Chrome's viewer
    Export(export::ExportArgs),
    /// Look up symbols of the guest's kernel
    Symbols(symbols::SymbolsArgs),
    /// Show types and functions of the guest's kernel: members, offsets, parameters
    Types(types::TypesArgs),
    /// Print memory of the guest's kernel
    X(memory::MemoryArgs),
    /// Print the instructions of a function of the guest's kernel
    Disas(memory::CodeArgs),
    /// Print the back-trace of a vCPU
    Stack(stack::StackArgs),
    /// List the guest's processes
    #[command(after_help = "Examples:\n  exoprobe ps\n  exoprobe --json ps")]
    Ps,
    /// List the guest's loadable modules, and the probes in them
    #[command(after_help = modules::EXAMPLES)]
    Modules,
    /// Look at the guest and control it
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Show the guest's tracefs as files of this host, until Ctrl-C
    Mount(mount::MountArgs),
    /// Say whether this host can run guests, and how
    Doctor(doctor::DoctorArgs),
    /// Print the API's OpenAPI description
    #[command(after_help = "Example:\n  exoprobe openapi > openapi.json")]
    Openapi,
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let cli: Cli = match arguments::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        // Help and the version are no errors.
        Err(error) if error.use_stderr() && error_json::is_wanted(std::env::args_os()) => {
            say!("{}", error_json::of_usage(&error));
            return ExitCode::from(CliError::USAGE);
        }
        Err(error) => error.exit(),
    };
    let json = cli.connection.json;
    // Not locked: `run --console` writes to it from a thread of its own.
    let mut out = BufWriter::new(io::stdout());
    let result = dispatch(cli, &mut out).and_then(|()| Ok(out.flush()?));
    // Whatever is still buffered has failed to be written once, and is not tried again.
    drop(out.into_parts());
    let Err(error) = result else { return ExitCode::SUCCESS };
    let message = if json { error_json::of(&error) } else { error.message() };
    if let Some(message) = message {
        say!("{message}");
    }
    ExitCode::from(error.status())
}

fn dispatch(cli: Cli, out: &mut dyn Write) -> Result<(), CliError> {
    let Cli { connection, command } = cli;
    match command {
        Command::Run(args) => Ok(crate::run::main(*args)?),
        Command::Ls => block_on(ls::run(connection.json, out))?,
        Command::Probe(command) => {
            with_client(&connection, out, async |context| probe::run(context, command).await)
        }
        Command::Instance(command) => {
            with_client(&connection, out, async |context| instance::run(context, command).await)
        }
        Command::Events(args) => {
            with_client(&connection, out, async |context| events::run(context, &args).await)
        }
        Command::Top(args) => {
            with_client(&connection, out, async |context| top::run(context, &args).await)
        }
        Command::Hist(args) => {
            with_client(&connection, out, async |context| hist::run(context, &args).await)
        }
        Command::Stacks(args) => {
            with_client(&connection, out, async |context| stacks::run(context, &args).await)
        }
        Command::Trace(args) => {
            with_client(&connection, out, async |context| trace::run(context, &args).await)
        }
        Command::Export(args) => {
            with_client(&connection, out, async |context| export::run(context, &args).await)
        }
        Command::Symbols(args) => {
            with_client(&connection, out, async |context| symbols::run(context, &args).await)
        }
        Command::Types(args) => {
            with_client(&connection, out, async |context| types::run(context, &args).await)
        }
        Command::X(args) => {
            with_client(&connection, out, async |context| memory::memory(context, &args).await)
        }
        Command::Disas(args) => {
            with_client(&connection, out, async |context| memory::code(context, &args).await)
        }
        Command::Stack(args) => {
            with_client(&connection, out, async |context| stack::run(context, &args).await)
        }
        Command::Ps => with_client(&connection, out, async |context| ps::run(context).await),
        Command::Modules => {
            with_client(&connection, out, async |context| modules::run(context).await)
        }
        Command::Vm(command) => {
            with_client(&connection, out, async |context| vm::run(context, command).await)
        }
        Command::Mount(args) => mount::run(&connection, &args),
        Command::Doctor(args) => doctor::run(&args, connection.json, out),
        Command::Openapi => Ok(writeln!(out, "{}", crate::openapi_json().trim_end())?),
    }
}

fn with_client(
    connection: &Connection,
    out: &mut dyn Write,
    work: impl AsyncFnOnce(&mut Context<'_>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let client = connection.client()?;
    let mut context = Context { client: &client, json: connection.json, out };
    block_on(work(&mut context))?
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(CliError::Runtime)?.block_on(work))
}
