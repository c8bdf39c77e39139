//! What clients do to the model.

use super::super::steps::ask_id;
use super::{Event, Model, Place, TAKEOVER_RETRY_MAX, TAKEOVER_WINDOW};
use crate::protocol::headers::Era;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Answer;

impl Model {
    pub(super) fn attach(&mut self, attach: u64, cursor: u64, at: u64) {
        self.position = cursor;
        if self.attached.is_some() {
            self.takeovers.push(at);
        }
        self.attached = Some(attach);
        self.since = at;
    }

    /// Doubled with each takeover that came within ten seconds of the one before.
    pub(super) fn farewell(&self) -> u64 {
        let mut retry = self.told_retry;
        let mut last = None;
        for at in &self.takeovers {
            let chased = last.is_some_and(|last| at - last < TAKEOVER_WINDOW);
            retry = if chased { retry } else { self.told_retry };
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
        // An event has an id of its own.
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

    pub(super) fn answer(&mut self, id: &RequestId, at: u64) -> Answer {
        let mut outcome = Answer::Unknown;
        for (ask, answered) in self.events.iter_mut().flat_map(|event| &mut event.asks) {
            if ask_id(*ask) == *id {
                if !*answered {
                    *answered = true;
                    // Nobody waits for it any more.
                    if self.sealed_at.is_some() {
                        return Answer::Late;
                    }
                    self.quiet_since = at;
                    return Answer::First;
                }
                outcome = Answer::Again;
            }
        }
        outcome
    }

    pub(super) fn answer_lost(&mut self, id: &RequestId) {
        let mut same = self.events.iter_mut().flat_map(|event| &mut event.asks);
        if let Some((_, answered)) = same.find(|(ask, answered)| ask_id(*ask) == *id && *answered) {
            *answered = false;
        }
    }

    pub(super) fn asks_wait(&self) -> bool {
        self.events.iter().flat_map(|event| &event.asks).any(|(_, answered)| !answered)
    }

    /// Modern clients have no turns, and neither has a stream that is about to end.
    pub(super) fn turn_at(&self) -> Option<u64> {
        let goes_on = self.has_log() && self.ending.is_none() && self.quiet_end_at().is_none();
        let waits = goes_on && self.setup.era == Era::Legacy && self.asks_wait();
        waits.then_some(self.quiet_since + self.setup.input_grace)
    }

    pub(super) fn begin_turn(&mut self, cursor: u64, at: u64) -> bool {
        let due = self.turn_at().is_some_and(|turn| turn <= at);
        let stored = self.events.iter().all(|event| event.place == Place::Stored);
        let begins = due && stored && self.events.iter().skip(cursor as usize).all(Event::is_spent);
        self.last_turn = if begins { Some(cursor) } else { self.last_turn };
        begins
    }

    /// How many requests of this id have been answered.
    pub(in super::super) fn count_answered(&self, id: &RequestId) -> usize {
        self.events
            .iter()
            .flat_map(|event| &event.asks)
            .filter(|(ask, answered)| ask_id(*ask) == *id && *answered)
            .count()
    }
}
