//! Random setups and steps. Times are milliseconds since the stream began.

use std::time::Duration;

use proptest::option;
use proptest::prelude::*;

use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::Era;
use crate::protocol::ids::StreamKind;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Ending, Policy};

/// What one stream lives by, in the model's terms.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) kind: StreamKind,
    pub(super) era: Era,
    pub(super) ids: usize,
    pub(super) max_wait: Option<u64>,
    pub(super) modern_grace: Option<u64>,
    pub(super) keyed: bool,
    pub(super) retention: u64,
    pub(super) call_timeout: Option<u64>,
    pub(super) cancel_grace: u64,
    pub(super) full_wait: u64,
    pub(super) linger: u64,
    pub(super) input_grace: u64,
    pub(super) commit_after: Option<u64>,
    pub(super) retry: u64,
    pub(super) pauses: bool,
    pub(super) resume_hard_cuts: bool,
    pub(super) refuses_asks: bool,
    pub(super) announces_cancel: bool,
}

impl Setup {
    /// One request of the legacy era, nothing special.
    pub(super) fn plain() -> Self {
        Self {
            kind: StreamKind::Request,
            era: Era::Legacy,
            ids: 1,
            max_wait: Some(700),
            modern_grace: None,
            keyed: false,
            retention: 900,
            call_timeout: None,
            cancel_grace: 50,
            full_wait: 70,
            linger: 20,
            input_grace: 25,
            commit_after: Some(30),
            retry: 40,
            pauses: true,
            resume_hard_cuts: false,
            refuses_asks: false,
            announces_cancel: true,
        }
    }

    pub(super) fn policy(&self) -> Policy {
        let ms = Duration::from_millis;
        Policy {
            kind: self.kind,
            era: self.era,
            max_wait: self.max_wait.map(ms),
            modern_grace: self.modern_grace.map(ms),
            keyed: self.keyed,
            retention: ms(self.retention),
            call_timeout: self.call_timeout.map(ms),
            cancel_grace: ms(self.cancel_grace),
            full_wait: ms(self.full_wait),
            linger: ms(self.linger),
            input_grace: ms(self.input_grace),
            commit_after: self.commit_after.map(ms),
            retry: ms(self.retry),
            pauses: self.pauses,
            resume_hard_cuts: self.resume_hard_cuts,
            refuses_asks: self.refuses_asks,
            announces_cancel: self.announces_cancel,
        }
    }

    /// The request ids: the first two differ in nothing but their type.
    pub(super) fn request_ids(&self) -> Vec<RequestId> {
        let ids = [RequestId::Number("1".into()), RequestId::String("1".into()), RequestId::Number("2".into())];
        ids.into_iter().take(self.ids).collect()
    }
}

/// One step; numbers are reduced to what exists when it is taken.
#[derive(Clone, Debug)]
pub(super) enum Step {
    StreamHead,
    PlainHead,
    Commit,
    Event {
        what: What,
        id: Option<u8>,
        retry: Option<u64>,
    },
    Message(What),
    End(Ending),
    Fail,
    /// A new connection that has this share (of 255) of what the client has seen.
    Attach(u8),
    Detach,
    DetachOld,
    Prime(u64),
    Read(usize),
    ReadOld,
    Return(Option<u64>),
    Touch,
    Cancel(usize),
    Answer(u8),
    AnswerLost(u8),
    /// The store takes what there is, so much time passes, and the connection looks whether it is its client's turn.
    Turn(u64),
    Expire,
    Delivered,
    /// The staged batch goes to the store.
    Hand,
    /// The store accepts it.
    Accept,
    /// This share (of 255) of what may go goes.
    Trim(u8),
    Full(bool),
    Pass(u64),
}

/// What an event of the upstream says.
#[derive(Clone, Debug)]
pub(super) enum What {
    Empty,
    Note,
    Opaque,
    /// A response to somebody else's request.
    Stranger,
    Respond {
        which: usize,
        error: bool,
    },
    Ask(u8),
    /// An array of a response and a request.
    RespondAndAsk {
        which: usize,
        ask: u8,
    },
    /// An array of two requests.
    AskTwo(u8, u8),
}

/// One message of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Response { which: usize, error: bool },
    Ask(u8),
    Other,
}

/// The id of a server→client request.
pub(super) fn ask_id(ask: u8) -> RequestId {
    RequestId::Number(ask.to_string().into())
}

impl What {
    /// The messages in it; none where it does not decode.
    pub(super) fn says(&self) -> Vec<Said> {
        match *self {
            What::Empty | What::Opaque => vec![],
            What::Note | What::Stranger => vec![Said::Other],
            What::Respond { which, error } => vec![Said::Response { which, error }],
            What::Ask(ask) => vec![Said::Ask(ask)],
            What::RespondAndAsk { which, ask } => vec![Said::Response { which, error: false }, Said::Ask(ask)],
            What::AskTwo(one, two) => vec![Said::Ask(one), Said::Ask(two)],
        }
    }

