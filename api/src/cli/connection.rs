//! Which service to talk to.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::client::{Client, Target};
use crate::token_file;

const SOCKET_VARIABLE: &str = "EXOPROBE_SOCKET";
const TOKEN_VARIABLE: &str = "EXOPROBE_TOKEN";

/// Options of all commands that talk to a service. `run` has some of the same name and meaning:
/// clap lets its own take their place there.
#[derive(Debug, Default, Args)]
pub(super) struct Connection {
    /// Unix socket of the service [env: EXOPROBE_SOCKET]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        conflicts_with = "url",
        help_heading = "Client options"
    )]
    socket: Option<PathBuf>,
    /// Service after a TCP port
    #[arg(long, global = true, value_name = "http://HOST:PORT", help_heading = "Client options")]
    url: Option<String>,
    /// File of mode 0600 with the bearer token that TCP needs [env: EXOPROBE_TOKEN, the token
    /// itself]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Client options")]
    token_file: Option<PathBuf>,
    /// Print JSON, as the service sends it; errors, too, on standard error
    #[arg(long, global = true, help_heading = "Client options")]
    pub(super) json: bool,
}

impl Connection {
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let target = self.target(std::env::var_os(SOCKET_VARIABLE))?;
        Ok(Client::new(target, self.token()?.as_deref())?)
    }

    fn target(&self, from_environment: Option<OsString>) -> Result<Target, CliError> {
        if let Some(url) = &self.url {
            let wrong = |source| CliError::Url { url: url.clone(), source };
            return Target::from_url(url).map_err(wrong);
        }
        let from_environment = from_environment.filter(|path| !path.is_empty());
        let given = self.socket.clone().or(from_environment.map(PathBuf::from));
        Ok(Target::Unix(given.unwrap_or_else(crate::default_socket)))
    }

    fn token(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.token_file else { return Ok(std::env::var(TOKEN_VARIABLE).ok()) };
        Ok(Some(token_file::read(path)?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_given_wins_over_the_environment() {
        let unix = |path: &str| Target::Unix(PathBuf::from(path));
        let mut connection = Connection::default();
        assert_eq!(connection.target(Some("/e".into())).unwrap(), unix("/e"));
        let default = Target::Unix(crate::default_socket());
        assert_eq!(connection.target(Some("".into())).unwrap(), default);
        connection.socket = Some(PathBuf::from("/s"));
        assert_eq!(connection.target(Some("/e".into())).unwrap(), unix("/s"));
        connection = Connection { url: Some("http://h:1".to_owned()), ..Connection::default() };
        let target = connection.target(Some("/e".into())).unwrap();
        assert_eq!(target.to_string(), "http://h:1");
        connection.url = Some("ftp://h".to_owned());
        assert_eq!(connection.target(None).unwrap_err().status(), 2);
    }

    #[test]
    fn a_token_comes_from_its_file_without_the_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let connection = Connection { token_file: Some(path), ..Connection::default() };
        assert_eq!(connection.token().unwrap().as_deref(), Some("secret"));
    }
}
