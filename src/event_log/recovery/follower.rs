//! Follower: a stream that another replica writes, copied from the store for readers here.
//!
//! Owned here: the copy of the events, and the reports about local readers to the writer. Absent:
//! the choice of the reader. The writer makes it, because all readers are reported to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::backing::schema::State;
use crate::event_log::replicas::readers::READER_HOLD;
use crate::event_log::retention::Retention;
use crate::event_log::stream::Stream;
use crate::protocol::cluster::{Message, Reader};
use crate::protocol::ids::{Owner, Seq};
use crate::protocol::stream::Batch;
use crate::store::{ChangeSubscription, Error, Read, Stored};

/// Approximate size of one read from the store.
pub(in crate::event_log) const PIECE: usize = 1024 * 1024;
/// Time without readers until a follower ends.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of reports about a reader's progress.
const REPORT: Duration = Duration::from_secs(1);
/// Longest time between two reports. The writer takes a reader for gone after [`READER_HOLD`].
const RENEW: Duration = Duration::from_secs(5);

/// Copies a stream of another replica.
pub(in crate::event_log) struct Follower {
    stream: Arc<Stream>,
    backing: Arc<Backing>,
    here: Owner,
    /// Replica that writes the stream.
    writer: Owner,
    touches: u64,
    reported: Option<(Reader, Instant)>,
}

/// State of the stream in the store.
#[derive(PartialEq, Eq)]
pub(in crate::event_log) enum FollowerState {
    Open,
    Sealed,
    /// Lost or forgotten by the store, or the replica that ended the stream has written other
    /// events than were read here.
    Lost,
}

impl Follower {
    pub(in crate::event_log) fn new(stream: Arc<Stream>, backing: Arc<Backing>, here: Owner) -> Self {
        Self { stream, backing, here, writer: here, touches: 0, reported: None }
    }

    /// Follows the store until the stream is sealed or has had no reader for a while.
    pub(in crate::event_log) async fn run(mut self, retention: Arc<Retention>, subscription: ChangeSubscription) {
        let mut unread_since: Option<Instant> = None;
        loop {
            self.report().await;
            let now = clock::now();
            let is_attached = self.stream.with_machine(|machine| machine.reader().is_attached());
            unread_since = if is_attached { None } else { unread_since.or(Some(now)) };
            let wake_at = unread_since.map_or(now + REPORT, |since| since + IDLE);
            tokio::select! {
                biased;
                () = subscription.changed() => {}
                // The reader has changed, or a client has requested the stream.
                () = self.stream.shared.pump.notified() => {
                    self.touches += 1;
                    continue;
                }
                () = clock::sleep_until(wake_at) => match unread_since {
                    Some(_) => break,
                    None => continue,
                },
            }
            match self.read_store().await {
                Ok(FollowerState::Open) => {}
                // The readers resume, and get the outcome from the owner.
                Ok(FollowerState::Lost) => break,
                Ok(FollowerState::Sealed) => {
                    self.report().await;
                    if retention.keep_restored(&self.backing, &self.stream).await.is_err() {
                        debug!(stream.id = %self.stream.id(), "the retention of a stream could not be extended in the store");
                    }
                    // The last report comes last: while there is a reader, a repeated call counts
                    // as a retry of another's.
                    while self.stream.with_machine(|machine| machine.reader().is_attached()) {
                        self.stream.shared.pump.notified().await;
                    }
                    self.report().await;
                    return;
                }
                // The store notifies once it is back.
                Err(error) => debug!(stream.id = %self.stream.id(), %error, "a follower cannot read the store"),
            }
        }
        retention.forget(&self.stream);
        // A reader that attached meanwhile resumes at a new follower.
        self.stream.leave();
    }

    /// Reports the local reader to the writer, if it has changed or the last report is old.
    async fn report(&mut self) {
        if self.writer == self.here {
            return;
        }
        let Some(coordination) = &self.backing.coordination else { return };
        let now = clock::now();
        let reader = self.stream.replica().local_reader(self.here, self.touches);
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
        match coordination.send(self.writer, &message, READER_HOLD).wait().await {
            Ok(()) => self.reported = Some((reader, now)),
            Err(error) => {
                debug!(stream.id = %self.stream.id(), %error, "a reader could not be reported to the writer of its stream")
            }
        }
    }

    async fn read_store(&mut self) -> Result<FollowerState, Error> {
        Ok(match self.backing.store.load(self.stream.id()).wait().await? {
            Some(stored) => self.catch_up(&stored).await?,
            None => FollowerState::Lost,
        })
    }

    /// Copies the events and the state that the store has and this follower lacks.
    pub(in crate::event_log) async fn catch_up(&mut self, stored: &Stored) -> Result<FollowerState, Error> {
        self.writer = stored.owner;
        let state = State::decode(&stored.state).unwrap_or_default();
        if let Some(after) = state.as_ref().and_then(|state| state.adopted_after) {
            if self.stream.replica().last_kept() > after && self.stream.replica().adopted_after().is_none() {
                return Ok(FollowerState::Lost);
            }
            self.stream.replica().set_adopted(after);
        }
        loop {
            let last = self.stream.replica().last_kept();
            if last >= stored.tail {
                break;
            }
            match self.backing.store.read(self.stream.id(), last, PIECE).wait().await? {
                Read::Events(events) if events.is_empty() => break,
                Read::Events(events) => {
                    let mut batch = Batch::starting_at(Seq(last.0 + 1));
                    // Later events come with a state of their own.
                    for (seq, event) in events.into_iter().take_while(|(seq, _)| *seq <= stored.tail) {
                        // A missing event is an error: a gap is never skipped.
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
                    self.stream.replica().append(&batch);
                }
                Read::Trimmed { upto } => self.stream.replica().skip_to(upto),
                Read::Gone => return Err(Error::Gone),
            }
        }
        self.stream.apply_remote_state(state, stored);
        Ok(if stored.sealed { FollowerState::Sealed } else { FollowerState::Open })
    }
}
