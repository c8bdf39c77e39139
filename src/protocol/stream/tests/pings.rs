//! Pings of the server: the time of each response, and the pings that are logged.

use std::time::{Duration, Instant};

use super::steps::Setup;
use crate::headers::Era;
use crate::ids::{AttachId, Seq, StreamKind};
use crate::jsonrpc::RequestId;
use crate::sse;
use crate::stream::{ClientResponse, Effect, Ending, Machine};
use mcp_resume_base::clock;

const READER: AttachId = AttachId(1);

/// A machine at a time of its own.
struct Stream {
    machine: Machine,
    start: Instant,
}

impl Stream {
    /// Opens a stream without a reader.
    fn open(setup: &Setup) -> Self {
        let start = clock::now();
        let mut machine = Machine::new(setup.policy(), setup.request_ids(), start);
        machine.handle_stream_head();
        Self { machine, start }
    }

    /// Opens a stream with a reader.
    fn read(setup: &Setup) -> Self {
        let mut stream = Self::open(setup);
        stream.machine.handle_attach(READER, Seq(0), stream.start);
        stream
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// Takes a message of the upstream. Returns the pings that get a response at once.
    fn take(&mut self, data: &str, millis: u64) -> Vec<RequestId> {
        self.machine.handle_message(b"message", data.as_bytes(), self.at(millis));
        while self.machine.lifecycle_mut().poll_batch().is_some() {
            let at = self.at(millis);
            self.machine.lifecycle_mut().handle_stored(at);
        }
        self.answered()
    }

    /// Lets the timers fire. Returns the pings that get a response then.
    fn pass(&mut self, millis: u64) -> Vec<RequestId> {
        self.machine.handle_timeout(self.at(millis));
        self.answered()
    }

    fn answered(&mut self) -> Vec<RequestId> {
        let effects = std::iter::from_fn(|| self.machine.lifecycle_mut().poll_effect());
        effects.filter_map(|effect| if let Effect::AnswerPing(id) = effect { Some(id) } else { None }).collect()
    }
}

fn id(number: u64) -> RequestId {
    RequestId::Number(number.to_string().into())
}

fn ping(number: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"ping"}}"#)
}

fn question(number: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"roots/list"}}"#)
}

/// Returns rules without the timers that would end the stream meanwhile.
fn patient() -> Setup {
    Setup { max_wait: None, ..Setup::plain() }
}

#[test]
fn a_ping_without_a_reader_is_answered_at_once_and_no_event() {
    let mut stream = Stream::open(&patient());
    assert_eq!(stream.take(&ping(7), 1), [id(7)]);
    assert_eq!(stream.machine.numbering().tail(), Seq(0));
    assert_eq!(stream.take(&format!("[{},{}]", ping(8), ping(9)), 2), [id(8), id(9)]);
    assert_eq!(stream.machine.numbering().tail(), Seq(0));
    assert_eq!(stream.take(&question(10), 3), [], "another request waits for the client");
    assert_eq!(stream.machine.numbering().tail(), Seq(1));
}

#[test]
fn a_ping_of_an_array_with_other_messages_is_answered_and_the_array_logged() {
    let mut stream = Stream::open(&patient());
    assert_eq!(stream.take(&format!("[{},{}]", ping(7), question(8)), 1), [id(7)]);
    assert_eq!(stream.machine.numbering().tail(), Seq(1));
    assert!(!stream.machine.server_requests().is_spent(Seq(1)), "the other request is replayed");
}

#[test]
fn a_reader_has_a_second_to_answer() {
    let mut stream = Stream::read(&patient());
    assert_eq!(stream.take(&ping(7), 100), []);
    assert_eq!(stream.machine.numbering().tail(), Seq(1));
    assert_eq!(stream.machine.lifecycle().poll_timeout(), Some(stream.at(1100)));
    assert_eq!(stream.take(&ping(8), 600), []);
    assert_eq!(stream.pass(1099), []);
    assert_eq!(stream.pass(1100), [id(7)]);
    assert_eq!(stream.machine.lifecycle().poll_timeout(), Some(stream.at(1600)));
    let late = stream.at(1101);
    assert_eq!(stream.machine.handle_client_response(&id(7), late), ClientResponse::Duplicate);
    assert!(stream.machine.server_requests().is_spent(Seq(1)));
    // The reader responds to the second one.
    assert_eq!(stream.machine.handle_client_response(&id(8), late), ClientResponse::First);
    assert_eq!(stream.pass(1600), []);
    assert_eq!(stream.machine.lifecycle().poll_timeout(), None);
}

