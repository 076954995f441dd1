//! The end of the service, and output that grows.

use tokio::sync::watch;

/// How far a log of output has grown, as it does.
pub(crate) type Growth = watch::Receiver<u64>;

/// Tells when the service ends.
#[derive(Clone)]
pub(crate) struct Closing(pub(super) watch::Receiver<bool>);

impl Closing {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new(receiver: watch::Receiver<bool>) -> Self {
        Self(receiver)
    }

    /// Has the end come?
    pub(crate) fn is_closed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the end.
    pub(crate) async fn closed(&mut self) {
        // An error means that the service itself is gone.
        let _ = self.0.wait_for(|closing| *closing).await;
    }

    /// Waits for a change of `watched`; `None` when there will be none, or the service ends.
    pub(crate) async fn or_changed<T>(&mut self, watched: &mut watch::Receiver<T>) -> Option<()> {
        tokio::select! {
            biased;
            () = self.closed() => None,
            changed = watched.changed() => changed.ok(),
        }
    }
}
