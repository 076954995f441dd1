//! Scripts in the bpftrace language.

use hyper::Method;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::{ApiPath, Client, ClientError, Payload};

/// A script to run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewScript {
    /// Its text.
    pub text: String,
    /// Values of `$1` and on.
    pub params: Vec<String>,
    /// The form of its output: `text` or `json`.
    pub format: &'static str,
    /// Only check it.
    pub dry_run: bool,
    /// Allow `override()`, which changes what the guest does, and `system()`, whose commands its
    /// client is to run.
    #[serde(rename = "unsafe")]
    pub allow_unsafe: bool,
}

/// A script as the service has it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Script {
    /// Its number; 0 if it was only checked.
    pub id: u32,
    /// The status that it gave exit().
    pub exit_status: i32,
    /// Functions that cannot be probed, each with the reason.
    pub refused: Vec<String>,
    /// Actions that ran.
    pub run: u64,
    /// Actions that their filter kept from running.
    pub filtered: u64,
    /// Actions that ended at a limit.
    pub limited: u64,
    /// Hits after exit().
    pub late: u64,
    /// Hits whose record had no room.
    pub lost: u64,
    /// Calls that return probes could not follow.
    pub nmissed: u64,
    /// Warnings, each once.
    pub warnings: Vec<String>,
    /// The number of further ones.
    pub more_warnings: u64,
    /// How its probes are read and armed, if it was only checked.
    #[serde(default)]
    pub explained: Vec<ScriptProbe>,
}

/// How a probe of a script is read and armed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ScriptProbe {
    /// The probe.
    pub probe: String,
    /// The names that its actions can use.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// The values that are read at its hits.
    pub reads: Vec<String>,
    /// Why its actions run at the hits themselves.
    pub exit: Option<String>,
    /// How its places would be armed.
    #[serde(default)]
    pub armed: Vec<ScriptArming>,
}

/// How places of a probe of a script would be armed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ScriptArming {
    /// `jmp`, `int3`, `pending` or `refused`.
    pub by: String,
    /// Why it is no jmp.
    pub reason: Option<String>,
    /// The number of such places.
    pub places: u32,
}

/// Commands of a script's `system()`.
#[derive(Clone, Debug, Deserialize)]
pub struct ScriptCommands {
    /// The number of the first.
    pub first: u64,
    /// In the order in which they were called.
    pub commands: Vec<ScriptCommand>,
}

/// A command of a script's `system()`.
#[derive(Clone, Debug, Deserialize)]
pub struct ScriptCommand {
    /// Bytes of output before it.
    pub at: u64,
    /// Its text, for a shell.
    pub text: String,
}

fn path(id: u32, below: &[&str]) -> ApiPath {
    ApiPath::new(&[&["scripts", &id.to_string()], below].concat())
}

impl Client {
    /// Starts a script, or only checks it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn start_script(&self, new: &NewScript) -> Result<Script, ClientError> {
        let payload = Payload::Json(serde_json::to_value(new)?);
        let answer = self.call(Method::POST, &ApiPath::new(&["scripts"]), payload).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// A script's counts.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn script(&self, id: u32) -> Result<Script, ClientError> {
        Ok(serde_json::from_slice(&self.get(&path(id, &[])).await?)?)
    }

    /// Ends a script; forgets it if it has ended.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn end_script(&self, id: u32) -> Result<(), ClientError> {
        self.call(Method::DELETE, &path(id, &[]), Payload::Empty).await.map(|_| ())
    }

    /// The commands of a script's `system()`, from a number on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn script_commands(&self, id: u32, from: u64) -> Result<ScriptCommands, ClientError> {
        let path = path(id, &["commands"]).query("from", from);
        Ok(serde_json::from_slice(&self.get(&path).await?)?)
    }

    /// Streams a script's output to its end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn follow_script(&self, id: u32) -> Result<Incoming, ClientError> {
        let path = path(id, &["output"]).query("follow", true);
        Ok(self.send(Method::GET, &path, Payload::Empty).await?.into_body())
    }
}