    /// Its data; `serial` makes every event's bytes its own.
    pub(super) fn data(&self, ids: &[RequestId], serial: u64) -> Vec<u8> {
        let note = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"n":{serial}}}}}"#);
        let response = |id: &str, member: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{{"n":{serial}}}}}"#);
        let ask =
            |ask: u8| format!(r#"{{"jsonrpc":"2.0","id":{ask},"method":"roots/list","params":{{"n":{serial}}}}}"#);
        match *self {
            What::Empty => Vec::new(),
            What::Note => note.into_bytes(),
            What::Opaque => [b"\xff{ not JSON ".as_slice(), serial.to_string().as_bytes()].concat(),
            What::Stranger => response("\"stranger\"", "result").into_bytes(),
            What::Respond { which, error } => {
                response(&ids[which].to_json(), if error { "error" } else { "result" }).into_bytes()
            }
            What::Ask(id) => ask(id).into_bytes(),
            What::RespondAndAsk { which, ask: id } => {
                format!("[{},{}]", response(&ids[which].to_json(), "result"), ask(id)).into_bytes()
            }
            What::AskTwo(one, two) => format!("[{},{}]", ask(one), ask(two)).into_bytes(),
        }
    }

    /// The same with a response that exists among `ids`; a note where there are none.
    pub(super) fn fitted(&self, ids: usize) -> Self {
        match *self {
            What::Respond { .. } | What::RespondAndAsk { .. } if ids == 0 => What::Note,
            What::Respond { which, error } => What::Respond { which: which % ids, error },
            What::RespondAndAsk { which, ask } => What::RespondAndAsk { which: which % ids, ask },
            ref other => other.clone(),
        }
    }
}

/// The failure that [`Step::Fail`] tells.
pub(super) fn failure() -> Failure {
    Failure::after_send(ErrorCode::EventTooLarge)
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let kind = prop_oneof![4 => (1..=3usize).prop_map(|ids| (StreamKind::Request, ids)), 1 => Just((StreamKind::Standalone, 0))];
    let era = prop_oneof![Just(Era::Legacy), Just(Era::Modern)];
    let timers = (
        option::of(Just(700)),
        prop_oneof![Just(None), Just(Some(0)), Just(Some(130))],
        option::weighted(0.3, Just(410)),
        option::weighted(0.6, Just(30)),
        prop_oneof![Just(40), Just(1000)],
    );
    (kind, era, timers, any::<[bool; 5]>()).prop_map(|((kind, ids), era, timers, flags)| {
        let (max_wait, modern_grace, call_timeout, commit_after, retry) = timers;
        let [keyed, pauses, resume_hard_cuts, refuses_asks, announces_cancel] = flags;
        let pauses = pauses || keyed;
        Setup {
            kind,
            era,
            ids,
            max_wait,
            modern_grace,
            keyed,
            call_timeout,
            commit_after,
            retry,
            pauses,
            resume_hard_cuts,
            refuses_asks,
            announces_cancel,
            ..Setup::plain()
        }
    })
}

fn what() -> impl Strategy<Value = What> {
    let ask = 1..4u8;
    prop_oneof![
        1 => Just(What::Empty),
        4 => Just(What::Note),
        1 => Just(What::Opaque),
        1 => Just(What::Stranger),
        3 => (0..3usize, any::<bool>()).prop_map(|(which, error)| What::Respond { which, error }),
        2 => ask.clone().prop_map(What::Ask),
        1 => (0..3usize, ask.clone()).prop_map(|(which, ask)| What::RespondAndAsk { which, ask }),
        1 => (ask.clone(), ask).prop_map(|(one, two)| What::AskTwo(one, two)),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        4 => Just(Ending::Clean),
        2 => Just(Ending::Broken),
        1 => prop_oneof![Just(400), Just(404), Just(500)].prop_map(Ending::Refused),
        1 => Just(Ending::Unavailable),
    ]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let event =
        (what(), option::weighted(0.3, 0..4u8), option::weighted(0.2, prop_oneof![Just(0), Just(25), Just(90)]));
    let step = prop_oneof![
        6 => Just(Step::StreamHead),
        1 => Just(Step::PlainHead),
        1 => Just(Step::Commit),
        24 => event.prop_map(|(what, id, retry)| Step::Event { what, id, retry }),
        1 => what().prop_map(Step::Message),
        2 => ending().prop_map(Step::End),
        1 => Just(Step::Fail),
        6 => any::<u8>().prop_map(Step::Attach),
        6 => Just(Step::Detach),
        2 => Just(Step::DetachOld),
        5 => prop_oneof![Just(40), Just(1000), Just(15)].prop_map(Step::Prime),
        8 => (1..6usize).prop_map(Step::Read),
        2 => Just(Step::ReadOld),
        2 => option::of(0..40u64).prop_map(Step::Return),
        1 => Just(Step::Touch),
        2 => (0..3usize).prop_map(Step::Cancel),
        3 => (1..5u8).prop_map(Step::Answer),
        1 => (1..5u8).prop_map(Step::AnswerLost),
        4 => prop_oneof![Just(0), Just(25), Just(30)].prop_map(Step::Turn),
        1 => prop_oneof![3 => Just(Step::Touch), 1 => Just(Step::Expire)],
        1 => Just(Step::Delivered),
        12 => Just(Step::Hand),
        12 => Just(Step::Accept),
        2 => any::<u8>().prop_map(Step::Trim),
        2 => any::<bool>().prop_map(Step::Full),
        8 => prop_oneof![8 => 0..40u64, 2 => 40..800u64, 1 => Just(11_000)].prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..90)
}
