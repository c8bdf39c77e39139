//! Random setups and steps. Times are in milliseconds since the stream began.

use std::time::Duration;

use proptest::option;
use proptest::prelude::*;

use crate::error::{ErrorCode, Failure};
use crate::headers::Era;
use crate::ids::StreamKind;
use crate::jsonrpc::RequestId;
use crate::stream::{Ending, Policy};

/// The policy and the requests of one stream, in the model's terms.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) kind: StreamKind,
    pub(super) era: Era,
    pub(super) ids: usize,
    pub(super) max_wait: Option<u64>,
    pub(super) modern_grace: Option<u64>,
    pub(super) unprimed_grace: u64,
    pub(super) has_idempotency_key: bool,
    pub(super) retention: u64,
    pub(super) call_timeout: Option<u64>,
    pub(super) cancel_grace: u64,
    pub(super) full_wait: u64,
    pub(super) linger: u64,
    pub(super) input_grace: u64,
    pub(super) commit_after: Option<u64>,
    pub(super) retry: u64,
    pub(super) can_pause: bool,
    pub(super) should_resume_hard_cuts: bool,
    pub(super) should_refuse_requests: bool,
    pub(super) should_announce_cancel: bool,
}

impl Setup {
    /// Returns one request of the legacy era with plain rules.
    pub(super) fn plain() -> Self {
        Self {
            kind: StreamKind::Request,
            era: Era::Legacy,
            ids: 1,
            max_wait: Some(700),
            modern_grace: None,
            unprimed_grace: 0,
            has_idempotency_key: false,
            retention: 900,
            call_timeout: None,
            cancel_grace: 50,
            full_wait: 70,
            linger: 20,
            input_grace: 25,
            commit_after: Some(30),
            retry: 40,
            can_pause: true,
            should_resume_hard_cuts: false,
            should_refuse_requests: false,
            should_announce_cancel: true,
        }
    }

    pub(super) fn policy(&self) -> Policy {
        let ms = Duration::from_millis;
        Policy {
            kind: self.kind,
            era: self.era,
            max_wait: self.max_wait.map(ms),
            modern_grace: self.modern_grace.map(ms),
            unprimed_grace: ms(self.unprimed_grace),
            has_idempotency_key: self.has_idempotency_key,
            retention: ms(self.retention),
            call_timeout: self.call_timeout.map(ms),
            cancel_grace: ms(self.cancel_grace),
            full_wait: ms(self.full_wait),
            linger: ms(self.linger),
            input_grace: ms(self.input_grace),
            commit_after: self.commit_after.map(ms),
            retry: ms(self.retry),
            can_pause: self.can_pause,
            should_resume_hard_cuts: self.should_resume_hard_cuts,
            resumes_for: None,
            should_refuse_requests: self.should_refuse_requests,
            should_answer_pings: true,
            is_tool_call: false,
            should_announce_cancel: self.should_announce_cancel,
            is_task: false,
            counts_breaks: false,
            legacy_task: None,
        }
    }

    /// Returns the request ids. The first two differ only in their type.
    pub(super) fn request_ids(&self) -> Vec<RequestId> {
        let ids = [RequestId::Number("1".into()), RequestId::String("1".into()), RequestId::Number("2".into())];
        ids.into_iter().take(self.ids).collect()
    }
}

/// One step. Numbers are reduced to the existing ones when it is taken.
#[derive(Clone, Debug)]
pub(super) enum Step {
    StreamHead,
    PlainHead,
    Commit,
    Event {
        payload: Payload,
        id: Option<u8>,
        retry: Option<u64>,
    },
    Message(Payload),
    End(Ending),
    Fail,
    /// A new connection, with a cursor at this share (of 255) of the events that the client has
    /// seen.
    Attach(u8),
    Detach,
    DetachOld,
    Prime(u64),
    Read(usize),
    ReadOld,
    Reconnect(Option<u64>),
    Touch,
    Cancel(usize),
    ClientResponse(u8),
    ClientResponseLost(u8),
    /// The store accepts every event, this time passes, and the connection begins its client's turn
    /// if it is due.
    Turn(u64),
    Expire,
    Delivered,
    /// The store gets the staged batch.
    TakeBatch,
    /// The store accepts the batch.
    Accept,
    /// This share (of 255) of the releasable events is trimmed.
    Trim(u8),
    Full(bool),
    Pass(u64),
}

