//! What the upstream does to the model.

use super::super::steps::{Said, ask_id};
use super::{BACKOFF_MAX, Call, Event, Head, Model, Place, STANDALONE_PAUSE_MIN};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::stream::{Effect, Ending, Outcome};

impl Model {
    pub(super) fn stream_head(&mut self) -> bool {
        if self.ending.is_none() {
            self.call = Call::Reading;
            self.upstream_id_was_named = false;
            self.attempts = 0;
        }
        self.take_head(Head::Theirs)
    }

    pub(super) fn plain_head(&mut self) -> bool {
        self.take_head(Head::Passed)
    }

    /// The first head counts, unless the stream has ended without one.
    pub(super) fn take_head(&mut self, head: Head) -> bool {
        let first = self.head.is_none() && self.ending.is_none();
        if first {
            self.head = Some(head);
        }
        first
    }

    pub(super) fn has_log(&self) -> bool {
        matches!(self.head, Some(Head::Theirs | Head::Ours))
    }

    pub(super) fn note_upstream(&mut self, id: Option<&str>, retry: Option<u64>) {
        if let Some(id) = id {
            self.upstream_id_is_new |= self.upstream_id.as_deref() != Some(id);
            self.upstream_id = Some(id.to_owned());
        }
        self.upstream_retry = retry.unwrap_or(self.upstream_retry);
    }

    pub(super) fn log(&mut self, data: &[u8], says: &[Said], at: u64) {
        if !self.has_log() || self.ending.is_some() {
            return;
        }
        let seq = self.push(data, says);
        self.quiet_since = at;
        let mut paid = false;
        for said in says {
            match *said {
                Said::Response { which, error } if self.answered[which].is_none() => {
                    paid |= self.is_owed(which);
                    self.answered[which] = Some(seq);
                    self.errors |= error;
                }
                Said::Ask(ask) if self.setup.refuses_asks => {
                    self.answer(&ask_id(ask), at);
                    self.effects.push(Effect::RefuseAsk(ask_id(ask)));
                }
                Said::Response { .. } | Said::Ask(_) | Said::Other => {}
            }
        }
        let all = self.answered.iter().all(Option::is_some);
        if self.is_request() && (all || (paid && self.is_settled())) {
            self.linger_until = self.linger_until.or(Some(at + self.setup.linger));
        }
    }

    pub(super) fn push(&mut self, data: &[u8], says: &[Said]) -> u64 {
        let asks = says.iter().filter_map(|said| match said {
            Said::Ask(ask) => Some((*ask, false)),
            Said::Response { .. } | Said::Other => None,
        });
        self.events.push(Event {
            bytes: [b"event: message\ndata: ", data, b"\n\n"].concat(),
            place: Place::Staged,
            gone: false,
            asks: asks.collect(),
            only_asks: says.iter().all(|said| matches!(said, Said::Ask(_))),
            is_response: says.iter().any(|said| matches!(said, Said::Response { .. })),
        });
        self.events.len() as u64
    }

    pub(super) fn upstream_end(&mut self, ending: Ending, at: u64) {
        if self.ending.is_some() {
            return;
        }
        let resumable = self.upstream_id_is_new
            && (ending == Ending::Clean || (ending == Ending::Broken && self.setup.resume_hard_cuts));
        let may_mean_id = matches!(ending, Ending::Refused(status) if ![401, 403, 404, 405].contains(&status));
        let anew = !self.is_request() && may_mean_id && self.upstream_id_was_named;
        if anew {
            self.upstream_id = None;
            self.effects.push(Effect::TellGap);
        }
        let pause = match ending {
            Ending::Refused(status) if self.is_request() || (status < 500 && !anew) => None,
            Ending::Refused(_) | Ending::Clean | Ending::Broken | Ending::Unavailable if !self.is_request() => {
                let first = self.upstream_retry.max(STANDALONE_PAUSE_MIN);
                let doubled = first << self.attempts.min(16);
                self.attempts += 1;
                Some(doubled.min(BACKOFF_MAX.max(first)))
            }
            Ending::Refused(_) => None,
            Ending::Clean | Ending::Broken | Ending::Unavailable => resumable.then_some(self.upstream_retry),
        };
        match pause {
            Some(pause) if !(self.is_request() && self.is_settled()) => self.call = Call::PausingUntil(at + pause),
            Some(_) | None => {
                let failure = match ending {
                    Ending::Refused(status) => {
                        Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) }
                    }
                    Ending::Clean | Ending::Broken | Ending::Unavailable => {
                        Failure::after_send(ErrorCode::UpstreamBroke)
                    }
                };
                self.give_up(Outcome::Failed, failure, at);
            }
        }
    }

    /// True where it can still be told as an HTTP status.
    pub(super) fn fail_call(&mut self, failure: Failure, at: u64) -> bool {
        let tellable = self.take_head(Head::Passed);
        if tellable {
            self.call = Call::Over;
        } else {
            self.give_up(Outcome::Failed, failure, at);
        }
        tellable
    }
}
