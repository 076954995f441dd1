//! The bearer token of TCP listeners.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::Problem;

/// A secret that a client on TCP must present. Never printed.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

/// The token is empty, or no header could carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token must be one line of visible ASCII characters, at least one")]
pub struct TokenError;

impl Token {
    /// A token; blanks and line ends around it do not count.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError);
        }
        Ok(Self(text.as_bytes().into()))
    }

    /// Does the request carry the token? Takes as long for a wrong one as for a right one.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
        let Some((scheme, given)) = value.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(&self.0))
    }
}

/// Middleware: answers 401 to a request without the token.
pub(crate) async fn require(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.admits(request.headers()) {
        return next.run(request).await;
    }
    let detail = "this listener needs the header `Authorization: Bearer TOKEN`";
    let problem = Problem::with_status(StatusCode::UNAUTHORIZED, "EACCES", detail);
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(token: &str, value: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        Token::new(token).unwrap().admits(&headers)
    }

    #[test]
    fn only_the_token_itself_is_admitted() {
        assert!(admits("s3cret\n", Some("Bearer s3cret")));
        assert!(admits("s3cret", Some("bearer s3cret")), "the scheme has no case (RFC 9110)");
        for wrong in ["Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer", ""] {
            assert!(!admits("s3cret", Some(wrong)), "{wrong}");
        }
        assert!(!admits("s3cret", None));
    }

    #[test]
    fn a_token_must_be_something() {
        assert!(Token::new(" \n").is_err());
        assert!(Token::new("two words").is_err());
    }
}