/// The data of an upstream event.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    Empty,
    Notification,
    Opaque,
    /// A response to a request of another stream.
    UnknownResponse,
    Response {
        which: usize,
        error: bool,
    },
    Request(u8),
    /// An array of a response and a request.
    ResponseAndRequest {
        which: usize,
        request: u8,
    },
    /// An array of two requests.
    TwoRequests(u8, u8),
}

/// One message of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MessageKind {
    Response {
        which: usize,
        error: bool,
    },
    Request(u8),
    /// A response to a request of another stream, with this id.
    Stranger(&'static str),
    Other,
}

/// The id of a response to a request of another stream.
const STRANGER: &str = "stranger";

/// Returns the id of a server→client request.
pub(super) fn request_id(request: u8) -> RequestId {
    RequestId::Number(request.to_string().into())
}

impl Payload {
    /// Returns its messages, or none if it does not decode.
    pub(super) fn messages(&self) -> Vec<MessageKind> {
        match *self {
            Payload::Empty | Payload::Opaque => vec![],
            Payload::Notification => vec![MessageKind::Other],
            Payload::UnknownResponse => vec![MessageKind::Stranger(STRANGER)],
            Payload::Response { which, error } => vec![MessageKind::Response { which, error }],
            Payload::Request(request) => vec![MessageKind::Request(request)],
            Payload::ResponseAndRequest { which, request } => {
                vec![MessageKind::Response { which, error: false }, MessageKind::Request(request)]
            }
            Payload::TwoRequests(one, two) => vec![MessageKind::Request(one), MessageKind::Request(two)],
        }
    }

    /// Returns its bytes; `serial` makes the bytes of every event unique.
    pub(super) fn data(&self, ids: &[RequestId], serial: u64) -> Vec<u8> {
        let note = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"n":{serial}}}}}"#);
        let response = |id: &str, member: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{{"n":{serial}}}}}"#);
        let request = |request: u8| {
            format!(r#"{{"jsonrpc":"2.0","id":{request},"method":"roots/list","params":{{"n":{serial}}}}}"#)
        };
        match *self {
            Payload::Empty => Vec::new(),
            Payload::Notification => note.into_bytes(),
            Payload::Opaque => [b"\xff{ not JSON ".as_slice(), serial.to_string().as_bytes()].concat(),
            Payload::UnknownResponse => response(&format!("\"{STRANGER}\""), "result").into_bytes(),
            Payload::Response { which, error } => {
                response(&ids[which].to_json(), if error { "error" } else { "result" }).into_bytes()
            }
            Payload::Request(id) => request(id).into_bytes(),
            Payload::ResponseAndRequest { which, request: id } => {
                format!("[{},{}]", response(&ids[which].to_json(), "result"), request(id)).into_bytes()
            }
            Payload::TwoRequests(one, two) => format!("[{},{}]", request(one), request(two)).into_bytes(),
        }
    }

    /// Returns this payload with a response to one of `ids` requests, or a notification if `ids` is
    /// 0.
    pub(super) fn fitted(&self, ids: usize) -> Self {
        match *self {
            Payload::Response { .. } | Payload::ResponseAndRequest { .. } if ids == 0 => Payload::Notification,
            Payload::Response { which, error } => Payload::Response { which: which % ids, error },
            Payload::ResponseAndRequest { which, request } => {
                Payload::ResponseAndRequest { which: which % ids, request }
            }
            ref other => other.clone(),
        }
    }
}

