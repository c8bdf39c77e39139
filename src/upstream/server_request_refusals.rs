//! Error responses of the proxy to server requests, for clients that take no stream and cannot
//! receive them.
//!
//! Owned here: the pending ids, the single refusal of a stream in flight, and the pause before its
//! retry. A server may send requests faster than it takes refusals. Therefore the queue is bounded,
//! and counts against the caller's quota. Absent: which requests are refused (the machine), and the
//! text of a refusal ([`synthetic`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::{Instrument, debug};

use super::server::request::Template;
use super::server::synthetic;
use super::stack::Upstream;
use crate::backoff::Backoff;
use crate::clock;
use crate::event_log::{Reservation, Stream};
use crate::protocol::jsonrpc::RequestId;
use crate::sync;

/// Pauses between two attempts to refuse a server request.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Time limit for the response to a refusal. After it the next refusal is sent.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of one stream's pending refusals: more than a thousand with short ids. A server
/// request beyond it gets no refusal.
const WAITING_BYTES: usize = 64 * 1024;
/// Approximate memory of a pending refusal beside its id.
const COST: usize = 48;

/// Refusals of one stream, sent one at a time in the order of the requests.
pub(super) struct Refusals {
    upstream: Arc<Upstream>,
    stream: Arc<Stream>,
    call: Arc<Template>,
    queue: Mutex<Queue>,
}

struct Queue {
    waiting: VecDeque<RequestId>,
    bytes: usize,
    held: Reservation,
    /// True if a task is running that sends them.
    is_sending: bool,
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
    /// Creates the empty queue of a stream's call.
    pub(super) fn new(upstream: Arc<Upstream>, stream: Arc<Stream>, call: Arc<Template>) -> Arc<Self> {
        let held = stream.quota().reserve(0);
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), bytes: 0, held, is_sending: false });
        Arc::new(Self { upstream, stream, call, queue })
    }

    /// Appends the refusal of a server request to the queue.
    pub(super) fn refuse(self: &Arc<Self>, id: RequestId) {
        let mut queue = self.queue();
        let bytes = queue.bytes + cost(&id);
        if bytes > WAITING_BYTES {
            return debug!(stream.id = %self.stream.id(), "a server sends requests faster than it takes refusals: one gets none");
        }
        queue.waiting.push_back(id);
        queue.set(bytes);
        if !std::mem::replace(&mut queue.is_sending, true) {
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

    /// Takes the first pending id. Without one the task ends.
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
                queue.is_sending = false;
            }
        }
        next
    }

    /// Sends one refusal. The server waits for it: an unwritten refusal is retried until the stream
    /// is sealed. Returns false in that case: the server gets no other refusal.
    async fn send(&self, id: &RequestId) -> bool {
        let template = synthetic::post(&self.call, synthetic::refusal(id));
        let mut backoff = BACKOFF;
        loop {
            let sending = tokio::time::timeout(TIMEOUT, self.upstream.send(&template));
            let may_have_arrived = match sending.await {
                Ok(Ok(_)) => return true,
                Ok(Err(failure)) => {
                    debug!(?failure, "the refusal of a server request did not reach the upstream");
                    failure.may_have_run
                }
                Err(_) => true,
            };
            if self.stream.with_machine(|machine| machine.lifecycle().is_sealed()) {
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
