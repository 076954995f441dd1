//! Guests that do nothing: they are paused, a probe holds them, or they have stopped.

use std::time::Duration;

use serde::Deserialize;

use super::error::CliError;
use super::format::printable;
use crate::client::{ApiPath, Client, ClientError};
use crate::log::say;

/// Delay between two polls of the guest's state.
const LOOK: Duration = Duration::from_millis(500);

/// The guest's state, as far as it matters here.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    state: String,
    stopped: Option<Stopped>,
    #[serde(default)]
    held_by: Vec<HeldBy>,
}

#[derive(Deserialize)]
struct Stopped {
    reason: String,
    message: Option<String>,
}

#[derive(Deserialize)]
struct HeldBy {
    vcpu: u64,
    probe: String,
    addr: String,
}

impl Status {
    /// Why a guest that is paused does not run, and how it does.
    fn paused_text(&self) -> String {
        let held = self.held_by.iter().map(|held| {
            let HeldBy { vcpu, probe, addr } = held;
            format!("; probe {probe} holds vCPU {vcpu} at {addr}")
        });
        let held: String = held.collect();
        printable(&format!("the guest is paused{held}: waiting for `exoprobe vm resume`"))
    }

    fn stopped_text(&self) -> String {
        let (reason, message) = match &self.stopped {
            Some(Stopped { reason, message }) => (reason.as_str(), message.as_deref()),
            None => ("unknown", None),
        };
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        printable(&format!("{reason}{message}"))
    }
}

async fn status(client: &Client) -> Result<Status, ClientError> {
    let answer = client.get(&ApiPath::new(&["vm"])).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Watches the guest while a command waits for its answer. Reports on standard error when it is
/// paused; returns when it has stopped, with the error.
pub(super) async fn watch(client: &Client) -> CliError {
    let (mut reported, mut stopped) = (String::new(), false);
    loop {
        // Whoever waits for the answer finds out what is wrong with the service.
        let Ok(status) = status(client).await else { return std::future::pending().await };
        match status.state.as_str() {
            "paused" => {
                let text = status.paused_text();
                if text != reported {
                    say!("{text}");
                    reported = text;
                }
            }
            // With `run --reboot` it runs again in a moment; and its last answer may be on its way.
            "stopped" if stopped => return CliError::Stopped(status.stopped_text()),
            _ => reported.clear(),
        }
        stopped = status.state == "stopped";
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: &str) -> Status {
        serde_json::from_str(status).unwrap()
    }

    #[test]
    fn a_pause_names_the_probes_that_hold() {
        let plain = read(r#"{"state":"paused","stopped":null,"held_by":[]}"#).paused_text();
        assert!(
            plain.starts_with("the guest is paused: waiting for `exoprobe vm resume`"),
            "{plain}"
        );
        let held = read(
            r#"{"state":"paused","stopped":null,
                "held_by":[{"vcpu":1,"probe":"kprobes/hold\u001b","addr":"0x10"}]}"#,
        );
        let held = held.paused_text();
        assert!(held.contains("probe kprobes/hold\\u{1b} holds vCPU 1 at 0x10"), "{held}");
    }

    #[test]
    fn a_stop_says_why() {
        let status =
            read(r#"{"state":"stopped","stopped":{"reason":"panic","message":"no init"}}"#);
        assert_eq!(status.stopped_text(), "panic: no init");
        let status = read(r#"{"state":"stopped","stopped":{"reason":"reset","message":null}}"#);
        assert_eq!(status.stopped_text(), "reset");
    }
}