#[test]
fn a_ping_whose_reader_leaves_is_answered_then_and_not_replayed() {
    let mut stream = Stream::read(&patient());
    assert_eq!(stream.take(&ping(7), 100), []);
    assert_eq!(stream.take(&question(8), 101), []);
    let left = stream.at(150);
    stream.machine.handle_detach(READER, left);
    assert_eq!(stream.answered(), [id(7)]);
    assert!(stream.machine.server_requests().is_spent(Seq(1)));
    assert!(!stream.machine.server_requests().is_spent(Seq(2)));
    assert_eq!(stream.pass(5000), []);
}

#[test]
fn a_client_answer_that_is_lost_leaves_the_ping_to_the_proxy() {
    let mut stream = Stream::read(&patient());
    assert_eq!(stream.take(&ping(7), 100), []);
    let now = stream.at(200);
    assert_eq!(stream.machine.handle_client_response(&id(7), now), ClientResponse::First);
    stream.machine.handle_client_response_lost(&id(7), now);
    assert_eq!(stream.answered(), []);
    assert_eq!(stream.pass(1100), [id(7)]);
}

#[test]
fn a_ping_to_a_client_that_takes_json_alone_is_answered_at_once() {
    let mut stream = Stream::read(&Setup { should_refuse_requests: true, ..patient() });
    assert_eq!(stream.take(&ping(7), 1), [id(7)]);
    assert_eq!(stream.machine.numbering().tail(), Seq(0));
}

#[test]
fn no_ping_is_answered_where_that_is_off_or_the_stream_has_ended() {
    let mut policy = patient().policy();
    policy.should_answer_pings = false;
    let start = clock::now();
    let mut machine = Machine::new(policy, patient().request_ids(), start);
    machine.handle_stream_head();
    let mut stream = Stream { machine, start };
    assert_eq!(stream.take(&ping(7), 1), []);
    assert_eq!(stream.machine.numbering().tail(), Seq(1), "it is an event like any other");
    assert_eq!(stream.machine.lifecycle().poll_timeout(), None);

    let mut stream = Stream::open(&Setup { max_wait: Some(700), ..patient() });
    assert_eq!(stream.take(&ping(7), 699), [id(7)]);
    assert_eq!(stream.pass(700), []);
    assert_eq!(stream.take(&ping(8), 701), [], "the client has been away for too long");
}

#[test]
fn a_standalone_stream_of_a_server_that_pings_is_reopened_at_once() {
    let standalone = Setup { kind: StreamKind::Standalone, ids: 0, ..patient() };
    let reopens_after = |pings: bool, since: u64| {
        let mut stream = Stream::read(&standalone);
        if pings {
            stream.take(&ping(7), 1);
            stream.machine.handle_client_response(&id(7), stream.at(2));
            stream.pass(1001);
        }
        let ended = stream.at(since);
        stream.machine.handle_upstream_end(Ending::Broken, ended);
        stream.machine.lifecycle().poll_timeout().expect("it is reopened") - ended
    };
    assert_eq!(reopens_after(true, 5000), Duration::ZERO);
    assert_eq!(reopens_after(false, 5000), Duration::from_secs(1));
    // A stream that breaks as soon as it is open is not hammered.
    assert_eq!(reopens_after(true, 300), Duration::from_millis(700));
}

/// Ends a standalone stream `count` times, each 100 ms after it was opened. Returns the pauses in
/// seconds.
fn pauses_of_barren(stream: &mut Stream, at: &mut u64, count: usize) -> Vec<u64> {
    let mut pauses = Vec::new();
    for _ in 0..count {
        *at += 100;
        let ended = stream.at(*at);
        stream.machine.handle_upstream_end(Ending::Clean, ended);
        let due = stream.machine.lifecycle().poll_timeout().expect("it is reopened");
        pauses.push((due - ended).as_secs());
        *at += (due - ended).as_millis() as u64;
        stream.machine.handle_timeout(due);
        let effects: Vec<Effect> = std::iter::from_fn(|| stream.machine.lifecycle_mut().poll_effect()).collect();
        assert!(matches!(effects[..], [Effect::Reopen(_)]), "{effects:?}");
        stream.machine.handle_stream_head();
    }
    pauses
}

