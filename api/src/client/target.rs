//! Where a service listens.

use std::fmt;
use std::path::PathBuf;

use hyper::Uri;

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// `HOST:PORT` as given, for the Host header.
        authority: String,
        /// `HOST:PORT`, the port always there, to connect to.
        address: String,
    },
}

/// A URL that no service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not a URL.
    #[error("not a URL: write http://HOST:PORT")]
    Malformed,
    /// TLS and others.
    #[error("only http:// is spoken: for another host, forward the port with ssh")]
    Scheme,
    /// Something beside host and port.
    #[error("write http://HOST:PORT and nothing more: a token goes in --token-file")]
    Excess,
}

impl Target {
    /// Reads `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn from_url(url: &str) -> Result<Self, TargetError> {
        let uri: Uri = url.parse().map_err(|_| TargetError::Malformed)?;
        if uri.scheme_str().ok_or(TargetError::Malformed)? != "http" {
            return Err(TargetError::Scheme);
        }
        let authority = uri.authority().ok_or(TargetError::Malformed)?;
        if authority.as_str().contains('@') || uri.path() != "/" || uri.query().is_some() {
            return Err(TargetError::Excess);
        }
        let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        Ok(Self::Tcp { authority: authority.to_string(), address })
    }

    pub(super) fn host_header(&self) -> &str {
        match self {
            Self::Unix(_) => "localhost",
            Self::Tcp { authority, .. } => authority,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { authority, .. } => write!(f, "http://{authority}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_strictly() {
        let tcp = |authority: &str, address: &str| {
            Ok(Target::Tcp { authority: authority.to_owned(), address: address.to_owned() })
        };
        assert_eq!(Target::from_url("http://h:8080"), tcp("h:8080", "h:8080"));
        assert_eq!(Target::from_url("http://127.0.0.1/"), tcp("127.0.0.1", "127.0.0.1:80"));
        assert_eq!(Target::from_url("http://[::1]:9"), tcp("[::1]:9", "[::1]:9"));
        assert_eq!(Target::from_url("https://h:1"), Err(TargetError::Scheme));
        assert_eq!(Target::from_url("h:1"), Err(TargetError::Malformed));
        assert_eq!(Target::from_url("/v1"), Err(TargetError::Malformed));
        assert_eq!(Target::from_url("http://u:p@h:1"), Err(TargetError::Excess));
        assert_eq!(Target::from_url("http://h:1/v1"), Err(TargetError::Excess));
    }
}
