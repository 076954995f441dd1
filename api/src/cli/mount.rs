//! `exoprobe mount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::background::Background;
use super::connection::Connection;
use super::error::CliError;
use crate::client::Client;
use crate::log::say;
use crate::mount::{Mounted, Unmounted, take_away};
use crate::run::Signals;

/// Threads that answer the kernel: none of them waits.
const THREADS: usize = 2;
/// Longest wait at the end for answers that are under way.
const LAST_CALLS: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  mkdir -p /tmp/tracing
  exoprobe mount --background /tmp/tracing
  echo 'p:myprobe do_sys_openat2 a0 a1' >> /tmp/tracing/kprobe_events
  echo 1 > /tmp/tracing/events/kprobes/myprobe/enable
  cat /tmp/tracing/trace_pipe
  exoprobe mount --unmount /tmp/tracing";

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MountArgs {
    /// Empty folder to mount on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Take a mount away, also one that a process has left that was killed
    #[arg(long, conflicts_with = "background")]
    unmount: bool,
    /// Return as soon as it is mounted, and continue in the background until it is unmounted
    #[arg(long)]
    background: bool,
    /// With --background: file for messages after that [default: none is kept]
    #[arg(long, value_name = "FILE", requires = "background")]
    log: Option<PathBuf>,
}

pub(super) fn run(connection: &Connection, args: &MountArgs) -> Result<(), CliError> {
    if args.unmount {
        return Ok(take_away(&args.dir)?);
    }
    let background = match args.background {
        true => match Background::begin(args.log.as_deref())? {
            None => return Ok(()),
            child => child,
        },
        false => None,
    };
    let client = connection.client()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(THREADS).enable_all().build();
    let runtime = runtime.map_err(CliError::Runtime)?;
    let result = runtime.block_on(mount(client, &args.dir, background));
    runtime.shutdown_timeout(LAST_CALLS);
    result
}

/// Mounts, until a signal comes or it is unmounted.
async fn mount(client: Client, dir: &Path, background: Option<Background>) -> Result<(), CliError> {
    // Before the mount: none may remain.
    let mut signals = Signals::new().map_err(CliError::Runtime)?;
    let target = client.target().clone();
    let mut mounted = Mounted::new(client, dir, |notice| say!("{notice}")).await?;
    let point = mounted.point().display();
    match background {
        None => say!("{target} is mounted on {point}; Ctrl-C unmounts it"),
        Some(background) => {
            say!("{target} is mounted on {point}; `exoprobe mount --unmount` ends it");
            if let Err(error) = background.ready() {
                mounted.unmount().await?;
                return Err(error);
            }
        }
    }
    tokio::select! {
        () = signals.next() => {}
        () = mounted.ended() => {
            say!("{} was unmounted", mounted.point().display());
            return Ok(());
        }
    }
    let point = mounted.point().to_owned();
    if mounted.unmount().await? == Unmounted::InUse {
        say!("{} was still in use: its users get errors now", point.display());
    }
    Ok(())
}
