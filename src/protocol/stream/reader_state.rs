//! The state that a stream keeps of its reader: the attached connection, and the progress of all
//! connections so far.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ids::{AttachId, Seq};

/// Takeovers closer together than this count as two readers that displace each other.
const RIVAL_WINDOW: Duration = Duration::from_secs(10);
/// Limit for the `retry` of readers that displace each other.
const RIVAL_RETRY_MAX: Duration = Duration::from_secs(60);

/// The attached connection of a stream, its cursor, and the progress of all connections.
#[derive(Debug)]
pub struct ReaderState {
    attached: Option<AttachId>,
    since: Instant,
    progress: ReaderProgress,
    /// The last event that the attached connection has read.
    position: Seq,
    /// The open connection with an interim result, and the last event before that result.
    unacked_interim: Option<(AttachId, Seq)>,
    /// Number of connections that were ever attached here.
    connections: u32,
    takeovers: Takeovers,
    /// True if the last message is known to have arrived.
    is_delivered: bool,
    has_closed_gracefully: bool,
    /// True if the proxy has ended the last response itself, before its stream.
    has_ended_early: bool,
    /// True if the connection before the last one broke.
    follows_cut: bool,
    given: Given,
    /// Time of the first end of a connection without the whole response.
    first_cut: Option<Instant>,
    /// The `retry` that was last sent downstream.
    last_retry: Duration,
}

/// The way of a client that reads a stream again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// By GET, or by a token.
    ByCursor,
    /// By the stream's URL.
    ByUrl,
    /// By the same POST, or by the token of an interim result. Its client may not resume by GET.
    ByPost,
}

/// Part of the response that the last connection was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Given {
    /// Not all of it.
    #[default]
    Part,
    /// All of it, on a connection that may still break.
    WholeBy(AttachId),
    /// All of it. The end of the connection shows nothing.
    Whole,
}

/// Facts of the last connection of an ended stream. They decide if an equal POST is a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastConnection {
    pub(super) left_at: Instant,
    /// Number of connections that were ever attached.
    pub(super) connections: u32,
    pub(super) is_delivered: bool,
    pub(super) has_closed_gracefully: bool,
    pub(super) is_whole: bool,
    pub(super) first_cut: Option<Instant>,
}

/// The takeovers of a stream by readers that displace each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Takeovers {
    /// Number of takeovers in a row.
    rivals: u32,
    last: Option<Instant>,
}

/// The part of [`ReaderState`] that other processes need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReaderProgress {
    /// True if an event ID was ever written.
    #[serde(rename = "primed")]
    is_primed: bool,
    /// True if a client has ever resumed by GET or by a token.
    #[serde(rename = "returned")]
    has_reconnected: bool,
    /// True if a client has ever resumed by the stream's URL.
    #[serde(rename = "by_url")]
    has_used_url: bool,
    /// The last event written to any connection.
    written: Seq,
    /// The last event that the client confirmed.
    confirmed: Seq,
    /// True if an interim result was ever written.
    #[serde(rename = "has_told")]
    has_interim: bool,
    /// The last event before the newest interim result that has arrived.
    #[serde(rename = "told")]
    acked_interim: Seq,
}

impl ReaderProgress {
    pub(super) fn written(self) -> Seq {
        self.written
    }

    /// Returns the progress without the written position, which is always a little out of date in
    /// the store.
    pub(super) fn without_written(self) -> Self {
        Self { written: Seq(0), ..self }
    }
}

impl ReaderState {
    pub(super) fn new(retry: Duration, now: Instant) -> Self {
        Self {
            attached: None,
            since: now,
            progress: ReaderProgress::default(),
            position: Seq(0),
            unacked_interim: None,
            connections: 0,
            takeovers: Takeovers::default(),
            is_delivered: false,
            has_closed_gracefully: false,
            has_ended_early: false,
            follows_cut: false,
            given: Given::Part,
            first_cut: None,
            last_retry: retry,
        }
    }

    /// Restores the state of an ended stream, without its rest.
    pub(super) fn of_ended(last: LastConnection) -> Self {
        let LastConnection { left_at, connections, is_delivered, has_closed_gracefully, is_whole, first_cut } = last;
        let given = if is_whole { Given::Whole } else { Given::Part };
        let new = Self::new(Duration::ZERO, left_at);
        Self { connections, is_delivered, has_closed_gracefully, given, first_cut, ..new }
    }

    /// Restores the rest of the state of an ended stream.
    pub(super) fn put_rest(&mut self, last_retry: Duration, progress: ReaderProgress, takeovers: Takeovers) {
        (self.last_retry, self.progress, self.takeovers) = (last_retry, progress, takeovers);
    }

