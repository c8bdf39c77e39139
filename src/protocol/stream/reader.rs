//! The one connection a stream may be attached to.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::protocol::ids::{AttachId, Seq};

/// Takeovers closer together than this count as two readers chasing each other.
const CHASE_WINDOW: Duration = Duration::from_secs(10);
/// The longest `retry` that chasing readers are told.
const CHASE_RETRY_MAX: Duration = Duration::from_secs(60);

/// Who reads a stream now, and what earlier connections were given.
#[derive(Debug)]
pub struct Reader {
    attached: Option<AttachId>,
    since: Instant,
    primed: bool,
    returned: bool,
    by_url: bool,
    /// How far the attached connection has read.
    position: Seq,
    written: Seq,
    confirmed: Seq,
    /// Whether an interim result was ever written.
    has_told: bool,
    /// Behind which event the last interim result stands that has arrived.
    told: Seq,
    /// The same of one whose connection is still open, and who read that.
    telling: Option<(AttachId, Seq)>,
    /// Connections that were ever attached here.
    connections: u32,
    chases: u32,
    last_takeover: Option<Instant>,
    /// The last connection ended in peace after it had carried everything.
    has_parted: bool,
}

/// What is known of its readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) primed: bool,
    pub(super) returned: bool,
    pub(super) by_url: bool,
    pub(super) written: Seq,
    pub(super) confirmed: Seq,
    pub(super) has_told: bool,
    pub(super) told: Seq,
}

impl Reader {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            attached: None,
            since: now,
            primed: false,
            returned: false,
            by_url: false,
            position: Seq(0),
            written: Seq(0),
            confirmed: Seq(0),
            has_told: false,
            told: Seq(0),
            telling: None,
            connections: 0,
            chases: 0,
            last_takeover: None,
            has_parted: false,
        }
    }

    /// Counts connections that were attached before the stream was shortened.
    pub(super) fn note_earlier(&mut self, connections: u32) {
        self.connections = self.connections.saturating_add(connections);
    }

    pub(super) fn known(&self) -> Known {
        let &Self { primed, returned, by_url, written, confirmed, has_told, told, .. } = self;
        Known { primed, returned, by_url, written, confirmed, has_told, told }
    }

    pub(super) fn restore(&mut self, known: Known) {
        let Known { primed, returned, by_url, written, confirmed, has_told, told } = known;
        *self = Self { primed, returned, by_url, written, confirmed, has_told, told, ..Self::new(self.since) };
    }

    /// What is known of it elsewhere, besides what is known here.
    pub(super) fn learn(&mut self, known: Known) {
        self.primed |= known.primed;
        self.returned |= known.returned;
        self.by_url |= known.by_url;
        self.has_told |= known.has_told;
        self.written = self.written.max(known.written);
        self.confirmed = self.confirmed.max(known.confirmed);
        self.told = self.told.max(known.told);
    }

    /// Whether `attach` is the connection that reads now.
    pub fn is(&self, attach: AttachId) -> bool {
        self.attached == Some(attach)
    }

    /// The connection that reads now.
    pub fn attached(&self) -> Option<AttachId> {
        self.attached
    }

    /// Whether any connection reads now.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Whether the last connection ended in peace after it had carried everything. That proves nothing, but its client is not
    /// expected to come back.
    pub fn has_parted(&self) -> bool {
        self.has_parted
    }

    pub(super) fn part(&mut self) {
        self.has_parted = self.attached.is_none();
    }

    /// Since when it has been attached or detached.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether an id was ever written, so that the client has something to come back with.
    pub fn is_primed(&self) -> bool {
        self.primed
    }

    /// Whether a client has come back to this stream by GET before.
    pub fn has_returned(&self) -> bool {
        self.returned
    }

    /// Connections that were ever attached in this process.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Whether a client has named this stream by its URL before.
    pub fn has_used_url(&self) -> bool {
        self.by_url
    }

    /// The last event written to any connection. Written is not received.
    pub fn written(&self) -> Seq {
        self.written
    }

    /// The last event that may go when room is needed: what the attached connection has read, else what was confirmed or
    /// written to any.
    pub fn releasable(&self) -> Seq {
        if self.is_attached() { self.position } else { self.written.max(self.confirmed) }
    }

    /// The last event the client confirmed.
    pub fn confirmed(&self) -> Seq {
        self.confirmed
    }

    /// What a client has that comes back with the token of an interim result: all that precedes the last one that was written
    /// without an error.
    pub fn told(&self) -> Seq {
        self.telling.map_or(self.told, |(_, upto)| upto.max(self.told))
    }

    pub(super) fn tell(&mut self, attach: AttachId, upto: Seq, proves: bool) {
        if proves && !self.has_told {
            self.told = upto;
        }
        self.has_told = true;
        self.telling = Some((attach, upto));
    }

    pub(super) fn settle(&mut self, attach: AttachId, has_arrived: bool) {
        if let Some((_, upto)) = self.telling.take_if(|(telling, _)| *telling == attach)
            && has_arrived
        {
            self.told = self.told.max(upto);
        }
    }

    /// The `retry` of the connection that was just taken over: doubled with each takeover within [`CHASE_WINDOW`].
    pub(super) fn takeover_retry(&self, base: Duration) -> Duration {
        base.saturating_mul(1 << self.chases.min(16)).min(CHASE_RETRY_MAX).max(base)
    }

    pub(super) fn attach(&mut self, attach: AttachId, cursor: Seq, now: Instant) {
        self.position = cursor;
        self.connections = self.connections.saturating_add(1);
        if self.attached.is_some() {
            let chasing = self.last_takeover.is_some_and(|at| now.saturating_duration_since(at) < CHASE_WINDOW);
            self.chases = if chasing { self.chases.saturating_add(1) } else { 1 };
            self.last_takeover = Some(now);
        }
        self.attached = Some(attach);
        self.has_parted = false;
        self.since = now;
    }

    pub(super) fn detach(&mut self, attach: AttachId, now: Instant) -> bool {
        let current = self.is(attach);
        if current {
            self.attached = None;
            self.since = now;
        }
        current
    }

    /// Restarts the detached timer: somebody asked for the stream.
    pub(super) fn touch(&mut self, now: Instant) {
        self.since = now;
    }

    pub(super) fn prime(&mut self) {
        self.primed = true;
    }

    pub(super) fn note_return(&mut self) {
        self.returned = true;
    }

    pub(super) fn note_url(&mut self) {
        self.by_url = true;
    }

    /// Each event is written with its id.
    pub(super) fn write(&mut self, upto: Seq) {
        self.primed |= upto > Seq(0);
        self.position = upto;
        self.written = self.written.max(upto);
    }

    pub(super) fn confirm(&mut self, upto: Seq) {
        self.confirmed = self.confirmed.max(upto);
    }
}