/// Returns the failure of [`Step::Fail`].
pub(super) fn failure() -> Failure {
    Failure::after_send(ErrorCode::EventTooLarge)
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let kind = prop_oneof![4 => (1..=3usize).prop_map(|ids| (StreamKind::Request, ids)), 1 => Just((StreamKind::Standalone, 0))];
    let era = prop_oneof![Just(Era::Legacy), Just(Era::Modern)];
    let timers = (
        option::of(Just(700)),
        prop_oneof![Just(None), Just(Some(0)), Just(Some(130))],
        prop_oneof![2 => Just(0), 1 => Just(90)],
        option::weighted(0.3, Just(410)),
        option::weighted(0.6, Just(30)),
        prop_oneof![Just(40), Just(1000)],
    );
    (kind, era, timers, any::<[bool; 5]>()).prop_map(|((kind, ids), era, timers, flags)| {
        let (max_wait, modern_grace, unprimed_grace, call_timeout, commit_after, retry) = timers;
        let [has_idempotency_key, can_pause, should_resume_hard_cuts, should_refuse_requests, should_announce_cancel] =
            flags;
        let can_pause = can_pause || has_idempotency_key;
        Setup {
            kind,
            era,
            ids,
            max_wait,
            modern_grace,
            unprimed_grace,
            has_idempotency_key,
            call_timeout,
            commit_after,
            retry,
            can_pause,
            should_resume_hard_cuts,
            should_refuse_requests,
            should_announce_cancel,
            ..Setup::plain()
        }
    })
}

fn payload() -> impl Strategy<Value = Payload> {
    let request = 1..4u8;
    prop_oneof![
        1 => Just(Payload::Empty),
        4 => Just(Payload::Notification),
        1 => Just(Payload::Opaque),
        1 => Just(Payload::UnknownResponse),
        3 => (0..3usize, any::<bool>()).prop_map(|(which, error)| Payload::Response { which, error }),
        2 => request.clone().prop_map(Payload::Request),
        1 => (0..3usize, request.clone()).prop_map(|(which, request)| Payload::ResponseAndRequest { which, request }),
        1 => (request.clone(), request).prop_map(|(one, two)| Payload::TwoRequests(one, two)),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        4 => Just(Ending::Clean),
        2 => Just(Ending::Broken),
        1 => prop_oneof![Just(400), Just(404), Just(500)].prop_map(Ending::Refused),
        1 => Just(Ending::SessionLost),
        1 => Just(Ending::Unavailable),
    ]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let event =
        (payload(), option::weighted(0.3, 0..4u8), option::weighted(0.2, prop_oneof![Just(0), Just(25), Just(90)]));
    let step = prop_oneof![
        6 => Just(Step::StreamHead),
        1 => Just(Step::PlainHead),
        1 => Just(Step::Commit),
        24 => event.prop_map(|(payload, id, retry)| Step::Event { payload, id, retry }),
        1 => payload().prop_map(Step::Message),
        2 => ending().prop_map(Step::End),
        1 => Just(Step::Fail),
        6 => any::<u8>().prop_map(Step::Attach),
        6 => Just(Step::Detach),
        2 => Just(Step::DetachOld),
        5 => prop_oneof![Just(40), Just(1000), Just(15)].prop_map(Step::Prime),
        8 => (1..6usize).prop_map(Step::Read),
        2 => Just(Step::ReadOld),
        2 => option::of(0..40u64).prop_map(Step::Reconnect),
        1 => Just(Step::Touch),
        2 => (0..3usize).prop_map(Step::Cancel),
        3 => (1..5u8).prop_map(Step::ClientResponse),
        1 => (1..5u8).prop_map(Step::ClientResponseLost),
        4 => prop_oneof![Just(0), Just(25), Just(30)].prop_map(Step::Turn),
        1 => prop_oneof![3 => Just(Step::Touch), 1 => Just(Step::Expire)],
        1 => Just(Step::Delivered),
        12 => Just(Step::TakeBatch),
        12 => Just(Step::Accept),
        2 => any::<u8>().prop_map(Step::Trim),
        2 => any::<bool>().prop_map(Step::Full),
        8 => prop_oneof![8 => 0..40u64, 2 => 40..800u64, 1 => Just(11_000)].prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..90)
}
