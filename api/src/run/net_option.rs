//! `--net tap:NAME[,mac=ADDRESS]` and `--net unix:SOCKET[,mac=ADDRESS]`.

use exoprobe_vmm::{MacAddr, NetLink};

const FORMS: &str = "give tap:NAME or unix:SOCKET, and ,mac=ADDRESS if you like";
/// Longest name of an interface (IFNAMSIZ, with its NUL).
const NAME_MAX: usize = 15;

/// A network interface, as the option has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetOption {
    /// The host's side.
    pub link: NetLink,
    /// Its address; a random one if there is none.
    pub mac: Option<MacAddr>,
}

/// Reads a network interface as the option has it.
pub(crate) fn parse(text: &str) -> Result<NetOption, String> {
    let (link, mac) = match text.rsplit_once(",mac=") {
        Some((link, mac)) => (link, Some(mac.parse::<MacAddr>().map_err(|e| e.to_string())?)),
        None => (text, None),
    };
    let link = match link.split_once(':') {
        Some(("tap", name)) => NetLink::Tap(interface(name)?),
        Some(("unix", "")) => return Err(format!("the socket is missing: {FORMS}")),
        Some(("unix", path)) => {
            // Absolute, because a snapshot has it, too.
            NetLink::Socket(std::path::absolute(path).map_err(|error| error.to_string())?)
        }
        _ => return Err(format!("`{link}` is no host side of a network interface: {FORMS}")),
    };
    Ok(NetOption { link, mac })
}

fn interface(name: &str) -> Result<String, String> {
    let is_name = (1..=NAME_MAX).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c == ':' || c == ',' || c.is_whitespace());
    match is_name {
        true => Ok(name.to_owned()),
        false => Err(format!("`{name}` is no name of an interface: {FORMS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_a_host_side_and_an_address() {
        let tap = parse("tap:tap0").unwrap();
        assert_eq!(tap, NetOption { link: NetLink::Tap("tap0".to_owned()), mac: None });
        let socket = parse("unix:/run/a,b,mac=52:54:00:12:34:56").unwrap();
        assert_eq!(socket.link, NetLink::Socket("/run/a,b".into()));
        assert_eq!(socket.mac.unwrap().to_string(), "52:54:00:12:34:56");
        assert_eq!(parse(&socket.link.to_string()).unwrap().link, socket.link);
        for (text, reason) in [
            ("", "`` is no host side of a network interface: give tap:NAME or unix:SOCKET"),
            ("tap0", "`tap0` is no host side"),
            ("tap:", "`` is no name of an interface"),
            ("tap:a-name-too-long-for-one", "`a-name-too-long-for-one` is no name"),
            ("tap:a,mac", "`a,mac` is no name"),
            ("unix:", "the socket is missing"),
            ("tap:tap0,mac=1", "`1` is no MAC address"),
            ("tap:tap0,mac=01:00:00:00:00:00", "01:00:00:00:00:00 is the address of a group"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }
}