    pub(super) fn takeovers(&self) -> Takeovers {
        self.takeovers
    }

    pub(super) fn progress(&self) -> ReaderProgress {
        self.progress
    }

    pub(super) fn restore(&mut self, progress: ReaderProgress) {
        *self = Self { progress, ..Self::new(self.last_retry, self.since) };
    }

    /// Adds the progress of connections in another process to the progress here.
    pub(super) fn merge(&mut self, remote: ReaderProgress) {
        let local = &mut self.progress;
        local.is_primed |= remote.is_primed;
        local.has_reconnected |= remote.has_reconnected;
        local.has_used_url |= remote.has_used_url;
        local.has_interim |= remote.has_interim;
        local.written = local.written.max(remote.written);
        local.confirmed = local.confirmed.max(remote.confirmed);
        local.acked_interim = local.acked_interim.max(remote.acked_interim);
    }

    /// Returns true if `attach` is the current reader.
    pub fn is(&self, attach: AttachId) -> bool {
        self.attached == Some(attach)
    }

    /// Returns the current reader, or `None` if the stream is detached.
    pub fn attached(&self) -> Option<AttachId> {
        self.attached
    }

    /// Returns true if any connection reads now.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Returns true if the last connection closed gracefully after it had carried everything. That
    /// proves no delivery, but its client is not expected to reconnect.
    pub fn has_closed_gracefully(&self) -> bool {
        self.has_closed_gracefully
    }

    /// The proxy ends the response of the connection `attach` before its stream: its client resumes
    /// without an error.
    pub fn handle_early_end(&mut self, attach: AttachId) {
        self.has_ended_early |= self.is(attach);
    }

    /// Returns true if the connection before the last one broke, as far as is known. The first
    /// connection in a process counts as such: it follows a break if it resumes.
    pub fn follows_cut(&self) -> bool {
        self.follows_cut
    }

    /// Returns true if the last message is known to have arrived.
    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// The response that carried the last event is known to have arrived.
    pub fn set_delivered(&mut self) {
        self.is_delivered = true;
    }

    /// The connection that carried the last event closed gracefully.
    pub fn handle_graceful_close(&mut self) {
        self.has_closed_gracefully = self.attached.is_none();
    }

    /// The connection `attach` was given the last event. `may_break`: [`Self::handle_broken`]
    /// follows if it breaks.
    pub fn handle_whole(&mut self, attach: AttachId, may_break: bool) {
        if self.is(attach) {
            self.given = if may_break { Given::WholeBy(attach) } else { Given::Whole };
        }
    }

    /// The connection `attach` of a whole response broke. The client has left now, and not when the
    /// response was written.
    pub fn handle_broken(&mut self, attach: AttachId, now: Instant) {
        if self.given == Given::WholeBy(attach) && self.attached.is_none() {
            self.given = Given::Part;
            self.since = now;
            self.first_cut.get_or_insert(now);
        }
    }

    /// The response passes at `now`: a connection that ended before had nothing of it.
    pub(super) fn handle_passed(&mut self, now: Instant) {
        if self.attached.is_none() {
            self.since = now;
        }
        self.first_cut = self.first_cut.map(|_| now);
    }

    /// Returns the time of the first end of a connection without the whole response. Returns `None`
    /// unless the last connection ended so, and its client is not known to have the response.
    pub(super) fn cut_at(&self) -> Option<Instant> {
        let lacks_response = self.attached.is_none() && self.given == Given::Part;
        let is_cut = lacks_response && !self.is_delivered && !self.has_closed_gracefully;
        is_cut.then(|| self.first_cut.unwrap_or(self.since))
    }

    /// Returns true if the last connection ended before its client had the whole response, as far
    /// as is known.
    pub fn is_cut(&self) -> bool {
        self.cut_at().is_some()
    }

    /// Returns the time that a client needs to resume after its connection broke: twice the last
    /// `retry`, and a second.
    pub fn patience(&self) -> Duration {
        self.last_retry * 2 + Duration::from_secs(1)
    }

