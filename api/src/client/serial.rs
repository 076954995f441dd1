//! The guest's serial ports, and its virtio console.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use serde_json::json;
use tokio::time::sleep;

use super::{ApiPath, Client, ClientError, Lines, Payload};

/// Header with the offset after the bytes of an answer.
const NEXT_OFFSET: &str = "exoprobe-next-offset";
/// The port on which the guest's init takes commands.
const COMMAND_PORT: Port = Port::Serial(1);
const RECONNECT: Duration = Duration::from_millis(200);

/// Where the guest's bytes come from, and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A serial port: 0 is the console, 1 takes commands.
    Serial(u8),
    /// The virtio console.
    Virtio,
}

impl Port {
    fn path(self) -> ApiPath {
        match self {
            Self::Serial(number) => ApiPath::new(&["vm", "serial", &number.to_string()]),
            Self::Virtio => ApiPath::new(&["vm", "console"]),
        }
    }
}

/// The guest's answer to a command, without the command's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A line that starts with `done`.
    Done(String),
    /// A line that starts with `error`.
    Failed(String),
    /// The service ended the stream: the guest writes no more.
    Ended,
}

fn next_offset(response: &hyper::Response<Incoming>) -> Result<u64, ClientError> {
    let value = response.headers().get(NEXT_OFFSET);
    let offset = value.and_then(|value| value.to_str().ok()?.parse().ok());
    offset.ok_or(ClientError::NoHeader(NEXT_OFFSET))
}

/// Reads a line as the answer to command `number` (guest/README.md).
fn reply(line: &str, number: u32) -> Option<Reply> {
    let line = line.strip_prefix(&format!("#{number} "))?;
    match line.split(' ').next() {
        Some("done") => Some(Reply::Done(line.to_owned())),
        Some("error") => Some(Reply::Failed(line.to_owned())),
        _ => None,
    }
}

/// A number that another command hardly has: clients do not know of each other.
fn command_number() -> u32 {
    // Each `RandomState` hashes differently; the upper half of a hash is as good as the lower.
    u32::try_from(RandomState::new().hash_one(std::process::id()) >> 32).unwrap_or_default()
}

impl Client {
    /// Reads the output of a port that is kept, and the offset after it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn read_output(&self, port: Port) -> Result<(Bytes, u64), ClientError> {
        let response = self.send(Method::GET, &port.path(), Payload::Empty).await?;
        let next = next_offset(&response)?;
        Ok((response.into_body().collect().await?.to_bytes(), next))
    }

    /// Streams the output of a port from an offset on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn follow_output(&self, port: Port, from: u64) -> Result<Incoming, ClientError> {
        let path = port.path().query("from", from).query("follow", true);
        Ok(self.send(Method::GET, &path, Payload::Empty).await?.into_body())
    }

    /// Sends bytes to a port.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn write_input(&self, port: Port, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.call(Method::POST, &port.path(), Payload::Bytes(bytes)).await?;
        Ok(())
    }

    /// Sets the size of the virtio console's terminal.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn resize_console(&self, columns: u16, rows: u16) -> Result<(), ClientError> {
        let size = Payload::Json(json!({ "columns": columns, "rows": rows }));
        self.call(Method::PUT, &ApiPath::new(&["vm", "console", "size"]), size).await?;
        Ok(())
    }

    /// Sends a line to the guest's command port and waits for its answer, without a limit in time.
    ///
    /// The line goes with a number, which the answer has as well: answers to other commands, also
    /// earlier ones whose sender did not wait, are passed over.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn command(&self, line: &str) -> Result<Reply, ClientError> {
        // The offset comes first, so that no answer is too quick to be seen.
        let response = self.send(Method::GET, &COMMAND_PORT.path(), Payload::Empty).await?;
        let from = next_offset(&response)?;
        drop(response);
        let number = command_number();
        let line = format!("#{number} {line}\n");
        self.write_input(COMMAND_PORT, line.into_bytes()).await?;
        self.await_reply(from, number).await
    }

    async fn await_reply(&self, from: u64, number: u32) -> Result<Reply, ClientError> {
        loop {
            let mut lines = Lines::new(self.follow_output(COMMAND_PORT, from).await?);
            loop {
                match lines.next().await {
                    Ok(Some(batch)) => {
                        if let Some(reply) = batch.iter().find_map(|line| reply(line, number)) {
                            return Ok(reply);
                        }
                    }
                    Ok(None) => return Ok(Reply::Ended),
                    // Nothing is lost: the next stream starts where this one did.
                    Err(_) => break,
                }
            }
            sleep(RECONNECT).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_from_other_lines() {
        assert_eq!(reply("#7 done 5", 7), Some(Reply::Done("done 5".to_owned())));
        assert_eq!(
            reply("#7 error no such command", 7).map(|r| matches!(r, Reply::Failed(_))),
            Some(true)
        );
        assert_eq!(reply("#7 done", 7), Some(Reply::Done("done".to_owned())));
        for other in ["done 5", "#7 done5", " #7 done 5", "#8 done 5", "#77 done 5", "#7done 5"] {
            assert_eq!(reply(other, 7), None, "{other}");
        }
    }
}
