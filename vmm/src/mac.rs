//! Addresses of network interfaces.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

/// First byte's bits: an address for a group, and one that no vendor has given.
const GROUP: u8 = 1;
const LOCAL: u8 = 2;

/// An Ethernet address of one interface (EUI-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr([u8; 6]);

/// Why a text is no [`MacAddr`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// It is no address at all.
    #[error("`{0}` is no MAC address: give six bytes in hexadecimal, as 52:54:00:12:34:56")]
    Form(String),
    /// It is that of a group.
    #[error("{0} is the address of a group: the first byte of an interface's is even")]
    Group(String),
}

impl MacAddr {
    /// A random one, locally administered.
    ///
    /// # Errors
    /// The system's.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 6];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        bytes[0] = bytes[0] & !GROUP | LOCAL;
        Ok(Self(bytes))
    }

    /// Its bytes, in the order of the wire.
    #[must_use]
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let form = || MacError::Form(text.to_owned());
        let byte = |word: &str| {
            let is_byte = word.len() == 2 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_byte.then(|| u8::from_str_radix(word, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()).ok_or_else(form)?;
        match bytes[0] & GROUP {
            0 => Ok(Self(bytes)),
            _ => Err(MacError::Group(text.to_owned())),
        }
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacError;

    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(address: MacAddr) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        let address: MacAddr = "52:54:00:AB:cd:0f".parse().unwrap();
        assert_eq!(address.octets(), [0x52, 0x54, 0, 0xab, 0xcd, 0x0f]);
        assert_eq!(address.to_string(), "52:54:00:ab:cd:0f");
        let random = MacAddr::random().unwrap();
        assert_eq!(random.to_string().parse(), Ok(random));
        assert_ne!(MacAddr::random().unwrap(), random);
    }

    #[test]
    fn no_other_text_is_one() {
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "5:54:0:12:34:56", "52:54:00:12:34:+6"]
        {
            assert_eq!(text.parse::<MacAddr>(), Err(MacError::Form(text.to_owned())), "{text}");
        }
        let group = "01:00:5e:00:00:01";
        assert_eq!(group.parse::<MacAddr>(), Err(MacError::Group(group.to_owned())));
    }
}
