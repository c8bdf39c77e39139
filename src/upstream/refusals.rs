//! Refusals of a server's questions, where the client takes no stream and so can be asked nothing.
//!
//! Owned here: the ids that wait, the one refusal of a stream that is under way, and the pause before it is tried again. A server may ask
//! faster than it takes refusals, so what waits is bounded, and counts as the caller's bytes. Absent: which questions are refused (the
//! machine), and what a refusal says ([`synthetic`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::{Instrument, debug};

use super::{Template, Upstream, synthetic};
use crate::backoff::Backoff;
use crate::clock;
use crate::event_log::{Holding, Stream};
use crate::protocol::jsonrpc::RequestId;
use crate::sync;

/// Pauses between two attempts to refuse a request of the server.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// A server that has a refusal and gives no status is waited for this long before it gets the next.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the questions of one stream may take that wait to be refused: more than a thousand with short ids. One that comes then gets no
/// answer.
const WAITING_BYTES: usize = 64 * 1024;
/// What one takes beside its id, about.
const COST: usize = 48;

/// The refusals of one stream, in the order of the questions and one at a time.
pub(super) struct Refusals {
    upstream: Arc<Upstream>,
    stream: Arc<Stream>,
    call: Arc<Template>,
    queue: Mutex<Queue>,
}

struct Queue {
    waiting: VecDeque<RequestId>,
    bytes: usize,
    held: Holding,
    /// Whether a task is there that sends them.
    is_sent: bool,
}

impl Queue {
    fn set(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.held.set(bytes);
    }

    fn clear(&mut self) {
        self.waiting = VecDeque::new();
        self.set(0);
    }
}

impl Refusals {
    /// Those of a stream's call; none yet.
    pub(super) fn new(upstream: Arc<Upstream>, stream: Arc<Stream>, call: Arc<Template>) -> Arc<Self> {
        let held = stream.share().hold(0);
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), bytes: 0, held, is_sent: false });
        Arc::new(Self { upstream, stream, call, queue })
    }

    /// Refuses one more question, after those before it.
    pub(super) fn refuse(self: &Arc<Self>, id: RequestId) {
        let mut queue = self.queue();
        let bytes = queue.bytes + cost(&id);
        if bytes > WAITING_BYTES {
            return debug!(stream.id = %self.stream.id(), "a server asks faster than it takes refusals: a question gets none");
        }
        queue.waiting.push_back(id);
        queue.set(bytes);
        if !std::mem::replace(&mut queue.is_sent, true) {
            tokio::spawn(self.clone().send_all().in_current_span());
        }
    }

    async fn send_all(self: Arc<Self>) {
        while let Some(id) = self.next() {
            if !self.send(&id).await {
                self.queue().clear();
            }
        }
    }

    /// The first that waits; after the last the task ends.
    fn next(&self) -> Option<RequestId> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        match &next {
            Some(id) => {
                let left = queue.bytes - cost(id);
                queue.set(left);
            }
            None => {
                queue.clear();
                queue.is_sent = false;
            }
        }
        next
    }

    /// Sends one. The server waits for it, so that one that could not be written is tried until the stream is over. False where that is so
    /// and the server did not answer: it gets no other.
    async fn send(&self, id: &RequestId) -> bool {
        let template = synthetic::post(&self.call, synthetic::refusal(id));
        let mut backoff = BACKOFF;
        loop {
            let sending = tokio::time::timeout(PATIENCE, self.upstream.send(&template, None));
            let may_have_arrived = match sending.await {
                Ok(Ok(_)) => return true,
                Ok(Err(failure)) => {
                    debug!(?failure, "the refusal of a question did not reach the upstream");
                    failure.may_have_run
                }
                Err(_) => true,
            };
            if self.stream.look(|machine| machine.is_sealed()) {
                return false;
            }
            if may_have_arrived {
                return true;
            }
            clock::sleep(backoff.next_pause()).await;
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        sync::lock(&self.queue)
    }
}

fn cost(id: &RequestId) -> usize {
    COST + id.text().len()
}
