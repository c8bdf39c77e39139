//! Retention: a finished stream shrinks to a stub once its delivery is proven, and is forgotten in the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::backing;
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery::DeliveryCertainty;
use crate::event_log::sweeper::Verdict;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::protocol::ids::StreamId;
use crate::protocol::stream::Phase;
use crate::simulation::{self, Bug};

/// Interval of the sweep of idle sessions.
const SESSION_SWEEP: Duration = Duration::from_secs(60);

impl EventLog {
    /// Keeps a finished stream until its retention ends.
    pub fn retain(&self, stream: &Arc<Stream>) {
        self.publish_once(stream);
        let until = stream.kept_until();
        let at = until.unwrap_or_else(|| clock::now() + stream.with_machine(|machine| machine.policy().retention));
        self.sweeper.schedule(at, stream.id());
        // The delivery may have been proven before the end of the stream.
        self.reduce_to_stub(stream);
    }

    /// Forgets the stream now.
    pub fn forget(&self, stream: &Arc<Stream>) {
        if stream.is_published() {
            self.streams.forget(stream);
        }
    }

    /// Notes the delivery of the response with the stream's last message. A stream with a proven delivery shrinks to a
    /// stub. A response that passed through is forgotten, unless a retry may still match it.
    pub fn note_delivered(&self, stream: &Arc<Stream>, delivery: DeliveryCertainty) {
        stream.note_delivered(delivery);
        if stream.with_machine(|machine| machine.phase() != Phase::Passed) {
            return self.reduce_to_stub(stream);
        }
        if stream.with_machine(|machine| machine.policy().has_idempotency_key) {
            return;
        }
        if stream.has_retries() && !stream.has_arrived() {
            self.retain(stream);
        } else {
            self.forget(stream);
        }
    }

    /// Replaces a stream with a proven delivery by its stub, if the stub has all that may still be read.
    pub(in crate::event_log) fn reduce_to_stub(&self, stream: &Arc<Stream>) {
        if !stream.is_proven() || !self.streams.has(stream) {
            return;
        }
        let now = clock::now();
        if let Some(stub) = stream.to_stub(now)
            && self.streams.replace(stream, stub.enter())
        {
            // A delivered call cannot be retried.
            stream.forget_retries();
            self.sweeper.schedule(now + self.streams.quotas.global().allowance.delivered_retention, stream.id());
        }
    }

    /// Returns the stream, rebuilt from its stub if need be. A stub without a response stays in place, because its
    /// stream has no events to read; its retention begins anew.
    pub(in crate::event_log) fn expand(&self, id: StreamId) -> Option<Arc<Stream>> {
        let now = clock::now();
        let mut known = self.streams.entries.get_mut(&id)?;
        let stub = match known.value_mut() {
            StreamEntry::Stream(stream) => return Some(stream.clone()),
            StreamEntry::Stub(stub) => stub,
        };
        stub.left_at = now;
        let response = stub.response.take();
        let has_response = response.is_some();
        let stream =
            Arc::new(Stream::from_stub(stub, response, self.identity.clone(), self.bounds, self.backing.clone()));
        stream.publish_first();
        if has_response {
            let stub = std::mem::replace(known.value_mut(), StreamEntry::Stream(stream.clone()));
            // The stub locks its quota when it is dropped, which must not happen under the lock of the map.
            drop(known);
            drop(stub);
            stream.note_delivered(DeliveryCertainty::Proven);
            self.sweeper.schedule(now + self.streams.quotas.global().allowance.delivered_retention, id);
        }
        Some(stream)
    }

    /// Checks a stub whose time may have come. Returns `None` if there is none of this id.
    pub(in crate::event_log) fn check_stub(&self, id: StreamId, now: Instant) -> Option<Verdict> {
        let mut known = self.streams.entries.get_mut(&id)?;
        let StreamEntry::Stub(stub) = known.value_mut() else { return None };
        let until = stub.readable_until();
        if until <= now || simulation::has(Bug::ForgetsTheLastReader) {
            // The guard of the map is dropped before the entry is removed.
            drop(known);
            self.streams.entries.remove_if(&id, |_, known| known.stream().is_none());
            return Some(Verdict::Gone);
        }
        // The end of retention is scheduled since the stream was sealed.
        let is_early = stub.drop_response(now);
        // No other lock is taken under the lock of the map.
        drop(known);
        if !is_early {
            self.keep_for(id, Some(until), now);
        }
        Some(if is_early { Verdict::Gone } else { Verdict::Until(Some(until)) })
    }

    /// Sweeps finished streams and idle sessions, until dropped.
    pub async fn sweep(&self) {
        tokio::join!(self.sweeper.run(|id, now| self.check_retention(id, now)), self.sweep_sessions());
    }

    fn check_retention(&self, id: StreamId, now: Instant) -> Verdict {
        if simulation::has(Bug::KeepsForEver) {
            return Verdict::Until(None);
        }
        let Some(stream) = self.streams.get(id) else {
            return self.check_stub(id, now).unwrap_or(Verdict::Gone);
        };
        match stream.kept_until() {
            Some(until) if until <= now || simulation::has(Bug::ForgetsTheLastReader) => {
                self.streams.forget(&stream);
                Verdict::Gone
            }
            until => {
                // A stream that was rebuilt from its stub shrinks again.
                self.reduce_to_stub(&stream);
                self.keep_for(id, until, now);
                Verdict::Until(until)
            }
        }
    }

    /// Extends the retention of a resumed stream in the store, so that it stays there as long as here, also over a
    /// restart.
    fn keep_for(&self, id: StreamId, until: Option<Instant>, now: Instant) {
        if let Some(backing) = self.backing.clone() {
            let keep = until.unwrap_or(now + backing::KEEP_UNSEALED).saturating_duration_since(now);
            tokio::spawn(async move {
                // The stream stays here in any case.
                let _ = backing.store.keep(id, keep).wait().await;
            });
        }
    }

    async fn sweep_sessions(&self) {
        loop {
            clock::sleep(SESSION_SWEEP).await;
            self.sessions.sweep(clock::now());
            self.streams.quotas.sweep(clock::now());
        }
    }
}
