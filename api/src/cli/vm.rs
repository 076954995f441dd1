//! `exoprobe vm`.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::context::Context;
use super::error::CliError;
use super::format::{members, printable, printable_lines, scalar};
use super::{console, idle};
use crate::client::{ApiPath, ClientError, Payload, Port, Reply, Target};

/// Code of a refusal because the guest has stopped.
const STOPPED: &str = "ESHUTDOWN";

const CONSOLE_EXAMPLES: &str = "\
Examples:
  exoprobe vm console
  exoprobe vm console --follow
  exoprobe vm console --hvc --follow
  echo 'getpid 5' | exoprobe vm console --port 1 --follow

With --follow and a terminal, every key goes to the guest's console, Ctrl-C too; Ctrl-] leaves.
--hvc is the virtio console of `exoprobe run --virtio-console`, /dev/hvc0: the guest knows the
terminal's size there, also when it changes. A serial port has no size (`stty cols 120 rows 40`).
Port 1 takes command lines: they are sent line by line. Piped input is sent as it comes, and the
guest's output goes on after its end, until Ctrl-C.";

const SEND_EXAMPLES: &str = "\
Examples:
  exoprobe vm send getpid 100000
  exoprobe vm send --timeout 5 open /init 100

The words make one line. Exit status: 0 `done`, 1 `error`, 3 no answer in time";

/// Commands about the guest.
#[derive(Debug, Subcommand)]
pub(super) enum VmCommand {
    /// Show what the guest is doing
    #[command(after_help = "Example:\n  exoprobe vm status --json | jq -r .state")]
    Status,
    /// Print the file that `exoprobe run --config` would start this guest from
    #[command(
        after_help = "Examples:\n  exoprobe vm config > machine.toml\n  exoprobe --json vm config > machine.json"
    )]
    Config,
    /// Take all vCPUs out of the guest
    #[command(after_help = "Example:\n  exoprobe vm pause")]
    Pause,
    /// Let a paused guest run on
    #[command(after_help = "Example:\n  exoprobe vm resume")]
    Resume,
    /// Boot the guest again, whatever it is doing
    #[command(after_help = "Example:\n  exoprobe vm reboot")]
    Reboot,
    /// Press the guest's power button: a distribution with ACPI shuts itself down
    #[command(after_help = "Example:\n  exoprobe vm power-button")]
    PowerButton,
    /// Stop the guest, as if its plug were pulled
    #[command(after_help = "Example:\n  exoprobe vm shutdown")]
    Shutdown,
    /// Write the guest's state to a file
    #[command(after_help = "Example:\n  exoprobe vm snapshot booted.snap")]
    Snapshot {
        /// File on the service's host
        path: PathBuf,
    },
    /// Write the guest's memory and registers to a file, as an ELF core for crash and drgn
    #[command(
        after_help = "Example:\n  exoprobe vm dump guest.core && drgn -c guest.core -s vmlinux"
    )]
    Dump {
        /// File on the service's host
        path: PathBuf,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Show a vCPU's registers
    #[command(after_help = "Example:\n  exoprobe vm registers 1")]
    Registers {
        /// Which vCPU
        #[arg(default_value_t = 0)]
        vcpu: u8,
    },
    /// Print what the guest wrote to its console, or to another serial port
    #[command(after_help = CONSOLE_EXAMPLES)]
    Console {
        /// Serial port
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
        port: u8,
        /// The virtio console in place of a serial port
        #[arg(long, conflicts_with = "port")]
        hvc: bool,
        /// Go on with its output, and send it standard input (Ctrl-] leaves)
        #[arg(long, short)]
        follow: bool,
    },
    /// Send the guest's init a command on serial port 1 and print its answer
    #[command(after_help = SEND_EXAMPLES)]
    Send {
        /// How long to wait for the answer
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        timeout: u64,
        /// The command
        #[arg(value_name = "LINE", required = true)]
        words: Vec<String>,
    },
}

pub(super) async fn run(context: &mut Context<'_>, command: VmCommand) -> Result<(), CliError> {
    match command {
        VmCommand::Status => show(context, &ApiPath::new(&["vm"])).await,
        VmCommand::Config => config(context).await,
        VmCommand::Pause => control(context, "pause").await,
        VmCommand::Resume => control(context, "resume").await,
        VmCommand::Reboot => control(context, "reboot").await,
        VmCommand::PowerButton => control(context, "power-button").await,
        VmCommand::Shutdown => control(context, "shutdown").await,
        VmCommand::Snapshot { path } => snapshot(context, &path).await,
        VmCommand::Dump { path, force } => dump(context, &path, force).await,
        VmCommand::Registers { vcpu } => {
            show(context, &ApiPath::new(&["vm", "registers", &vcpu.to_string()])).await
        }
        VmCommand::Console { port, hvc, follow } => {
            let port = if hvc { Port::Virtio } else { Port::Serial(port) };
            if follow {
                console::follow(context, port).await
            } else {
                console::print(context, port).await
            }
        }
        VmCommand::Send { timeout, words } => send(context, &words.join(" "), timeout).await,
    }
}

