//! `exoprobe vm console`.

use std::pin::pin;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame};

use super::Context;
use super::error::CliError;
use super::tty::Typed;
use crate::client::ClientError;

/// Prints what there is, as the guest wrote it.
pub(super) async fn print(context: &mut Context<'_>, port: u8) -> Result<(), CliError> {
    let (bytes, _) = context.client.serial_read(port).await?;
    Ok(context.out.write_all(&bytes)?)
}

/// Prints what there is and what comes, and sends what is typed, until either side ends.
pub(super) async fn follow(context: &mut Context<'_>, port: u8) -> Result<(), CliError> {
    let (bytes, next) = context.client.serial_read(port).await?;
    context.out.write_all(&bytes)?;
    context.out.flush()?;
    let mut body = context.client.serial_follow(port, next).await?;
    let mut typed = Typed::lines();
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            frame = body.frame() => match frame.transpose().map_err(ClientError::from)? {
                Some(frame) => write(context, &frame)?,
                None => return Ok(()),
            },
            line = next_line(&mut typed), if typed.is_some() => match line {
                Some(line) => context.client.serial_write(port, line).await?,
                None => return Ok(()),
            },
            _ = &mut interrupt => return Ok(()),
        }
    }
}

fn write(context: &mut Context<'_>, frame: &Frame<Bytes>) -> Result<(), CliError> {
    if let Some(data) = frame.data_ref() {
        context.out.write_all(data)?;
        context.out.flush()?;
    }
    Ok(())
}

async fn next_line(typed: &mut Option<Typed>) -> Option<Vec<u8>> {
    typed.as_mut()?.next().await
}
