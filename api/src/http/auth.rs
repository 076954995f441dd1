//! The bearer token of TCP listeners.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::Problem;

/// A secret that a client on TCP must present. Never printed.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

/// Fewest characters of a token.
const TOKEN_MIN: usize = 16;
/// How long an answer to a request without the token is held back.
pub(crate) const FAILURE_DELAY: Duration = Duration::from_secs(1);

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No header could carry it.
    #[error("the token must be one line of visible ASCII characters")]
    NotALine,
    /// It could be guessed.
    #[error(
        "the token has {0} characters and needs {TOKEN_MIN}: make one with `openssl rand -hex 32`"
    )]
    TooShort(usize),
}

impl Token {
    /// A token; blanks and line ends around it do not count.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError::NotALine);
        }
        if text.len() < TOKEN_MIN {
            return Err(TokenError::TooShort(text.len()));
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

/// The other end of a connection, for messages. In the extensions of its requests.
#[derive(Clone)]
pub(crate) struct Peer(Arc<str>);

impl Peer {
    pub(crate) fn new(address: &impl fmt::Debug) -> Self {
        Self(format!("{address:?}").into())
    }
}

/// Admits only requests with the token. Others are answered after `delay`.
pub(crate) fn with_token(router: Router, token: Token, delay: Duration) -> Router {
    router.layer(axum::middleware::from_fn_with_state((token, delay), require))
}

/// Middleware: answers 401 to a request without the token, late.
async fn require(
    State((token, delay)): State<(Token, Duration)>,
    request: Request,
    next: Next,
) -> Response {
    if token.admits(request.headers()) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Peer>().map_or("unknown", |peer| &*peer.0);
    tracing::warn!(peer, "a request without the right token was refused");
    tokio::time::sleep(delay).await;
    let detail = "this listener needs the header `Authorization: Bearer TOKEN`";
    let problem = Problem::with_status(StatusCode::UNAUTHORIZED, "EACCES", detail);
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tokio::time::Instant;
    use tower::ServiceExt as _;

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
        assert!(admits("s3cret-s3cret-s3cret\n", Some("Bearer s3cret-s3cret-s3cret")));
        assert!(
            admits("s3cret-s3cret-s3cret", Some("bearer s3cret-s3cret-s3cret")),
            "the scheme has no case (RFC 9110)"
        );
        for wrong in [
            "Bearer s3cret-s3cret-s3cre",
            "Bearer s3cret-s3cret-s3cret2",
            "Basic s3cret-s3cret-s3cret",
            "s3cret-s3cret-s3cret",
            "Bearer",
            "",
        ] {
            assert!(!admits("s3cret-s3cret-s3cret", Some(wrong)), "{wrong}");
        }
        assert!(!admits("s3cret-s3cret-s3cret", None));
    }

    #[test]
    fn a_token_must_be_a_line_that_nobody_guesses() {
        let refused = |text: &str| Token::new(text).err();
        assert_eq!(refused(" \n"), Some(TokenError::TooShort(0)));
        assert_eq!(refused(&"a".repeat(15)), Some(TokenError::TooShort(15)));
        assert_eq!(refused(&"a".repeat(16)), None);
        assert_eq!(refused("two words and some more"), Some(TokenError::NotALine));
    }

    /// The time of the test stands still, but for what is slept.
    #[tokio::test(start_paused = true)]
    async fn only_an_answer_to_a_wrong_token_is_held_back() {
        let token = Token::new("s3cret-s3cret-s3cret").unwrap();
        let app = with_token(Router::new().route("/", get(())), token, FAILURE_DELAY);
        let wrong = (StatusCode::UNAUTHORIZED, FAILURE_DELAY);
        for (value, expected) in [
            (Some("Bearer s3cret-s3cret-s3cret"), (StatusCode::OK, Duration::ZERO)),
            (Some("Bearer s3cret-s3cret-s3cre"), wrong),
            (None, wrong),
        ] {
            let mut request = Request::new(Body::empty());
            if let Some(value) = value {
                request.headers_mut().insert(header::AUTHORIZATION, value.parse().unwrap());
            }
            let begun = Instant::now();
            let answer = app.clone().oneshot(request).await.unwrap();
            assert_eq!((answer.status(), begun.elapsed()), expected, "{value:?}");
        }
    }
}
