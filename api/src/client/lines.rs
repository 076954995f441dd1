//! Lines of a body that comes in pieces.

use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Reads a body line by line, as it comes.
#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    partial: Vec<u8>,
    ended: bool,
}

impl Lines {
    /// The lines of `body`.
    #[must_use]
    pub fn new(body: Incoming) -> Self {
        Self { body, partial: Vec::new(), ended: false }
    }

    /// The lines that came next, at least one; `None` at the end. Their line ends are left out, and
    /// an unfinished last line counts.
    ///
    /// Cancel-safe: nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<Vec<String>>, hyper::Error> {
        while !self.ended {
            match self.body.frame().await.transpose()? {
                Some(frame) => {
                    if let Some(data) = frame.data_ref() {
                        self.partial.extend_from_slice(data);
                    }
                }
                None => self.ended = true,
            }
            let whole = take_whole(&mut self.partial, self.ended);
            if !whole.is_empty() {
                return Ok(Some(whole));
            }
        }
        Ok(None)
    }
}

fn take_whole(partial: &mut Vec<u8>, ended: bool) -> Vec<String> {
    let last_end = partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let whole = if ended { partial.len() } else { last_end };
    let rest = partial.split_off(whole);
    let bytes = std::mem::replace(partial, rest);
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_lines_wait_for_their_end() {
        let mut bytes = b"one\r\ntwo\nthr".to_vec();
        assert_eq!(take_whole(&mut bytes, false), ["one", "two"]);
        assert_eq!(bytes, b"thr");
        assert!(take_whole(&mut bytes, false).is_empty());
        assert_eq!(take_whole(&mut bytes, true), ["thr"]);
        assert!(bytes.is_empty());
    }
}
