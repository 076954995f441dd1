//! The time that a request's body may take.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::stream;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

/// What a body may take to come.
pub(crate) const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// The body did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body did not come within {0:?}")]
pub(super) struct TooSlow(pub(super) Duration);

/// Cuts off bodies that take longer than `limit`: 408.
pub(crate) fn with_body_deadline(router: Router, limit: Duration) -> Router {
    router.layer(axum::middleware::from_fn_with_state(limit, limit_body))
}

async fn limit_body(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let deadline = Instant::now() + limit;
    let request = request.map(|body| {
        Body::from_stream(stream::try_unfold(body, move |mut body| async move {
            loop {
                let frame = timeout_at(deadline, body.frame()).await;
                let frame = frame.map_err(|_| axum::Error::new(TooSlow(limit)))?;
                let Some(frame) = frame.transpose()? else { return Ok(None) };
                // Trailers are of no use here.
                if let Ok(data) = frame.into_data() {
                    return Ok::<_, axum::Error>(Some((data, body)));
                }
            }
        }))
    });
    next.run(request).await
}

/// The deadline that an error comes from, if it does.
pub(super) fn too_slow<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TooSlow> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Largest body taken, in bytes.
pub const BODY_MAX: usize = 1 << 20;
