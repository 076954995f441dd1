//! `exoprobe vm console`.

use std::future::pending;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::pin::pin;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::context::Context;
use super::error::CliError;
use super::tty::{self, Typed};
use crate::client::{Client, ClientError, Port};

/// The port that takes command lines, which the guest does not echo.
const COMMANDS: Port = Port::Serial(1);
/// Code of a refusal because the guest does not read its port.
const NOT_READ: &str = "EAGAIN";
/// Between two tries to send what the guest has no room for.
const RETRY: Duration = Duration::from_millis(100);

/// Prints all kept output, as the guest wrote it.
pub(super) async fn print(context: &mut Context<'_>, port: Port) -> Result<(), CliError> {
    let (bytes, _) = context.client.read_output(port).await?;
    Ok(context.out.write_all(&bytes)?)
}

/// Connects standard input and output to a port, until the service ends, Ctrl-C, or the escape key.
///
/// Input is sent key by key on a terminal, but for command lines, which are sent line by line; and
/// as it comes where standard input is no terminal. Output goes on after the end of such input. A
/// virtio console has the terminal's size.
pub(super) async fn follow(context: &mut Context<'_>, port: Port) -> Result<(), CliError> {
    let (bytes, next) = context.client.read_output(port).await?;
    context.out.write_all(&bytes)?;
    context.out.flush()?;
    let body = context.client.follow_output(port, next).await?;
    let typed = match port {
        _ if !stdin().is_terminal() => Some(Typed::piped()),
        COMMANDS => Typed::lines(),
        _ => Typed::raw().inspect(|_| say_how_to_leave()),
    };
    let interrupt = pin!(tokio::signal::ctrl_c());
    tokio::select! {
        shown = show(context.out, body) => shown,
        sent = send(context.client, port, typed) => sent,
        resized = pass_size(context.client, port) => resized,
        _ = interrupt => Ok(()),
    }
}

/// Goes to standard error, so that a log of the output has only the guest's bytes.
fn say_how_to_leave() {
    // Without a standard error the message is dropped.
    let _ = writeln!(stderr(), "Connected to the guest's console. Ctrl-] leaves.");
}

/// Prints output as it comes.
async fn show(out: &mut dyn Write, mut body: Incoming) -> Result<(), CliError> {
    while let Some(frame) = body.frame().await.transpose().map_err(ClientError::from)? {
        if let Some(data) = frame.data_ref() {
            out.write_all(data)?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Gives a virtio console the terminal's size, now and at each change. Returns after an error
/// alone.
async fn pass_size(client: &Client, port: Port) -> Result<(), CliError> {
    if port != Port::Virtio {
        return pending().await;
    }
    // Before the size is read, so that no change after it is missed.
    let mut changes = signal(SignalKind::window_change())?;
    loop {
        if let Some((columns, rows)) = tty::size() {
            client.resize_console(columns, rows).await?;
        }
        if changes.recv().await.is_none() {
            return pending().await;
        }
    }
}

/// Sends input as it comes. Returns when the user leaves; never after the end of piped input.
async fn send(client: &Client, port: Port, typed: Option<Typed>) -> Result<(), CliError> {
    let Some(mut typed) = typed else { return pending().await };
    while let Some(bytes) = typed.next().await {
        while let Err(error) = client.write_input(port, bytes.clone()).await {
            match &error {
                ClientError::Refused(problem) if problem.code == NOT_READ => sleep(RETRY).await,
                _ => return Err(error.into()),
            }
        }
    }
    if typed.is_terminal() { Ok(()) } else { pending().await }
}