    /// Returns true if the last connection was given the whole response, and its end shows nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.given == Given::Whole
    }

    /// Returns true if the connection that was given the whole response may still break.
    pub fn is_settling(&self) -> bool {
        matches!(self.given, Given::WholeBy(_)) && !self.is_delivered
    }

    /// Returns the time since which the stream has been attached or detached.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns true if an event ID was ever written, so that the client has a cursor to resume
    /// from.
    pub fn is_primed(&self) -> bool {
        self.progress.is_primed
    }

    /// Returns true if a client has resumed this stream by GET or by a token before.
    pub fn has_reconnected(&self) -> bool {
        self.progress.has_reconnected
    }

    /// Returns the number of connections that were ever attached in this process.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Returns true if a client has named this stream by its URL before.
    pub fn has_used_url(&self) -> bool {
        self.progress.has_used_url
    }

    /// Returns the last event written to any connection. Written is not received.
    pub fn written(&self) -> Seq {
        self.progress.written
    }

    /// Returns the last event that may be evicted: the position of the attached connection, else
    /// the last event confirmed by or written to any connection.
    pub fn releasable(&self) -> Seq {
        if self.is_attached() { self.position } else { self.progress.written.max(self.progress.confirmed) }
    }

    /// Returns the last event that the client confirmed.
    pub fn confirmed(&self) -> Seq {
        self.progress.confirmed
    }

    /// Returns the cursor of a client that resumes with the token of an interim result. It is the
    /// last event before the newest interim result that was written without an error.
    pub fn interim_cursor(&self) -> Seq {
        let acked = self.progress.acked_interim;
        self.unacked_interim.map_or(acked, |(_, upto)| upto.max(acked))
    }

    /// Records an interim result behind the event at `upto`. `proves`: clients get their token from
    /// interim results alone. The first one then counts as arrived, since only a client that has it
    /// can resume with a token.
    pub(super) fn begin_interim(&mut self, attach: AttachId, upto: Seq, proves: bool) {
        if proves && !self.progress.has_interim {
            self.progress.acked_interim = upto;
        }
        self.progress.has_interim = true;
        self.unacked_interim = Some((attach, upto));
    }

    /// The interim result of `attach` has arrived, or its connection ended before that was known.
    pub fn ack_interim(&mut self, attach: AttachId, has_arrived: bool) {
        if let Some((_, upto)) = self.unacked_interim.take_if(|(sender, _)| *sender == attach)
            && has_arrived
        {
            self.progress.acked_interim = self.progress.acked_interim.max(upto);
        }
    }

    /// Returns the `retry` that was last sent.
    pub fn last_retry(&self) -> Duration {
        self.last_retry
    }

    pub(super) fn set_last_retry(&mut self, retry: Duration) {
        self.last_retry = retry;
    }

    /// Returns the `retry` for the connection that was just displaced: the last one, doubled with
    /// each takeover within [`RIVAL_WINDOW`] of the one before.
    pub fn takeover_retry(&self) -> Duration {
        let base = self.last_retry;
        base.saturating_mul(1 << self.takeovers.rivals.min(16)).min(RIVAL_RETRY_MAX).max(base)
    }

    pub(super) fn attach(&mut self, attach: AttachId, cursor: Seq, now: Instant) {
        self.position = cursor;
        self.connections = self.connections.saturating_add(1);
        if self.attached.is_some() {
            let is_rival = self.takeovers.last.is_some_and(|at| now.saturating_duration_since(at) < RIVAL_WINDOW);
            let rivals = if is_rival { self.takeovers.rivals.saturating_add(1) } else { 1 };
            self.takeovers = Takeovers { rivals, last: Some(now) };
        }
        self.attached = Some(attach);
        self.follows_cut = self.given == Given::Part && !self.has_closed_gracefully && !self.has_ended_early;
        self.has_ended_early = false;
        self.has_closed_gracefully = false;
        self.given = Given::Part;
        self.since = now;
    }

    /// Detaches `attach`. Returns false if it is not the current reader.
    pub(super) fn detach(&mut self, attach: AttachId, now: Instant) -> bool {
        let is_reader = self.is(attach);
        if is_reader {
            self.attached = None;
            self.since = now;
            if self.given == Given::Part {
                self.first_cut.get_or_insert(now);
            }
        }
        is_reader
    }

    /// Restarts the time that counts for a detached stream.
    pub(super) fn touch(&mut self, now: Instant) {
        self.since = now;
    }

    /// An id and a `retry` were written downstream.
    pub(super) fn handle_primed(&mut self, retry: Duration) {
        self.progress.is_primed = true;
        self.last_retry = retry;
    }

    /// A client resumes, and has confirmed the events up to `confirmed`.
    pub(super) fn handle_resume(&mut self, resume: Resume, confirmed: Option<Seq>) {
        self.progress.has_reconnected |= resume != Resume::ByPost;
        self.progress.has_used_url |= resume == Resume::ByUrl;
        self.progress.confirmed = self.progress.confirmed.max(confirmed.unwrap_or_default());
    }

    /// Events up to `upto` were written; each is written with its ID.
    pub(super) fn handle_written(&mut self, upto: Seq) {
        self.progress.is_primed |= upto > Seq(0);
        self.position = upto;
        self.progress.written = self.progress.written.max(upto);
    }
}
