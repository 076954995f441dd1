//! Bytes from and to the guest, of serial ports and the virtio console.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use exoprobe_vmm::devices::InputFull;
use exoprobe_vmm::{ControlError, OutputLog, VmState};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::blocking;
use super::problem::Problem;
use super::vm::VmApi;
use crate::service::{Closing, Growth};

/// Content type of bytes.
pub(super) const OCTETS: &str = "application/octet-stream";
/// Header of the offset to go on reading from.
pub(super) const NEXT_OFFSET: &str = "exoprobe-next-offset";

/// Which output to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutputQuery {
    /// Offset of the first byte, since power-on or restore; older bytes than the last MiB are gone.
    #[serde(default)]
    from: u64,
    /// Stream what follows, too, until the client leaves.
    #[serde(default)]
    follow: bool,
}

/// Answers with output; `growth` is that of the log.
pub(super) fn output(
    api: &VmApi,
    log: &Arc<OutputLog>,
    growth: &Growth,
    query: &OutputQuery,
) -> Response {
    let kind = (header::CONTENT_TYPE, OCTETS);
    if !query.follow {
        let chunk = log.read(query.from);
        let next = chunk.end().to_string();
        let headers = [kind, (header::HeaderName::from_static(NEXT_OFFSET), next.as_str())];
        return (headers, chunk.bytes).into_response();
    }
    let follower = Follower {
        log: Arc::clone(log),
        growth: growth.clone(),
        closing: api.closing.clone(),
        offset: query.from,
    };
    let chunks = stream::unfold(follower, Follower::next);
    ([kind], Body::from_stream(chunks)).into_response()
}

/// Sends input by `send`, to a guest that has not stopped.
pub(super) async fn input(
    api: &VmApi,
    send: impl FnOnce() -> Result<(), InputFull> + Send + 'static,
) -> Result<StatusCode, Problem> {
    if matches!(api.vm.state(), VmState::Stopped(_)) {
        return Err(ControlError::Stopped.into());
    }
    blocking(send).await?.map_err(|full| match full.waiting {
        // Not even an empty queue takes them: trying again would not help.
        0 => Problem::too_large("more bytes than the guest's input queue takes: send fewer"),
        _ => full.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// A client that follows output.
struct Follower {
    log: Arc<OutputLog>,
    growth: Growth,
    closing: Closing,
    offset: u64,
}

impl Follower {
    /// The next bytes, once there are some; `None` when the service ends.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            // Before reading, so that no growth after it is missed.
            self.growth.mark_unchanged();
            let chunk = self.log.read(self.offset);
            self.offset = chunk.end();
            if !chunk.bytes.is_empty() {
                return Some((Ok(chunk.bytes.into()), self));
            }
            self.closing.or_changed(&mut self.growth).await?;
        }
    }
}