#[test]
fn a_standalone_stream_that_ends_at_once_is_reopened_ever_more_rarely() {
    let standalone = Setup { kind: StreamKind::Standalone, ids: 0, ..patient() };
    let (mut stream, mut at) = (Stream::read(&standalone), 0);
    assert_eq!(pauses_of_barren(&mut stream, &mut at, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
    // An event, and a response that lasts, begin the pauses anew.
    let event = sse::Event { name: "message".into(), data: "{}".into(), id: None, retry: None };
    let now = stream.at(at + 10);
    stream.machine.handle_event(&event, now);
    assert_eq!(pauses_of_barren(&mut stream, &mut at, 3), [1, 1, 2]);
    at += 10_000;
    assert_eq!(pauses_of_barren(&mut stream, &mut at, 3), [1, 1, 2]);
}

#[test]
fn a_standalone_stream_without_events_waits_for_its_reader_if_it_ends_at_once() {
    let standalone = Setup { kind: StreamKind::Standalone, ids: 0, max_wait: None, ..patient() };
    let ends_without_a_reader = |had_event: bool| {
        let mut stream = Stream::read(&standalone);
        if had_event {
            let event = sse::Event { name: "message".into(), data: "{}".into(), id: None, retry: None };
            let now = stream.at(1);
            stream.machine.handle_event(&event, now);
            stream.machine.handle_upstream_end(Ending::Clean, now);
            stream.machine.handle_timeout(stream.at(1001));
            stream.machine.handle_stream_head();
        }
        stream.machine.handle_detach(READER, stream.at(1100));
        stream.machine.handle_upstream_end(Ending::Clean, stream.at(1200));
        while stream.machine.lifecycle_mut().poll_effect().is_some() {}
        let due = stream.machine.lifecycle().poll_timeout().expect("a timer");
        stream.machine.handle_timeout(due);
        stream
    };
    let mut stream = ends_without_a_reader(true);
    assert!(matches!(stream.machine.lifecycle_mut().poll_effect(), Some(Effect::Reopen(_))));
    let mut stream = ends_without_a_reader(false);
    assert_eq!((stream.machine.lifecycle_mut().poll_effect(), stream.machine.lifecycle().poll_timeout()), (None, None));
    let back = stream.at(100_000);
    stream.machine.handle_attach(READER, Seq(0), back);
    assert_eq!(stream.machine.lifecycle().poll_timeout(), Some(back));
    stream.machine.handle_timeout(back);
    assert!(matches!(stream.machine.lifecycle_mut().poll_effect(), Some(Effect::Reopen(_))));
}

#[test]
fn a_running_call_of_the_legacy_era_is_kept_alive() {
    let is_kept = |setup: &Setup, change: fn(&mut Stream)| {
        let mut stream = Stream::open(setup);
        change(&mut stream);
        let effects: Vec<Effect> = std::iter::from_fn(|| stream.machine.lifecycle_mut().poll_effect()).collect();
        assert!(!effects.contains(&Effect::KeepAlive));
        let said = stream.machine.lifecycle_mut().handle_quiet();
        assert_eq!(
            stream.machine.lifecycle_mut().poll_effect().is_some_and(|effect| effect == Effect::KeepAlive),
            said
        );
        said
    };
    assert!(is_kept(&patient(), |_| ()));
    assert!(!is_kept(&Setup { era: Era::Modern, ..patient() }, |_| ()));
    assert!(!is_kept(&Setup { kind: StreamKind::Standalone, ids: 0, ..patient() }, |_| ()));
    let answered = |stream: &mut Stream| {
        let id = stream.machine.owed_responses().ids().next().expect("an owed response").to_json();
        stream.take(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#), 1);
    };
    assert!(!is_kept(&patient(), answered));
}
