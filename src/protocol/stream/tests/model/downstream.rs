//! Inputs of clients in the model.

use super::super::steps::request_id;
use super::{Call, Event, Model, Place, TAKEOVER_RETRY_MAX, TAKEOVER_WINDOW};
use crate::headers::Era;
use crate::jsonrpc::RequestId;
use crate::stream::ClientResponse;

impl Model {
    pub(super) fn attach(&mut self, attach: u64, cursor: u64, at: u64) {
        self.position = cursor;
        if self.attached.is_some() {
            self.takeovers.push(at);
        }
        self.attached = Some(attach);
        self.since = at;
        if std::mem::take(&mut self.waits_for_reader) && self.ending.is_none() {
            self.call = Call::PausingUntil(at);
        }
    }

    /// Returns the `retry`, doubled with each takeover within ten seconds of the one before.
    pub(super) fn takeover_retry(&self) -> u64 {
        let mut retry = self.sent_retry;
        let mut last = None;
        for at in &self.takeovers {
            let is_rival = last.is_some_and(|last| at - last < TAKEOVER_WINDOW);
            retry = if is_rival { retry } else { self.sent_retry };
            retry = (retry * 2).min(TAKEOVER_RETRY_MAX);
            last = Some(*at);
        }
        retry
    }

    pub(super) fn touch(&mut self, at: u64) {
        if self.attached.is_none() {
            self.since = at;
        }
    }

    pub(super) fn note_written(&mut self, upto: u64, at: u64) {
        self.position = upto;
        self.written = self.written.max(upto);
        // Each event is written with its id.
        self.primed |= upto > 0;
        self.full_since = self.full_since.map(|_| at);
    }

    pub(super) fn cancel(&mut self, id: &RequestId, at: u64) -> bool {
        let which = self.ids.iter().position(|owed| owed == id);
        let Some(which) = which.filter(|which| self.ending.is_none() && self.is_owed(*which)) else { return false };
        self.cancelled[which] = true;
        if self.is_settled() {
            self.refused = true;
            self.cancel_until = Some(at + self.setup.cancel_grace);
        }
        true
    }

    pub(super) fn answer(&mut self, id: &RequestId, at: u64) -> ClientResponse {
        let mut outcome = ClientResponse::Unknown;
        for (request, answered) in self.events.iter_mut().flat_map(|event| &mut event.requests) {
            if request_id(*request) == *id {
                if !*answered {
                    *answered = true;
                    // The upstream waits for it no more.
                    if self.sealed_at.is_some() {
                        return ClientResponse::Late;
                    }
                    self.quiet_since = at;
                    return ClientResponse::First;
                }
                outcome = ClientResponse::Duplicate;
            }
        }
        outcome
    }

    pub(super) fn answer_lost(&mut self, id: &RequestId) {
        let mut same = self.events.iter_mut().flat_map(|event| &mut event.requests);
        if let Some((_, answered)) = same.find(|(request, answered)| request_id(*request) == *id && *answered) {
            *answered = false;
        }
    }

    pub(super) fn has_open_requests(&self) -> bool {
        self.events.iter().flat_map(|event| &event.requests).any(|(_, answered)| !answered)
    }

    /// Returns the time of the client's turn. Modern clients have none, and neither has a stream
    /// that is about to end.
    pub(super) fn input_turn_at(&self) -> Option<u64> {
        let goes_on = self.has_log() && self.ending.is_none() && self.quiet_end_at().is_none();
        let waits = goes_on && self.setup.era == Era::Legacy && self.has_open_requests();
        if waits { Some(self.quiet_since + self.setup.input_grace) } else { None }
    }

    pub(super) fn begin_turn(&mut self, cursor: u64, at: u64) -> bool {
        let due = self.input_turn_at().is_some_and(|turn| turn <= at);
        let stored = self.events.iter().all(|event| event.place == Place::Stored);
        let begins = due && stored && self.events.iter().skip(cursor as usize).all(Event::is_spent);
        self.last_turn = if begins { Some(cursor) } else { self.last_turn };
        begins
    }

    /// Returns the number of settled requests of this id.
    pub(in super::super) fn count_answered(&self, id: &RequestId) -> usize {
        self.events
            .iter()
            .flat_map(|event| &event.requests)
            .filter(|(request, answered)| request_id(*request) == *id && *answered)
            .count()
    }
}
