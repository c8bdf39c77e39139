//! Readers at other replicas, of streams that are written here.
//!
//! A stream has one reader in the whole cluster: the newest reader in the reports to the writer.
//! Invariant: a displaced reader never becomes the reader again, however late its reports arrive.
//! Absent: the messages (`cluster`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::stream::Stream;
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::cluster::Reader;
use crate::protocol::ids::{AttachId, Owner, StreamId};
use crate::protocol::stream::Resume;
use crate::sync;

/// Time that a reader at another replica counts as reading after its last report.
pub const READER_HOLD: Duration = Duration::from_secs(15);

/// Time that late reports of a displaced reader are recognised.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Readers at other replicas, by stream.
pub struct RemoteReaders {
    streams: Arc<StreamTable>,
    known: Mutex<HashMap<StreamId, Vec<RemoteReader>>>,
    /// Notified of a new local reader that may displace one at another replica.
    displacing: Arc<Notify>,
}

struct RemoteReader {
    from: Owner,
    attach: AttachId,
    is_reading: bool,
    last_seen: Instant,
    touches: u64,
}

/// A displaced reader: its replica, the stream and the attachment.
pub type Displaced = (Owner, StreamId, AttachId);

impl RemoteReaders {
    /// Creates an empty table of the readers of `streams`.
    pub(in crate::event_log) fn new(streams: Arc<StreamTable>, backing: Option<&Arc<Backing>>) -> Self {
        let displacing = backing.map_or_else(Arc::default, |backing| backing.displacing.clone());
        Self { streams, known: Mutex::default(), displacing }
    }

    /// Handles a report about a reader at another replica. Returns the readers that it displaces,
    /// or the reader itself if it was displaced before.
    pub fn note_report(&self, report: &Reader) -> Vec<Displaced> {
        let Some(stream) = self.streams.get(report.stream) else {
            return Vec::new();
        };
        let now = clock::now();
        let mut readers = sync::lock(&self.known);
        let known = readers.entry(report.stream).or_default();
        let mut displaced = Vec::new();
        // The previous reader there has left or was replaced.
        for before in known.iter_mut().filter(|known| known.from == report.from && known.is_reading) {
            if Some(before.attach) != report.attach {
                before.is_reading = false;
                before.last_seen = now;
                stream.replica().detach(before.attach);
            }
        }
        if let Some(attach) = report.attach {
            match known.iter_mut().find(|known| known.attach == attach) {
                Some(known) if known.is_reading && stream.with_machine(|machine| machine.reader().is(attach)) => {
                    known.last_seen = now
                }
                Some(known) => {
                    known.is_reading = false;
                    known.last_seen = now;
                    displaced.push((report.from, report.stream, attach));
                }
                None => {
                    for other in known.iter_mut().filter(|known| known.is_reading) {
                        other.is_reading = false;
                        other.last_seen = now;
                        displaced.push((other.from, report.stream, other.attach));
                    }
                    known.push(RemoteReader {
                        from: report.from,
                        attach,
                        is_reading: true,
                        last_seen: now,
                        touches: 0,
                    });
                    stream.replica().attach(attach, report.written);
                }
            }
            if displaced.iter().all(|(_, _, gone)| *gone != attach) {
                stream.replica().handle_written(report.written);
            }
        }
        let is_asked_again = match known.iter_mut().rev().find(|known| known.from == report.from) {
            Some(known) => std::mem::replace(&mut known.touches, report.touches) < report.touches,
            None => report.touches > 0,
        };
        // The stream is locked below.
        drop(readers);
        if report.returned && !stream.with_machine(|machine| machine.reader().has_reconnected()) {
            stream.resume(Resume::ByCursor, None);
        }
        if is_asked_again || stream.with_machine(|machine| machine.reader().confirmed() < report.confirmed) {
            stream.resume(Resume::ByPost, Some(report.confirmed));
        }
        displaced
    }

    /// Waits until a new local reader of any stream may have displaced one at another replica.
    pub async fn wait_for_displaced(&self) {
        self.displacing.notified().await;
    }

    /// Returns the remote readers that were displaced by a newer one here since the last call.
    /// Forgets readers without recent reports.
    pub fn take_displaced(&self) -> Vec<Displaced> {
        let now = clock::now();
        let mut displaced = Vec::new();
        let mut gone: Vec<(Arc<Stream>, AttachId)> = Vec::new();
        sync::lock(&self.known).retain(|id, known| {
            let stream = self.streams.get(*id);
            for known in known.iter_mut().filter(|known| known.is_reading) {
                let is_reader = stream
                    .as_ref()
                    .is_some_and(|stream| stream.with_machine(|machine| machine.reader().is(known.attach)));
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
        for (stream, attach) in gone {
            stream.replica().detach(attach);
        }
        displaced
    }

    /// Detaches a reader here, because the writer of the stream knows a newer one.
    pub fn displace(&self, stream: StreamId, attach: AttachId) {
        if let Some(stream) = self.streams.get(stream) {
            stream.replica().detach(attach);
        }
    }
}
