//! `exoprobe ls`: the services of this user on this host.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::CliError;
use super::format::{Column, printable_json, table};
use crate::client::{ApiPath, Client, ClientError, Target};
use crate::{default_socket, runtime_folder};

/// Longest wait for the answer of one service.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const EXAMPLES: &str = "\
Examples:
  exoprobe ls
  exoprobe ls --json | jq -r '.[] | select(.state == \"running\").socket'

STATE is the guest's, or `dead`: nobody listens on the socket any more (a new `run` with this --socket takes it over, and `rm`
removes it); or `no answer`: the service does not answer within 5 s, or refuses. UPTIME is the guest's, in seconds. Listed are services
whose XDG_RUNTIME_DIR is that of this command.";

/// A service, or the socket that one has left.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Row {
    socket: PathBuf,
    pid: Option<i32>,
    state: String,
    #[serde(flatten)]
    guest: Option<Guest>,
    /// The reason why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The guest, as far as it is shown.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Guest {
    #[serde(skip_serializing)]
    state: String,
    kernel: PathBuf,
    banner: Option<String>,
    memory_mib: u64,
    vcpus: u8,
    seconds: f64,
}

/// Prints the services.
pub(super) async fn run(json: bool, out: &mut dyn Write) -> Result<(), CliError> {
    let sockets = runtime_folder::sockets(&default_socket())?;
    let mut asked: JoinSet<Row> = sockets.into_iter().map(ask).collect();
    let mut rows = Vec::new();
    while let Some(row) = asked.join_next().await {
        rows.push(row.map_err(std::io::Error::from)?);
    }
    rows.sort_by(|a, b| a.socket.cmp(&b.socket));
    match json {
        true => {
            let document = serde_json::to_string(&rows).map_err(ClientError::from)?;
            writeln!(out, "{}", printable_json(&document))?;
        }
        false => writeln!(out, "{}", show(&rows))?,
    }
    Ok(())
}

async fn ask(socket: PathBuf) -> Row {
    let pid = match timeout(PATIENCE, UnixStream::connect(&socket)).await {
        Ok(Ok(stream)) => stream.peer_cred().ok().and_then(|peer| peer.pid()),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return Row { socket, state: "dead".to_owned(), ..Row::default() };
        }
        Ok(Err(error)) => return silent(socket, None, error.to_string()),
        Err(_) => return silent(socket, None, "its queue of connections is full".to_owned()),
    };
    match timeout(PATIENCE, guest(&socket)).await {
        Ok(Ok(guest)) => {
            Row { socket, pid, state: guest.state.clone(), guest: Some(guest), error: None }
        }
        Ok(Err(error)) => silent(socket, pid, error.to_string()),
        Err(_) => silent(socket, pid, format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn silent(socket: PathBuf, pid: Option<i32>, error: String) -> Row {
    Row { socket, pid, state: "no answer".to_owned(), guest: None, error: Some(error) }
}

async fn guest(socket: &Path) -> Result<Guest, ClientError> {
    let client = Client::new(Target::Unix(socket.to_owned()), None)?;
    Ok(serde_json::from_slice(&client.get(&ApiPath::new(&["vm"])).await?)?)
}

fn show(rows: &[Row]) -> String {
    let columns = [
        Column::Number("PID"),
        Column::Text("STATE"),
        Column::Number("VCPUS"),
        Column::Number("MEMORY"),
        Column::Number("UPTIME"),
        Column::Text("KERNEL"),
        Column::Text("SOCKET"),
    ];
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let cells = rows.iter().map(|row| {
        let of = |show: fn(&Guest) -> String| text(row.guest.as_ref().map(show));
        vec![
            text(row.pid.map(|pid| pid.to_string())),
            row.state.clone(),
            of(|guest| guest.vcpus.to_string()),
            of(|guest| format!("{} MiB", guest.memory_mib)),
            of(|guest| format!("{:.0}", guest.seconds)),
            of(kernel),
            row.socket.display().to_string(),
        ]
    });
    table(&columns, cells)
}

/// The kernel's version where it has said it, or its file's name.
fn kernel(guest: &Guest) -> String {
    let version = guest.banner.as_deref().and_then(|banner| banner.split_whitespace().nth(2));
    let file = || guest.kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    version.map_or_else(file, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::client::testing::Fake;

    #[tokio::test]
    async fn services_that_live_and_sockets_that_are_dead_are_told_apart() {
        let vm = r#"{"state":"paused","kernel":"/k/vmlinux","banner":null,"memory_mib":32,"vcpus":2,"seconds":7.6}"#;
        let fake = Fake::text("/v1/vm", vm);
        let target = fake.client().target().to_string();
        let alive = ask(PathBuf::from(&target)).await;
        assert_eq!(alive.pid, i32::try_from(std::process::id()).ok());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dead");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let dead = ask(path.clone()).await;
        assert!(path.exists(), "it is left alone");
        let text = show(&[alive, dead]);
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1][1..7], ["paused", "2", "32", "MiB", "8", "vmlinux"], "{text}");
        assert_eq!(rows[2][..6], ["-", "dead", "-", "-", "-", "-"], "{text}");
        let refusing = Fake::text("/v1/other", "");
        let row = ask(PathBuf::from(refusing.client().target().to_string())).await;
        assert_eq!((row.state.as_str(), row.error.is_some()), ("no answer", true));
    }

    #[test]
    fn a_kernel_is_shown_by_its_version_once_it_is_known() {
        let banner = Some("Linux version 6.1.0-56 (gcc)".to_owned());
        let known = Guest { kernel: "/k/vmlinux".into(), banner, ..Guest::default() };
        assert_eq!(kernel(&known), "6.1.0-56");
        assert_eq!(kernel(&Guest { banner: None, ..known }), "vmlinux");
    }
}
