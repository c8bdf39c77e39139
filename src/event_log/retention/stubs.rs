//! Stubs in the log. A stub replaces an ended stream that is not in use. A client that returns
//! expands it again.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::event_log::retention::Retention;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::stream::stub::Stub;
use crate::event_log::sweeper::Verdict;
use crate::event_log::writer::stream_table::{Reduced, StreamEntry};
use crate::protocol::ids::StreamId;
use crate::simulation::{self, Bug};

/// References to a stream: of the table, and of its last user.
const LAST_USER: usize = 2;

impl Retention {
    /// Releases a stream that the caller no longer uses. If the caller was the last, and the stream
    /// has ended, its stub replaces it.
    pub fn release(&self, stream: Arc<Stream>) {
        if Arc::strong_count(&stream) > LAST_USER || !stream.is_published() {
            return;
        }
        let (id, now) = (stream.id(), clock::now());
        let Some(end) = Stub::end_of(&stream, now) else { return };
        if let Some(call) = stream.unlisted_call(&end) {
            // Before the stub is in the table: a search by session that misses the stream finds it
            // here.
            if self.sessions.list_finished(stream.binding(), call) {
                call.set_listed();
            } else if stream.handles().secret().is_some()
                && !stream.with_machine(|machine| machine.lifecycle().is_revoked())
            {
                // The session is ending: the record that its end holds finds the stream alone.
                return;
            }
        }
        let Some(Reduced { calls, is_proven }) = self.streams.reduce(stream, end, now) else { return };
        for call in calls {
            self.retry_index.release_stream(&call, id);
        }
        if is_proven {
            self.schedule_second_check(id, now);
        }
    }

    /// Notes a proof that the response with the last message of stream `id` has arrived.
    pub fn note_proven(&self, id: StreamId) {
        let Some(mut known) = self.streams.entries.get_mut(&id) else { return };
        match known.value_mut() {
            StreamEntry::Stream(stream) => {
                let stream = stream.clone();
                // The guard of the map is dropped before the wait for the stream's lock.
                drop(known);
                self.note_delivered(stream, DeliveryCertainty::Proven);
            }
            StreamEntry::Stub(stub) if stub.ends_with_its_delivery() => {
                // The removal locks the entry again.
                drop(known);
                self.streams.entries.remove_if(&id, |_, known| known.stub().is_some());
            }
            StreamEntry::Stub(stub) => {
                let now = clock::now();
                let registrations = stub.prove(now);
                // Each removes itself from the index, without the entry.
                drop(known);
                drop(registrations);
                self.schedule_second_check(id, now);
            }
        }
    }

    /// Schedules a check before the end of the retention. At that check a stub loses its last
    /// response, and a stream becomes a stub again.
    fn schedule_second_check(&self, id: StreamId, now: Instant) {
        self.sweeper.schedule(now + self.streams.quotas.global().allowance.delivered_retention, id);
    }

    /// Returns the stream, rebuilt from its stub if need be. A stub with nothing but the end stays
    /// in place, because its stream has no events to read. Its retention begins anew.
    pub(in crate::event_log) fn expand(&self, id: StreamId) -> Option<Arc<Stream>> {
        let (stream, is_new) = self.expand_briefly(id)?;
        if is_new {
            self.schedule_second_check(id, clock::now());
        }
        Some(stream)
    }

    /// Returns the stream, unless only a stub with a proven delivery is left: it lacks events.
    pub(in crate::event_log) fn expand_unproven(&self, id: StreamId) -> Option<Arc<Stream>> {
        let is_proven = self.streams.entries.get(&id)?.value().stub().is_some_and(|stub| stub.is_proven());
        if is_proven { None } else { self.expand(id) }
    }

    /// Returns the stream as [`Self::expand`] does, and whether it was made of its stub now. The
    /// caller releases it soon: nothing checks whether it is still used.
    pub(in crate::event_log) fn expand_briefly(&self, id: StreamId) -> Option<(Arc<Stream>, bool)> {
        let mut known = self.streams.entries.get_mut(&id)?;
        let stub = match known.value_mut() {
            StreamEntry::Stream(stream) => return Some((stream.clone(), false)),
            StreamEntry::Stub(stub) => stub,
        };
        let is_bare = stub.is_bare();
        if is_bare {
            stub.end.left_at = clock::now();
        }
        let stream = Arc::new(stub.restore(&self.context));
        stream.publish_first();
        if !is_bare {
            let stub = std::mem::replace(known.value_mut(), StreamEntry::Stream(stream.clone()));
            // In this order; see the locks of `StreamTable`.
            drop(known);
            drop(stub);
            if stream.delivery().is_proven() {
                stream.delivery().set_delivered(DeliveryCertainty::Proven);
            }
        }
        Some((stream, !is_bare))
    }

    /// Checks a stub whose time may have come. Returns `None` if no stub has this id.
    pub(in crate::event_log) fn check_stub(&self, id: StreamId, now: Instant) -> Option<Verdict> {
        let mut known = self.streams.entries.get_mut(&id)?;
        let StreamEntry::Stub(stub) = known.value_mut() else { return None };
        let until = stub.kept_until();
        if until <= now || simulation::has(Bug::ForgetsTheLastReader) {
            // The removal locks the entry again.
            drop(known);
            self.streams.entries.remove_if(&id, |_, known| known.stream().is_none());
            return Some(Verdict::Gone);
        }
        // The end of retention is scheduled since the stream was sealed.
        let is_early = stub.drop_response(now);
        // Free before the store is called.
        drop(known);
        if !is_early {
            self.keep_for(id, Some(until), now);
        }
        Some(if is_early { Verdict::Gone } else { Verdict::Until(Some(until)) })
    }
}