async fn show(context: &mut Context<'_>, path: &ApiPath) -> Result<(), CliError> {
    let answer = context.client.get(path).await?;
    print(context, &answer, members)
}

async fn config(context: &mut Context<'_>) -> Result<(), CliError> {
    let answer = context.client.get(&ApiPath::new(&["vm", "config"])).await?;
    print(context, &answer, |file| {
        // It came as JSON of members that TOML has, too.
        let text = toml::to_string(file).unwrap_or_else(|_| file.to_string());
        printable_lines(&text).into_owned()
    })
}

async fn control(context: &mut Context<'_>, action: &str) -> Result<(), CliError> {
    let path = ApiPath::new(&["vm", action]);
    let answer = context.client.call(Method::POST, &path, Payload::Empty).await?;
    print(context, &answer, |vm| format!("{}\n", printable(&scalar(&vm["state"]))))
}

async fn snapshot(context: &mut Context<'_>, path: &Path) -> Result<(), CliError> {
    let path = on_service(context, path)?;
    let answer = write(context, "snapshot", json!({ "path": path })).await?;
    print(context, &answer, |made| {
        format!("{}: {} bytes\n", printable(&scalar(&made["path"])), scalar(&made["bytes"]))
    })
}

async fn dump(context: &mut Context<'_>, path: &Path, force: bool) -> Result<(), CliError> {
    let path = on_service(context, path)?;
    let answer = write(context, "dump", json!({ "path": path, "force": force })).await?;
    print(context, &answer, |made| {
        let (path, bytes) = (printable(&scalar(&made["path"])), scalar(&made["bytes"]));
        let stood = match made["stood_ms"].as_u64() {
            None | Some(0) => String::new(),
            Some(ms) => format!("; the guest stood still for {ms} ms"),
        };
        format!("{path}: {bytes} bytes{stood}\n")
    })
}

async fn write(context: &mut Context<'_>, what: &str, body: Value) -> Result<Vec<u8>, CliError> {
    let at = ApiPath::new(&["vm", what]);
    Ok(context.client.call(Method::POST, &at, Payload::Json(body)).await?.to_vec())
}

/// A path as the service is to have it.
fn on_service(context: &Context<'_>, path: &Path) -> Result<String, CliError> {
    // Over a unix socket both ends share a file system, though not a working directory.
    let path = match context.client.target() {
        Target::Unix(_) => std::path::absolute(path)?,
        Target::Tcp { .. } => path.to_owned(),
    };
    path.to_str().map(str::to_owned).ok_or_else(|| CliError::Path(path.clone()))
}

/// Prints an answer as it came, or as `human` puts it.
pub(super) fn print(
    context: &mut Context<'_>,
    answer: &[u8],
    human: impl FnOnce(&Value) -> String,
) -> Result<(), CliError> {
    let Some(value) = context.read(answer)? else { return Ok(()) };
    Ok(write!(context.out, "{}", human(&value))?)
}

async fn send(context: &mut Context<'_>, line: &str, seconds: u64) -> Result<(), CliError> {
    let limit = Duration::from_secs(seconds);
    let command = async {
        match context.client.command(line).await {
            // The watch reports it, with the reason.
            Err(ClientError::Refused(problem)) if problem.code == STOPPED => pending().await,
            reply => reply,
        }
    };
    let reply = tokio::select! {
        // An answer that is there counts, also of a guest that stopped thereafter.
        biased;
        reply = timeout(limit, command) => reply,
        idle = idle::watch(context.client) => return Err(idle),
    };
    let (text, result) = match reply.map_err(|_| CliError::TimedOut(seconds))?? {
        Reply::Done(text) => (text, Ok(())),
        Reply::Failed(text) => (text, Err(CliError::GuestRefused)),
        Reply::Ended => return Err(CliError::Ended),
    };
    match context.json {
        true => context.print_json(&json!({ "ok": result.is_ok(), "reply": text }).to_string())?,
        false => writeln!(context.out, "{}", printable(&text))?,
    }
    context.out.flush()?;
    result
}
