//! Readers at other replicas, of streams that are written here.
//!
//! A stream has one reader wherever that is: the newest one the writer has heard of. Owned here: what is known of those that are
//! elsewhere. Invariant: a reader that was displaced does not become the reader again, whatever it says late. Absent: how it is heard
//! and told (`cluster`).

use std::time::Duration;

use crate::clock;
use crate::event_log::backing::reader_table::{Displaced, READER_HOLD, RemoteReader};
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::protocol::cluster::Reader;
use crate::protocol::ids::{AttachId, StreamId};

/// What a reader says that was displaced is recognised for so long.
const REMEMBERED: Duration = Duration::from_secs(60);

impl EventLog {
    /// What another replica says of a reader there. Returns the readers that it displaces, or itself where it was displaced before.
    pub fn note_reader(&self, said: &Reader) -> Vec<Displaced> {
        let Some(stream) = self.streams.get(said.stream) else {
            return Vec::new();
        };
        let now = clock::now();
        let mut readers = self.readers.lock();
        let known = readers.entry(said.stream).or_default();
        let mut displaced = Vec::new();
        // Whoever read there has left, or was followed by another one.
        for before in known.iter_mut().filter(|known| known.from == said.from && known.is_reading) {
            if Some(before.attach) != said.attach {
                before.is_reading = false;
                before.last_seen = now;
                stream.detach_remote(before.attach);
            }
        }
        if let Some(attach) = said.attach {
            match known.iter_mut().find(|known| known.attach == attach) {
                Some(known) if known.is_reading && stream.look(|machine| machine.reader().is(attach)) => {
                    known.last_seen = now
                }
                Some(known) => {
                    known.is_reading = false;
                    known.last_seen = now;
                    displaced.push((said.from, said.stream, attach));
                }
                None => {
                    for other in known.iter_mut().filter(|known| known.is_reading) {
                        other.is_reading = false;
                        other.last_seen = now;
                        displaced.push((other.from, said.stream, other.attach));
                    }
                    known.push(RemoteReader { from: said.from, attach, is_reading: true, last_seen: now, touches: 0 });
                    stream.attach_remote(attach, said.written);
                }
            }
            if displaced.iter().all(|(_, _, gone)| *gone != attach) {
                stream.note_remote_written(said.written);
            }
        }
        let is_asked_again = match known.iter_mut().rev().find(|known| known.from == said.from) {
            Some(known) => std::mem::replace(&mut known.touches, said.touches) < said.touches,
            None => said.touches > 0,
        };
        drop(readers);
        if said.returned && !stream.look(|machine| machine.reader().has_reconnected()) {
            stream.note_return(None);
        }
        if is_asked_again || stream.look(|machine| machine.reader().confirmed() < said.confirmed) {
            stream.note_retry(Some(said.confirmed));
        }
        displaced
    }

    /// The readers elsewhere that a newer one here has displaced since this was last asked. Forgets those that were not heard of.
    pub fn displaced_readers(&self) -> Vec<Displaced> {
        let now = clock::now();
        let mut displaced = Vec::new();
        let mut gone = Vec::new();
        self.readers.lock().retain(|id, known| {
            let stream = self.streams.get(*id);
            for known in known.iter_mut().filter(|known| known.is_reading) {
                let is_reader =
                    stream.as_ref().is_some_and(|stream| stream.look(|machine| machine.reader().is(known.attach)));
                if !is_reader {
                    displaced.push((known.from, *id, known.attach));
                    known.is_reading = false;
                    known.last_seen = now;
                } else if now.saturating_duration_since(known.last_seen) >= READER_HOLD {
                    known.is_reading = false;
                    gone.extend(stream.clone().map(|stream| (stream, known.attach)));
                }
            }
            known.retain(|known| known.is_reading || now.saturating_duration_since(known.last_seen) < REMEMBERED);
            !known.is_empty()
        });
        gone.into_iter().for_each(|(stream, attach): (_, AttachId)| Stream::detach_remote(&stream, attach));
        displaced
    }

    /// The writer of a stream says that a reader here is not the newest.
    pub fn displace(&self, stream: StreamId, attach: AttachId) {
        if let Some(stream) = self.streams.get(stream) {
            stream.detach_remote(attach);
        }
    }
}
