//! Cases that failed once, replayed exactly.

use super::steps::{Payload, Setup};
use super::subject::{Input, Owed, Real, Replay, Stage, Subject};
use crate::ids::StreamKind;
use crate::jsonrpc::RequestId;
use crate::jsonrpc::counted::comparisons;
use crate::stream::{Effect, Ending, Machine, Outcome, SessionChange};
use mcp_resume_base::clock;

/// Returns an open stream with a connection.
fn open(setup: &Setup) -> Real {
    let mut stream = Real::begin(setup);
    assert_eq!(stream.handle(&Input::Attach(1, 0), 0), super::subject::Reply::Nothing);
    stream.handle(&Input::StreamHead, 0);
    stream
}

fn send(stream: &mut Real, setup: &Setup, payload: Payload, at: u64) {
    let data = payload.data(&setup.request_ids(), at);
    stream.handle(&Input::Message { data, messages: vec![] }, at);
    store(stream, at);
}

fn store(stream: &mut Real, at: u64) {
    while stream.take_batch().is_some() {
        stream.accept(at);
    }
}

fn response(which: usize) -> Payload {
    Payload::Response { which, error: false }
}

#[test]
fn a_response_that_is_read_after_the_session_was_deleted_changes_nothing() {
    let setup = Setup::plain();
    let mut stream = open(&setup);
    stream.handle(&Input::Expire, 1);
    store(&mut stream, 1);
    let before = (stream.view(), stream.replay(0));
    send(&mut stream, &setup, response(0), 2);
    assert_eq!((stream.view(), stream.replay(0)), before);
    assert!(matches!(before.0.stage, Stage::Sealed(Outcome::Expired, 1)), "{before:?}");
}

#[test]
fn a_call_that_was_answered_is_completed_even_if_its_client_leaves_for_good() {
    let setup = Setup { max_wait: Some(5), ..Setup::plain() };
    let mut stream = open(&setup);
    send(&mut stream, &setup, response(0), 1);
    stream.handle(&Input::Detach(1), 2);
    stream.handle(&Input::Timeout, 7);
    assert_eq!(stream.view().stage, Stage::Sealed(Outcome::Completed, 7));
    assert_eq!(stream.effects(), [Effect::Close], "an answered call is not announced as cancelled");
}

#[test]
fn an_array_ends_with_its_last_response_when_another_was_cancelled_before() {
    let setup = Setup { ids: 2, ..Setup::plain() };
    let mut stream = open(&setup);
    stream.handle(&Input::Cancel(setup.request_ids()[0].clone()), 1);
    assert_eq!(stream.view().deadline, None);
    send(&mut stream, &setup, response(1), 2);
    assert_eq!(stream.view().deadline, Some(2 + setup.linger));
}

#[test]
fn an_array_is_replayed_while_it_holds_an_open_request_or_a_response() {
    let setup = Setup::plain();
    let mut stream = open(&setup);
    send(&mut stream, &setup, Payload::ResponseAndRequest { which: 0, request: 7 }, 1);
    send(&mut stream, &setup, Payload::TwoRequests(8, 9), 2);
    let numbers = |stream: &Real| match stream.replay(0) {
        Replay::Events(events) => events.iter().map(|(seq, _)| *seq).collect(),
        Replay::Lost | Replay::End => vec![],
    };
    for id in ["7", "8"] {
        stream.handle(&Input::ClientResponse(RequestId::Number(id.into())), 3);
    }
    assert_eq!(numbers(&stream), [1, 2]);
    stream.handle(&Input::ClientResponse(RequestId::Number("9".into())), 3);
    assert_eq!(numbers(&stream), [1]);
}

#[test]
fn two_requests_of_one_id_are_owed_two_responses() {
    let setup = Setup::plain();
    let id = setup.request_ids().remove(0);
    let mut stream = Real::new(&setup, vec![id.clone(), id]);
    stream.handle(&Input::StreamHead, 0);
    send(&mut stream, &setup, response(0), 1);
    assert_eq!(stream.view().owed, [Owed::Answered(1), Owed::Due]);
    send(&mut stream, &setup, response(0), 2);
    assert_eq!(stream.view().owed, [Owed::Answered(1), Owed::Answered(2)]);
}

#[test]
fn an_upstream_that_clears_its_id_cannot_be_resumed() {
    for (last, resumable) in [("theirs", true), ("", false)] {
        let setup = Setup::plain();
        let mut stream = open(&setup);
        for id in ["first", last] {
            let input = Input::Event { data: vec![], messages: vec![], id: Some(id.into()), retry: None };
            stream.handle(&input, 1);
        }
        stream.handle(&Input::End(Ending::Clean), 2);
        store(&mut stream, 2);
        assert_eq!(matches!(stream.view().stage, Stage::Open), resumable, "last id {last:?}");
    }
}

