//! A script's maps as an answer.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answers::{NotFound, Problems};
use super::extract::{Path, blocking};
use super::problem::Problem;
use crate::scripts::Scripts;

/// Most KiB of all answers that are being sent.
const ALL_KIB: usize = 64 << 10;
/// Bytes of an answer that are sent at once.
const PART: usize = 64 << 10;
const KIB: usize = 1024;

/// The scripts, and the memory of answers with their maps. One answer is made at a time.
#[derive(Clone)]
pub(crate) struct ScriptMaps {
    scripts: Arc<Scripts>,
    making: Arc<Semaphore>,
    kib: Arc<Semaphore>,
}

impl ScriptMaps {
    pub(crate) fn new(scripts: &Arc<Scripts>) -> Self {
        let (making, kib) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(ALL_KIB)));
        Self { scripts: Arc::clone(scripts), making, kib }
    }
}

/// Takes the memory of an answer of so many bytes.
///
/// # Errors
/// ENOMEM for one that is too long; EAGAIN while others are being sent.
fn take(all: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
    let kib = bytes.div_ceil(KIB);
    if kib > ALL_KIB {
        let (mib, most) = (kib.div_ceil(KIB), ALL_KIB / KIB);
        let detail = format!(
            "the maps are {mib} MiB as JSON, and an answer has {most} MiB at most: print fewer entries in the script"
        );
        return Err(Problem::new("ENOMEM", detail));
    }
    let permits = u32::try_from(kib).expect("at most ALL_KIB");
    Arc::clone(all).try_acquire_many_owned(permits).map_err(|_| {
        Problem::new("EAGAIN", "other answers with maps are being sent: ask again later")
    })
}

/// A script's maps as they are now: an object with a member for each.
#[utoipa::path(get, path = "/v1/scripts/{id}/maps", tag = "scripts", operation_id = "script_maps",
    params(("id" = u32, Path, description = "Its number")),
    responses((status = 200, body = Object), Problems, NotFound))]
pub(crate) async fn maps(
    State(api): State<ScriptMaps>,
    Path(id): Path<u32>,
) -> Result<Response, Problem> {
    let script = api.scripts.find(id)?;
    let made = api.making.acquire().await.expect("it is never closed");
    let engine = Arc::clone(api.scripts.engine());
    let text = blocking(move || {
        // Hits of before are in them.
        engine.drain();
        script.maps()
    });
    let text = text.await?;
    let room = take(&api.kib, text.len())?;
    drop(made);
    // The room goes back when the answer is sent, or its client has gone.
    let parts = stream::unfold((Bytes::from(text), room), |(mut rest, room)| async move {
        if rest.is_empty() {
            return None;
        }
        let part = rest.split_to(rest.len().min(PART));
        Some((Ok::<_, std::convert::Infallible>(part), (rest, room)))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_have_so_much_memory_and_give_it_back() {
        let kib = Arc::new(Semaphore::new(ALL_KIB));
        let take = |bytes: usize| take(&kib, bytes);
        let refused = take((ALL_KIB + 1) * KIB).unwrap_err();
        assert_eq!((refused.status, refused.code), (507, "ENOMEM"));
        let most = take((ALL_KIB - 1) * KIB).unwrap();
        let busy = take(KIB + 1).unwrap_err();
        assert_eq!((busy.status, busy.code), (503, "EAGAIN"));
        drop((take(KIB).unwrap(), most));
        drop(take(ALL_KIB * KIB).unwrap());
    }
}
