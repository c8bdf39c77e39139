//! Limit on the interim responses (1xx) that hyper's client skips.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use tokio::sync::Notify;

use crate::protocol::http1::MAX_INTERIM_HEADS;

/// Error of a request with too many interim responses.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many interim responses came before a response")]
pub(super) struct Endless;

/// Counter of the interim responses to one request. hyper reports them on HTTP/1.1 alone.
pub(super) struct Interim(Arc<InterimCounter>);

#[derive(Default)]
struct InterimCounter {
    seen: AtomicUsize,
    over: Notify,
}

impl Interim {
    /// Counts the interim responses to `request`.
    pub(super) fn of<B>(request: &mut Request<B>) -> Self {
        let counted = Arc::new(InterimCounter::default());
        let counting = counted.clone();
        hyper::ext::on_informational(request, move |_| {
            if counting.seen.fetch_add(1, Ordering::Relaxed) >= MAX_INTERIM_HEADS {
                counting.over.notify_one();
            }
        });
        Self(counted)
    }

    /// Resolves once there are too many.
    pub(super) async fn exceeded(self) -> Endless {
        self.0.over.notified().await;
        Endless
    }
}