#[test]
fn readers_that_displace_each_other_wait_a_minute_at_most_and_start_over_after_a_pause() {
    let setup = Setup { retry: 1000, ..Setup::plain() };
    let mut stream = open(&setup);
    let mut retries = Vec::new();
    for takeover in 0..8 {
        stream.handle(&Input::Attach(takeover + 2, 0), takeover * 9_999);
        retries.push(stream.takeover_retry());
    }
    assert_eq!(retries, [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
    stream.handle(&Input::Attach(99, 0), 7 * 9_999 + 10_000);
    assert_eq!(stream.takeover_retry(), 2_000);
    stream.handle(&Input::Primed(5_000), 7 * 9_999 + 10_000);
    assert_eq!(stream.takeover_retry(), 10_000, "the last sent `retry` counts");
}

#[test]
fn a_failed_array_has_an_error_for_each_request_without_a_response() {
    let setup = Setup { ids: 3, ..Setup::plain() };
    let mut stream = open(&setup);
    send(&mut stream, &setup, response(1), 1);
    stream.handle(&Input::End(Ending::Broken), 2);
    store(&mut stream, 2);
    let Replay::Events(events) = stream.replay(1) else { panic!("two errors are expected") };
    let texts: Vec<_> = events.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect();
    assert!(texts[0].contains(r#""id":1,"#) && texts[1].contains(r#""id":2,"#), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("-32010")), "{texts:?}");
    assert_eq!(stream.view().stage, Stage::Sealed(Outcome::Failed, 2));
}

#[test]
fn a_cancel_settles_every_request_of_its_id() {
    let setup = Setup::plain();
    let id = setup.request_ids().remove(0);
    let mut stream = Real::new(&setup, vec![id.clone(), id.clone()]);
    stream.handle(&Input::StreamHead, 0);
    stream.handle(&Input::Cancel(id), 1);
    assert_eq!(stream.view().owed, [Owed::Cancelled, Owed::Cancelled]);
}

#[test]
fn a_cancelled_request_keeps_its_grace_beside_an_answered_one() {
    let setup = Setup { ids: 2, ..Setup::plain() };
    let mut stream = open(&setup);
    send(&mut stream, &setup, response(0), 1);
    stream.handle(&Input::Cancel(setup.request_ids()[1].clone()), 2);
    send(&mut stream, &setup, Payload::Notification, 3);
    assert_eq!(stream.view().deadline, Some(2 + setup.cancel_grace));
    send(&mut stream, &setup, response(1), 4);
    assert_eq!(stream.view().deadline, Some(4 + setup.linger));
}

#[test]
fn a_standalone_stream_backs_off_to_half_a_minute_and_starts_over_once_it_was_opened() {
    let setup = Setup { kind: StreamKind::Standalone, ids: 0, ..Setup::plain() };
    let mut stream = open(&setup);
    let (mut now, mut pauses) = (0, Vec::new());
    for opens in [false, false, false, false, false, false, true, true] {
        stream.handle(&Input::End(if opens { Ending::Clean } else { Ending::Unavailable }), now);
        let until = stream.view().deadline.unwrap();
        pauses.push(until - now);
        now = until;
        stream.handle(&Input::Timeout, now);
        assert_eq!(stream.effects(), [Effect::Reopen(None)]);
        if opens {
            stream.handle(&Input::StreamHead, now);
        }
    }
    assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 1_000]);
    stream.handle(&Input::End(Ending::Refused(404)), now);
    assert_eq!(stream.view().stage, Stage::Sealed(Outcome::Failed, now), "a refusal is final");
}

/// Returns the pauses, in milliseconds, before each attempt of a machine to open its stream again.
/// Each attempt is refused.
fn pauses_of_refused(machine: &mut Machine, mut now: std::time::Instant, attempts: usize) -> Vec<u128> {
    let mut pauses = Vec::new();
    for _ in 0..attempts {
        let until = machine.lifecycle().poll_timeout().unwrap();
        pauses.push((until - now).as_millis());
        now = until;
        machine.handle_timeout(now);
        assert_eq!(std::iter::from_fn(|| machine.lifecycle_mut().poll_effect()).last(), Some(Effect::Reopen(None)));
        machine.handle_upstream_end(Ending::SessionLost, now);
    }
    pauses
}

#[test]
fn a_standalone_stream_without_its_session_is_tried_once_a_minute() {
    let setup = Setup { kind: StreamKind::Standalone, ids: 0, max_wait: None, ..Setup::plain() };
    let open = || {
        let now = clock::now();
        let mut machine = Machine::new(setup.policy(), vec![], now);
        machine.handle_stream_head();
        (machine, now)
    };
    let (mut refused, now) = open();
    refused.handle_upstream_end(Ending::SessionLost, now);
    assert_eq!(pauses_of_refused(&mut refused, now, 3), [60_000; 3]);
    assert!(refused.upstream().is_dormant());

    // The handshake that had opened it failed after all.
    let (mut reopened, now) = open();
    reopened.handle_session(SessionChange::Reopening, now);
    reopened.handle_timeout(now);
    reopened.handle_stream_head();
    assert!(!reopened.upstream().is_dormant());
    reopened.handle_session(SessionChange::Lost, now);
    let effects: Vec<Effect> = std::iter::from_fn(|| reopened.lifecycle_mut().poll_effect()).collect();
    assert_eq!(effects, [Effect::Close, Effect::Reopen(None), Effect::Close], "the open response is given up");
    assert_eq!(pauses_of_refused(&mut reopened, now, 3), [60_000; 3]);

    // It resumes once an attempt succeeds.
    reopened.handle_timeout(reopened.lifecycle().poll_timeout().unwrap());
    reopened.handle_stream_head();
    assert!(!reopened.upstream().is_dormant());
}

/// Returns the number of id comparisons for the end of a batch of `requests` requests without a
/// response.
fn failed(requests: usize) -> usize {
    let setup = Setup::plain();
    let ids = (0..requests).map(|number| RequestId::Number(number.to_string().into()));
    let mut machine = Machine::new(setup.policy(), ids.collect(), clock::now());
    machine.handle_stream_head();
    let compared = comparisons(|| machine.handle_upstream_end(Ending::Broken, clock::now()));
    assert_eq!(machine.lifecycle_mut().poll_batch().map(|errors| errors.len()), Some(requests));
    compared
}

#[test]
fn a_long_array_fails_in_work_that_grows_with_its_length() {
    let (short, long) = (failed(1000), failed(8000));
    assert!(long <= short * 10, "{short} comparisons for 1,000 requests and {long} for 8,000");
}
