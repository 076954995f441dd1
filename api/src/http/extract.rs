//! axum's extractors with problem documents in place of its plain-text rejections.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::integers::with_integers;
use super::problem::Problem;

/// Parameters in the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await?;
        Ok(Self(path.0))
    }
}

/// Parameters after the `?`.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await?;
        Ok(Self(query.0))
    }
}

/// A JSON body. A number such as `7.0` is an integer, as in JSON Schema.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = Bytes::from_request(Request::from_parts(parts.clone(), body), state).await?;
        let read = |body: Bytes| {
            let request = Request::from_parts(parts.clone(), body.into());
            axum::Json::<T>::from_request(request, state)
        };
        let rejection = match read(body.clone()).await {
            Ok(json) => return Ok(Self(json.0)),
            Err(rejection) => rejection,
        };
        match with_integers(&body) {
            Some(body) => Ok(Self(read(body.into()).await?.0)),
            None => Err(rejection.into()),
        }
    }
}

/// A body of any type.
pub(crate) struct Body(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        Ok(Self(Bytes::from_request(request, state).await?))
    }
}

/// A body of any type that must be there: one without a byte has a content type.
pub(crate) struct PresentBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for PresentBody {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_typed = request.headers().contains_key(CONTENT_TYPE);
        let Body(bytes) = Body::from_request(request, state).await?;
        if bytes.is_empty() && !is_typed {
            let detail = "there is no body: one that is empty on purpose has the header `Content-Type: text/plain`";
            return Err(Problem::malformed(detail));
        }
        Ok(Self(bytes))
    }
}

/// The body's media type without its parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Does the client ask for this media type by name?
pub(crate) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut named = values.flat_map(|value| value.split(','));
    named.any(|range| {
        let name = range.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case(media_type)
    })
}

/// Does what may wait for a vCPU or a lock, off the threads that serve connections.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
