//! Paths of the API, with names of any text in them.

use std::fmt::{Display, Write};

/// A path below `/v1`, percent-encoded, with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPath(String);

impl ApiPath {
    /// `/v1` and the segments after it.
    #[must_use]
    pub fn new(segments: &[&str]) -> Self {
        let mut path = String::from("/v1");
        for segment in segments {
            path.push('/');
            encode(&mut path, segment);
        }
        Self(path)
    }

    /// Adds `key=value` to the query.
    #[must_use]
    pub fn query(mut self, key: &str, value: impl Display) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        encode(&mut self.0, key);
        self.0.push('=');
        encode(&mut self.0, &value.to_string());
        self
    }

    /// Adds `key=value` to the query if there is a value.
    #[must_use]
    pub fn query_if(self, key: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(key, value),
            None => self,
        }
    }

    /// The path as a request line has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// All but RFC 3986's unreserved characters.
fn encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a String takes all");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_segment() {
        let path = ApiPath::new(&["probes", "a/b?c=d#%é", "x"]);
        assert_eq!(path.as_str(), "/v1/probes/a%2Fb%3Fc%3Dd%23%25%C3%A9/x");
        let path = ApiPath::new(&["events"]).query("from", 5).query("a&b", "c d");
        assert_eq!(path.as_str(), "/v1/events?from=5&a%26b=c%20d");
        let path = ApiPath::new(&["events"]).query_if("from", None::<u64>);
        assert_eq!(path.as_str(), "/v1/events");
    }
}
