//! `--vsock SOCKET[,cid=N]`.

use std::path::PathBuf;

const FORMS: &str = "give SOCKET, and ,cid=N if you like";

/// A vsock device, as the option has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockOption {
    /// The socket.
    pub socket: PathBuf,
    /// The guest's CID, if it is given.
    pub cid: Option<u32>,
}

/// Reads a vsock device as the option has it.
pub(crate) fn parse(text: &str) -> Result<VsockOption, String> {
    let (socket, cid) = match text.rsplit_once(",cid=") {
        Some((socket, cid)) => {
            let number = cid.parse().map_err(|_| format!("`{cid}` is no CID: {FORMS}"))?;
            (socket, Some(number))
        }
        None => (text, None),
    };
    if socket.is_empty() {
        return Err(format!("the socket is missing: {FORMS}"));
    }
    // Absolute, because a snapshot has it, too.
    let socket = std::path::absolute(socket).map_err(|error| error.to_string())?;
    Ok(VsockOption { socket, cid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vsock_device_has_a_socket_and_perhaps_a_cid() {
        let socket = |path: &str, cid| VsockOption { socket: path.into(), cid };
        assert_eq!(parse("/run/v"), Ok(socket("/run/v", None)));
        assert_eq!(parse("/run/a,b,cid=52"), Ok(socket("/run/a,b", Some(52))));
        assert!(parse("v").unwrap().socket.is_absolute());
        for (text, reason) in [
            ("", "the socket is missing: give SOCKET, and ,cid=N if you like"),
            (",cid=3", "the socket is missing"),
            ("/v,cid=", "`` is no CID"),
            ("/v,cid=x", "`x` is no CID: give SOCKET"),
            ("/v,cid=4294967296", "`4294967296` is no CID"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }
}
