//! Inputs of the upstream in the model.

use super::super::steps::{MessageKind, request_id};
use super::{AT_ONCE, AT_ONCE_BACKOFF_MAX, BACKOFF_MAX, Call, Event, Head, Model, Place, STANDALONE_PAUSE_MIN};
use crate::error::{ErrorCode, Failure};
use crate::jsonrpc::RequestId;
use crate::stream::{Effect, Ending, Outcome};

impl Model {
    pub(super) fn stream_head(&mut self) -> bool {
        if self.ending.is_none() {
            self.call = Call::Reading;
            self.upstream_id_was_named = false;
            self.attempts = 0;
        }
        self.take_head(Head::Theirs)
    }

    /// Takes a response that passes. It counts as left by its client now if that has left before.
    pub(super) fn pass_head(&mut self, at: u64) -> bool {
        let first = self.take_head(Head::Passed);
        if first {
            self.touch(at);
        }
        first
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
        (self.has_event, self.has_had_event) = (true, true);
        if let Some(id) = id {
            self.upstream_id_is_new |= self.upstream_id.as_deref() != Some(id);
            self.upstream_id = Some(id.to_owned());
        }
        self.upstream_retry = retry.unwrap_or(self.upstream_retry);
    }

    pub(super) fn log(&mut self, data: &[u8], messages: &[MessageKind], at: u64) {
        if !self.has_log() || self.ending.is_some() {
            return;
        }
        let seq = self.push(data, messages);
        self.quiet_since = at;
        let mut paid = false;
        for message in messages {
            match *message {
                MessageKind::Response { which, error } if self.answered[which].is_none() => {
                    paid |= self.is_owed(which);
                    self.answered[which] = Some(seq);
                    self.errors |= error;
                }
                MessageKind::Request(request) if self.setup.should_refuse_requests => {
                    self.answer(&request_id(request), at);
                    self.effects.push(Effect::RefuseServerRequest(request_id(request)));
                }
                MessageKind::Stranger(id) if !self.is_request() => {
                    self.effects.push(Effect::RecordResponse(RequestId::String(id.into())));
                }
                MessageKind::Response { .. }
                | MessageKind::Request(_)
                | MessageKind::Stranger(_)
                | MessageKind::Other => {}
            }
        }
        let all = self.answered.iter().all(Option::is_some);
        if self.is_request() && (all || (paid && self.is_settled())) {
            self.linger_until = self.linger_until.or(Some(at + self.setup.linger));
        }
    }

    pub(super) fn push(&mut self, data: &[u8], messages: &[MessageKind]) -> u64 {
        let requests = messages.iter().filter_map(|message| match message {
            MessageKind::Request(request) => Some((*request, false)),
            MessageKind::Response { .. } | MessageKind::Stranger(_) | MessageKind::Other => None,
        });
        self.events.push(Event {
            bytes: [b"event: message\ndata: ", data, b"\n\n"].concat(),
            place: Place::Staged,
            gone: false,
            requests: requests.collect(),
            is_requests_only: messages.iter().all(|message| matches!(message, MessageKind::Request(_))),
            is_response: messages.iter().any(|message| matches!(message, MessageKind::Response { .. })),
        });
        self.events.len() as u64
    }

    pub(super) fn upstream_end(&mut self, ending: Ending, at: u64) {
        if self.ending.is_some() {
            return;
        }
        let resumable = self.upstream_id_is_new
            && (ending == Ending::Clean || (ending == Ending::Broken && self.setup.should_resume_hard_cuts));
        let may_mean_id = matches!(ending, Ending::Refused(status) if ![401, 403, 404, 405].contains(&status));
        let is_anew = !self.is_request() && may_mean_id && self.upstream_id_was_named;
        if is_anew {
            self.upstream_id = None;
            self.effects.push(Effect::AnnounceGap);
        }
        let ends_at_once = !self.is_request()
            && matches!(ending, Ending::Clean | Ending::Broken)
            && !self.has_event
            && self.attempts == 0
            && at - self.requested_at < AT_ONCE;
        if !ends_at_once && !is_anew && !self.is_request() && ending != Ending::SessionLost {
            self.barren = 0;
        }
        let pause = match ending {
            _ if ends_at_once => {
                let first = self.upstream_retry.max(STANDALONE_PAUSE_MIN);
                let doubled = first << self.barren.min(16);
                self.barren += 1;
                Some(doubled.min(AT_ONCE_BACKOFF_MAX.max(first)))
            }
            Ending::Refused(status) if self.is_request() || (status < 500 && !is_anew) => None,
            Ending::SessionLost if !self.is_request() => Some(60_000),
            Ending::SessionLost => None,
            Ending::Refused(_) | Ending::Clean | Ending::Broken | Ending::Unavailable if !self.is_request() => {
                let first = self.upstream_retry.max(STANDALONE_PAUSE_MIN);
                let doubled = first << self.attempts.min(16);
                self.attempts += 1;
                Some(doubled.min(BACKOFF_MAX.max(first)))
            }
            Ending::Refused(_) => None,
            Ending::Clean | Ending::Broken | Ending::Unavailable => {
                if resumable {
                    Some(self.upstream_retry)
                } else {
                    None
                }
            }
        };
        match pause {
            Some(pause) if !(self.is_request() && self.is_settled()) => self.call = Call::PausingUntil(at + pause),
            Some(_) | None => {
                let failure = match ending {
                    Ending::Refused(status) => {
                        Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) }
                    }
                    Ending::SessionLost => {
                        Failure { http_status: Some(404), ..Failure::after_send(ErrorCode::UpstreamStatus) }
                    }
                    Ending::Clean | Ending::Broken | Ending::Unavailable => {
                        Failure::after_send(ErrorCode::UpstreamBroke)
                    }
                };
                self.fail(Outcome::Failed, failure, at);
            }
        }
    }

    /// Returns true if the failure can still become an HTTP status.
    pub(super) fn fail_call(&mut self, failure: Failure, at: u64) -> bool {
        let can_tell = self.pass_head(at);
        if can_tell {
            self.call = Call::Over;
        } else {
            self.fail(Outcome::Failed, failure, at);
        }
        can_tell
    }
}
