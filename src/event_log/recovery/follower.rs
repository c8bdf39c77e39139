//! A stream that another replica writes, as it is read here: it follows the store and appends nothing.
//!
//! Owned here: what is taken from the store, and what the writer is told of readers. Absent: whether a reader may go on, which the writer
//! decides, because it hears of all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::backing::reader_table::READER_HOLD;
use crate::event_log::backing::schema::State;
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::protocol::cluster::{Message, Reader};
use crate::protocol::ids::{Owner, Seq};
use crate::protocol::stream::Batch;
use crate::store::{ChangeSubscription, Error, Read, Stored};

/// Events are taken from the store in pieces of about this size.
pub(in crate::event_log) const PIECE: usize = 1024 * 1024;
/// A mirror that nobody reads is given up after this long.
const IDLE: Duration = Duration::from_secs(30);
/// How often the writer hears how far a reader is.
const REPORT: Duration = Duration::from_secs(1);
/// A writer that does not hear of a reader for [`READER_HOLD`] takes it for gone: it is told this often at least.
const RENEW: Duration = Duration::from_secs(5);
/// A stream that another replica writes.
pub(in crate::event_log) struct Follower {
    stream: Arc<Stream>,
    backing: Arc<Backing>,
    here: Owner,
    /// Who writes it.
    writer: Owner,
    touches: u64,
    reported: Option<(Reader, Instant)>,
}

/// What the store has of it.
#[derive(PartialEq, Eq)]
pub(in crate::event_log) enum FollowerState {
    Open,
    Sealed,
    /// It was lost there, or forgotten; or what was read here of its writer is not what the store has of the one that ended it.
    Lost,
}

impl Follower {
    pub(in crate::event_log) fn new(stream: Arc<Stream>, backing: Arc<Backing>, here: Owner) -> Self {
        Self { stream, backing, here, writer: here, touches: 0, reported: None }
    }

    /// Follows the store until the stream is over, or nobody wants it here any more.
    pub(in crate::event_log) async fn run(mut self, log: Arc<EventLog>, following: ChangeSubscription) {
        let mut unread_since: Option<Instant> = None;
        loop {
            self.report().await;
            let now = clock::now();
            let is_attached = self.stream.look(|machine| machine.reader().is_attached());
            unread_since = if is_attached { None } else { unread_since.or(Some(now)) };
            let wake_at = unread_since.map_or(now + REPORT, |since| since + IDLE);
            tokio::select! {
                biased;
                () = following.changed() => {}
                // Who reads has changed, or somebody asked.
                () = self.stream.pump.notified() => {
                    self.touches += 1;
                    continue;
                }
                () = clock::sleep_until(wake_at) => match unread_since {
                    Some(_) => break,
                    None => continue,
                },
            }
            match self.look().await {
                Ok(FollowerState::Open) => {}
                // Its readers come back, and are told by whoever has it what became of it.
                Ok(FollowerState::Lost) => break,
                Ok(FollowerState::Sealed) => {
                    self.report().await;
                    if log.keep_restored(&self.backing, &self.stream).await.is_err() {
                        debug!(stream.id = %self.stream.id(), "the store could not be told to keep a stream");
                    }
                    // As the last thing: while somebody reads, the same call again would be another one's.
                    while self.stream.look(|machine| machine.reader().is_attached()) {
                        self.stream.pump.notified().await;
                    }
                    self.report().await;
                    return;
                }
                // It tells when it is back.
                Err(error) => debug!(stream.id = %self.stream.id(), %error, "a mirror cannot look"),
            }
        }
        log.streams.forget(&self.stream);
        // Somebody may have come in the meantime: it finds another one.
        self.stream.leave();
    }

    /// Tells the writer who reads here, if that is news or was said long ago.
    async fn report(&mut self) {
        let Some(shared) = self.backing.shared.as_ref().filter(|_| self.writer != self.here) else { return };
        let now = clock::now();
        let reader = self.stream.local_reader(self.here, self.touches);
        let is_news = match &self.reported {
            None => reader.attach.is_some() || reader.touches > 0,
            Some((before, at)) => {
                let is_due = reader.attach.is_some() && now.saturating_duration_since(*at) >= RENEW;
                *before != reader || is_due
            }
        };
        if !is_news {
            return;
        }
        let message = Message::Reader(reader.clone()).encode();
        match shared.send(self.writer, &message, READER_HOLD).wait().await {
            Ok(()) => self.reported = Some((reader, now)),
            Err(error) => {
                debug!(stream.id = %self.stream.id(), %error, "the writer of a stream could not be told of a reader")
            }
        }
    }

    async fn look(&mut self) -> Result<FollowerState, Error> {
        Ok(match self.backing.store.load(self.stream.id()).wait().await? {
            Some(stored) => self.catch_up(&stored).await?,
            None => FollowerState::Lost,
        })
    }

    /// Takes what the store has and this does not.
    pub(in crate::event_log) async fn catch_up(&mut self, stored: &Stored) -> Result<FollowerState, Error> {
        self.writer = stored.owner;
        let state = State::decode(&stored.state).unwrap_or_default();
        if let Some(after) = state.as_ref().and_then(|state| state.adopted_after) {
            if self.stream.last_kept() > after && self.stream.adopted_after().is_none() {
                return Ok(FollowerState::Lost);
            }
            self.stream.note_adopted(after);
        }
        loop {
            let last = self.stream.last_kept();
            if last >= stored.tail {
                break;
            }
            match self.backing.store.read(self.stream.id(), last, PIECE).wait().await? {
                Read::Events(events) if events.is_empty() => break,
                Read::Events(events) => {
                    let mut batch = Batch::starting_at(Seq(last.0 + 1));
                    // What came since has a state of its own.
                    for (seq, event) in events.into_iter().take_while(|(seq, _)| *seq <= stored.tail) {
                        // A hole is a gap, and never passed over.
                        if seq.0 != last.0 + batch.len() as u64 + 1 {
                            return Err(Error::Unavailable(format!(
                                "event {} is missing",
                                last.0 + batch.len() as u64 + 1
                            )));
                        }
                        batch.push_encoded(&event);
                    }
                    if batch.is_empty() {
                        return Err(Error::Unavailable(format!("event {} is missing", last.0 + 1)));
                    }
                    self.stream.append_remote(&batch);
                }
                Read::Trimmed { upto } => self.stream.skip_to(upto),
                Read::Gone => return Err(Error::Gone),
            }
        }
        self.stream.apply_remote_state(state, stored);
        Ok(if stored.sealed { FollowerState::Sealed } else { FollowerState::Open })
    }
}
