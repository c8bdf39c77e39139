//! Every metric, each moved by a test of its own.

use crate::answers::{answer, question};
use crate::bounds::sessions::make_up;
use crate::stores::Replica;
use crate::support::pki::Pki;
use crate::support::spoken::{Speaker, Speech, speak};
use crate::support::*;
use mcp_resume::config::Config;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

/// One metric, as a test reads it.
struct Meter {
    name: &'static str,
    seen: RefCell<BTreeSet<String>>,
}

impl Meter {
    async fn read(&self, proxy: &Proxy) -> f64 {
        self.read_sample(proxy, self.name.to_owned()).await
    }

    /// Of a family: the one with these labels, separated by commas.
    async fn of(&self, proxy: &Proxy, labels: &str) -> f64 {
        let labels = labels.split(',').map(|label| label.split_once('=').expect("a label"));
        let labels: Vec<_> = labels.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        self.read_sample(proxy, format!("{}{{{}}}", self.name, labels.join(","))).await
    }

    /// Of a histogram: how often something was observed.
    async fn count(&self, proxy: &Proxy) -> f64 {
        self.read_sample(proxy, format!("{}_count", self.name)).await
    }

    async fn read_sample(&self, proxy: &Proxy, sample: String) -> f64 {
        let value = metric(proxy, &format!("mcp_resume_{sample}")).await;
        self.seen.borrow_mut().insert(value.to_string());
        value
    }
}

/// Runs each test with its metric, which must have been seen to move.
macro_rules! every_metric {
    ($($metric:literal is moved by $test:ident;)+) => {
        const TESTED: &[&str] = &[$($metric),+];

        mod every_metric {
            $(
                #[tokio::test]
                async fn $test() {
                    let meter = super::Meter { name: $metric, seen: Default::default() };
                    super::$test(&meter).await;
                    assert!(meter.seen.borrow().len() > 1, "{} did not move: {:?}", $metric, meter.seen);
                }
            )+
        }
    };
}

every_metric! {
    "streams_open" is moved by a_call_that_runs;
    "streams_attached" is moved by a_client_that_reads;
    "calls_detached" is moved by a_call_whose_client_is_away;
    "streams_kept" is moved by a_stream_until_its_retention_is_over;
    "held_bytes" is moved by an_event_until_it_is_forgotten;
    "connections" is moved by a_connection;
    "streams_sealed_total" is moved by every_way_a_stream_ends;
    "streams_sealed_detached_total" is moved by an_end_that_nobody_sees;
    "calls_abandoned_total" is moved by a_client_that_does_not_come_back_in_time;
    "upstream_events_total" is moved by events_of_the_upstream;
    "upstream_event_bytes_total" is moved by the_data_of_events;
    "delivered_events_total" is moved by events_that_are_written_and_written_again;
    "delivered_bytes_total" is moved by the_bytes_of_a_response;
    "resumes_total" is moved by every_answer_to_a_resume;
    "retries_total" is moved by a_post_sent_again;
    "takeovers_total" is moved by a_newer_connection;
    "gaps_total" is moved by a_reader_that_comes_too_late;
    "commits_total" is moved by an_upstream_that_is_slow_to_begin;
    "disconnects_total" is moved by clients_that_leave_with_an_id_and_without;
    "rejects_total" is moved by a_request_that_is_refused;
    "upstream_failures_total" is moved by an_upstream_that_is_not_there;
    "upstream_head_seconds" is moved by the_head_of_an_answer;
    "live_event_seconds" is moved by an_event_for_a_client_that_waits;
    "answers_held_total" is moved by an_answer_that_the_upstream_cannot_take;
    "answers_repeated_total" is moved by an_answer_given_twice;
    "notifications_withheld_total" is moved by events_for_a_client_that_takes_json_only;
    "token_probes_total" is moved by a_refreshed_token;
    "evicted_streams_total" is moved by a_delivered_stream_that_makes_room;
    "trimmed_events_total" is moved by a_full_stream_that_was_read;
    "upstream_pauses_total" is moved by a_full_stream_that_nobody_reads;
    "resumes_delayed_total" is moved by a_resume_behind_too_many;
    "certificate_reloads_total" is moved by certificates_of_both_sides_that_change;
    "sessions_kept" is moved by a_session_that_is_named;
    "evicted_sessions_total" is moved by sessions_that_are_made_up;
    "store_ready" is moved by a_store_that_is_gone_and_comes_back;
    "store_append_seconds" is moved by an_event_that_the_store_takes;
    "store_failures_total" is moved by an_event_that_the_store_cannot_take;
    "streams_adopted_total" is moved by a_call_of_a_replica_that_died;
    "streams_fenced_total" is moved by a_call_of_a_replica_that_was_frozen;
    "streams_restored_total" is moved by a_client_of_another_replica;
}

#[test]
fn no_metric_is_without_a_test() {
    // The table has what is registered: `tests/docs.rs` compares the two.
    let documented = include_str!("../../docs/operations.md").split("## Every metric").nth(1).expect("the section");
    let rows = documented.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.skip(2).map(|row| row.split('|').nth(1).expect("a cell"));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let documented: BTreeSet<&str> = names.map(|name| name.split('{').next().expect("a name")).collect();
    assert_eq!(TESTED.iter().copied().collect::<BTreeSet<_>>(), documented);
}

async fn observed() -> (Upstream, Proxy, Session) {
    observed_with(|_| {}).await
}

async fn observed_with(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    stage_with(|c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await
}

/// A call whose client knows where it begins, and has left.
async fn left(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(proxy, upstream).await;
    (sse, place)
}

async fn finish(sse: Sse, response: &mut Response) {
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

// ── levels ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async fn a_call_that_runs(open: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(open.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(open.read(&proxy).await, 1.0);
    finish(sse, &mut response).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(open.read(&proxy).await, 0.0);
}

async fn a_client_that_reads(attached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(attached.read(&proxy).await, 1.0);
    response.reset();
    settle(&proxy, &mut upstream).await;
    assert_eq!(attached.read(&proxy).await, 0.0);
}

async fn a_call_whose_client_is_away(detached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, place) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(detached.read(&proxy).await, 1.0);
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(detached.read(&proxy).await, 0.0);
}

async fn a_stream_until_its_retention_is_over(kept: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = kept.read(&proxy).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    finish(sse, &mut response).await;
    assert_eq!(kept.read(&proxy).await, before + 1.0);
    pass(Duration::from_secs(3600)).await;
    within("it is forgotten", async { while kept.read(&proxy).await > 0.0 {} }).await;
}

async fn an_event_until_it_is_forgotten(held: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let before = held.read(&proxy).await;
    let large = format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(10_000));
    sse.event(&large).await;
    response.event().await;
    assert!(held.read(&proxy).await >= before + large.len() as f64);
    finish(sse, &mut response).await;
    pass(Duration::from_secs(3600)).await;
    within("it is forgotten", async { while held.read(&proxy).await > 0.0 {} }).await;
}

async fn a_connection(connections: &Meter) {
    let (mut upstream, proxy, _) = observed().await;
    // The page is asked for on a connection, which counts as well.
    settle(&proxy, &mut upstream).await;
    assert_eq!(connections.read(&proxy).await, 1.0);
    let clients = [Client::connect(proxy.addr).await, Client::connect(proxy.addr).await];
    settle(&proxy, &mut upstream).await;
    assert_eq!(connections.read(&proxy).await, 3.0);
    drop(clients);
    settle(&proxy, &mut upstream).await;
    assert_eq!(connections.read(&proxy).await, 1.0);
}

// ── streams ───────────────────────────────────────────────────────────────────────────────────────────────────────────

async fn every_way_a_stream_ends(sealed: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let outcomes = ["outcome=completed", "outcome=failed", "outcome=cancelled", "outcome=expired"];
    for outcome in outcomes {
        assert_eq!(sealed.of(&proxy, outcome).await, 0.0, "{outcome}");
    }
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    finish(sse, &mut response).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    sse.reset().await;
    assert_fault(&response.event().await.json(), 2, UPSTREAM_FAILED, "upstream");
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(3))).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#;
    let pending = session.post(cancel).start(proxy.addr).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.end().await;
    response.ends().await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
    let pending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    assert_fault(&response.event().await.json(), 4, ABANDONED, "client");
    for outcome in outcomes {
        assert_eq!(sealed.of(&proxy, outcome).await, 1.0, "{outcome}");
    }
}

async fn an_end_that_nobody_sees(detached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    sse.finish(result(2)).await;
    response.event().await;
    response.ends().await;
    let before = detached.read(&proxy).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(detached.read(&proxy).await, before + 1.0);
}

async fn a_client_that_does_not_come_back_in_time(abandoned: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(abandoned.read(&proxy).await, 0.0);
    pass(Duration::from_secs(3600)).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    sse.closed().await;
    assert_eq!(abandoned.read(&proxy).await, 1.0);
}

// ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Three events and the answer; what they hold.
async fn four_events(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (EventId, usize) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=3 {
        sse.event(progress(n)).await;
        response.event().await;
    }
    finish(sse, &mut response).await;
    (place, 3 * progress(1).len() + result(1).len())
}

async fn events_of_the_upstream(events: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = events.read(&proxy).await;
    four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(events.read(&proxy).await, before + 4.0);
}

async fn the_data_of_events(bytes: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = bytes.read(&proxy).await;
    let (_, data) = four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(bytes.read(&proxy).await, before + data as f64);
}

async fn events_that_are_written_and_written_again(events: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = events.read(&proxy).await;
    let (place, _) = four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(events.read(&proxy).await, before + 4.0);
    let (again, _) = session.resume(&place.at(2)).send(proxy.addr).await.events().await;
    assert_eq!((again.len(), events.read(&proxy).await), (2, before + 6.0));
}

async fn the_bytes_of_a_response(bytes: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (place, _) = four_events(&proxy, &mut upstream, &session).await;
    let before = bytes.read(&proxy).await;
    let body = session.resume(&place.at(0)).send(proxy.addr).await.sse().body().await;
    assert_eq!(bytes.read(&proxy).await, before + body.len() as f64);
}

async fn the_head_of_an_answer(seconds: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = seconds.count(&proxy).await;
    let (_sse, _response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(seconds.count(&proxy).await, before + 1.0);
}

async fn an_event_for_a_client_that_waits(seconds: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let before = seconds.count(&proxy).await;
    sse.event(progress(1)).await;
    response.event().await;
    assert_eq!(seconds.count(&proxy).await, before + 1.0);
}

// ── clients that come back ────────────────────────────────────────────────────────────────────────────────────────────

async fn every_answer_to_a_resume(resumes: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (place, _) = four_events(&proxy, &mut upstream, &session).await;
    for (id, outcome, status) in [
        (place.at(1), "dialect=last_event_id,outcome=served", 200),
        (place.at(4), "dialect=last_event_id,outcome=at_end", 204),
        (place.forged().at(1), "dialect=last_event_id,outcome=lost", 200),
    ] {
        assert_eq!(resumes.of(&proxy, outcome).await, 0.0, "{outcome}");
        assert_eq!(session.resume(&id).send(proxy.addr).await.status, status);
        assert_eq!(resumes.of(&proxy, outcome).await, 1.0, "{outcome}");
    }
}

async fn a_post_sent_again(retries: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(retries.read(&proxy).await, 0.0);
    let mut again = session.post(call(1)).send(proxy.addr).await.sse();
    finish(sse, &mut again).await;
    assert_eq!(retries.read(&proxy).await, 1.0);
}

async fn a_newer_connection(takeovers: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    assert_eq!(takeovers.read(&proxy).await, 0.0);
    session.resume(&place.at(0)).send(proxy.addr).await.sse().prime().await;
    response.ends().await;
    assert_eq!(takeovers.read(&proxy).await, 1.0);
}

async fn a_reader_that_comes_too_late(gaps: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.streams.max_events = 4).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    pending.response().await.reset();
    settle(&proxy, &mut upstream).await;
    for n in 1..=10 {
        sse.event(progress(n)).await;
    }
    settle(&proxy, &mut upstream).await;
    assert_eq!(gaps.read(&proxy).await, 0.0);
    session.get().send(proxy.addr).await.sse().prime().await;
    assert_eq!(gaps.read(&proxy).await, 1.0);
}

async fn an_upstream_that_is_slow_to_begin(commits: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.delivery.commit_after = Some(SOON)).await;
    assert_eq!(commits.read(&proxy).await, 0.0);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let _silent = upstream.expect("tools/call").await;
    pending.response().await.sse().prime().await;
    assert_eq!(commits.read(&proxy).await, 1.0);
}

async fn clients_that_leave_with_an_id_and_without(disconnects: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(disconnects.of(&proxy, "can_resume=yes").await, 0.0);
    left(&proxy, &mut upstream, &session).await;
    assert_eq!(disconnects.of(&proxy, "can_resume=yes").await, 1.0);
    assert_eq!(disconnects.of(&proxy, "can_resume=no").await, 0.0);
    let client = session.post(call(2)).start(proxy.addr).await;
    let _silent = upstream.expect("tools/call").await;
    client.reset();
    settle(&proxy, &mut upstream).await;
    assert_eq!(disconnects.of(&proxy, "can_resume=no").await, 1.0);
}

async fn a_resume_behind_too_many(delayed: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.limits.resumes_per_sec = 1).await;
    let (_sse, place) = left(&proxy, &mut upstream, &session).await;
    // Ten seconds' worth, and the one that begins them.
    for _ in 0..11 {
        session.resume(&place.at(0)).send(proxy.addr).await.sse().prime().await;
    }
    assert_eq!(delayed.read(&proxy).await, 0.0);
    let _waiting = session.resume(&place.at(0)).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(delayed.read(&proxy).await, 1.0);
}

// ── refusals and failures ─────────────────────────────────────────────────────────────────────────────────────────────

async fn a_request_that_is_refused(rejects: &Meter) {
    let (_upstream, proxy, session) = observed().await;
    assert_eq!(rejects.of(&proxy, "reason=not_json").await, 0.0);
    assert_eq!(session.post("no JSON").send(proxy.addr).await.status, 400);
    assert_eq!(rejects.of(&proxy, "reason=not_json").await, 1.0);
}

async fn an_upstream_that_is_not_there(failures: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(failures.of(&proxy, "reason=unreachable").await, 0.0);
    upstream.refuse().await;
    assert_eq!(session.post(call(1)).send(proxy.addr).await.status, 502);
    assert_eq!(failures.of(&proxy, "reason=unreachable").await, 1.0);
}

// ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A call that has asked its client something.
async fn asking(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    assert_eq!(response.event().await.bytes(), question("q").as_bytes());
    (sse, response)
}

async fn an_answer_that_the_upstream_cannot_take(held: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, _response) = asking(&proxy, &mut upstream, &session).await;
    assert_eq!(held.read(&proxy).await, 0.0);
    upstream.refuse().await;
    assert_eq!(session.post(answer("q")).send(proxy.addr).await.status, 202);
    assert_eq!(held.read(&proxy).await, 1.0);
}

async fn an_answer_given_twice(repeated: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, _response) = asking(&proxy, &mut upstream, &session).await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    assert_eq!(repeated.read(&proxy).await, 0.0);
    assert_eq!(session.post(answer("q")).send(proxy.addr).await.status, 202);
    assert_eq!(repeated.read(&proxy).await, 1.0);
}

async fn events_for_a_client_that_takes_json_only(withheld: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(withheld.read(&proxy).await, 0.0);
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    for n in 1..=3 {
        sse.event(progress(n)).await;
    }
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    assert_eq!(withheld.read(&proxy).await, 3.0);
}

async fn a_refreshed_token(probes: &Meter) {
    let (mut upstream, proxy, _) = observed().await;
    let (old, new) = (bearer("u", 1), bearer("u", 2));
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", Some(&old)).await;
    let (_sse, place) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(probes.of(&proxy, "outcome=genuine").await, 0.0);
    let refreshed = Session::opened_elsewhere(V2025_11, "s-2", Some(&new));
    let pending = refreshed.resume(&place.at(0)).start(proxy.addr).await;
    upstream.judge(&new, Judge::Verifies).await;
    pending.response().await.sse().prime().await;
    assert_eq!(probes.of(&proxy, "outcome=genuine").await, 1.0);
}

// ── room ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

fn small(c: &mut Config) {
    c.streams.max_event_bytes = 64 * 1024;
    c.streams.max_bytes = 256 * 1024;
    c.streams.max_bytes_per_principal = 256 * 1024;
    c.streams.delivered_retention = Duration::ZERO;
}

fn sized(n: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"n":{n},"t":"{}"}}}}"#, "x".repeat(10_000))
}

async fn a_delivered_stream_that_makes_room(evicted: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    assert_eq!(evicted.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for n in 1..=15 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    finish(sse, &mut response).await;
    // On the same connection, which says that the first answer has arrived.
    let mut client = response.into_client();
    client.send(&session.post(call(2)).bytes(proxy.addr)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = client.response().await.sse();
    for n in 1..=15 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    assert_eq!(evicted.read(&proxy).await, 1.0);
}

async fn a_full_stream_that_was_read(trimmed: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    assert_eq!(trimmed.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=100 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    let dropped = trimmed.read(&proxy).await;
    // Exactly so many cannot be had any more.
    let mut back = session.resume(&place.at(dropped)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.id(), place.at(dropped + 1.0));
    let mut lost = session.resume(&place.at(dropped - 1.0)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 1, GONE, "client");
}

async fn a_full_stream_that_nobody_reads(pauses: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(pauses.read(&proxy).await, 0.0);
    let flood = async {
        for n in 1.. {
            sse.event(sized(n)).await;
        }
    };
    let watch = async { while pauses.read(&proxy).await == 0.0 {} };
    tokio::select! {
        () = flood => {}
        () = within("the upstream waits", watch) => {}
    }
    assert_eq!(pauses.read(&proxy).await, 1.0);
}

async fn a_session_that_is_named(kept: &Meter) {
    let (_upstream, proxy, session) = observed().await;
    assert_eq!(kept.read(&proxy).await, 1.0);
    make_up(&proxy, &session, 0..3).await;
    assert_eq!(kept.read(&proxy).await, 4.0);
    make_up(&proxy, &session, 0..3).await;
    assert_eq!(kept.read(&proxy).await, 4.0, "each has one record");
}

async fn sessions_that_are_made_up(evicted: &Meter) {
    let (_upstream, proxy, session) = observed().await;
    make_up(&proxy, &session, 0..16_384).await;
    assert_eq!(evicted.read(&proxy).await, 0.0);
    make_up(&proxy, &session, 16_384..16_385).await;
    assert_eq!(evicted.read(&proxy).await, 8_192.0);
}

async fn certificates_of_both_sides_that_change(reloads: &Meter) {
    let pki = Pki::new();
    let speaker = Speaker::start(Speech::Http1Tls, &pki).await;
    let change = speak(Speech::Http1Tls, Speech::Http1Tls, &pki);
    let proxy = Proxy::to_url(&speaker.url(), |config| {
        change(config);
        config.upstream.tls.identity = Some(pki.pair());
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    // It runs, and so looks at the files from now on.
    assert_eq!(reloads.of(&proxy, "of=upstream,outcome=taken").await, 0.0);
    let becomes = async |outcome: &str| {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(6)).await;
        tokio::time::resume();
        for of in ["listener", "upstream"] {
            let labels = format!("of={of},outcome={outcome}");
            let counted = async { while reloads.of(&proxy, &labels).await == 0.0 {} };
            within(&labels, counted).await;
            assert_eq!(reloads.of(&proxy, &labels).await, 1.0, "{labels}");
        }
    };
    pki.issue();
    becomes("taken").await;
    std::fs::write(pki.pair().cert, "no certificate").expect("a file");
    becomes("refused").await;
}

async fn a_store_that_is_gone_and_comes_back(ready: &Meter) {
    let mut redis = Redis::start();
    let one = Replica::start(&redis, "one").await;
    assert_eq!(ready.read(&one.proxy).await, 1.0);
    redis.kill();
    until("it is seen", async || ready.read(&one.proxy).await == 0.0).await;
    redis.begin_again();
    until("it is seen", async || ready.read(&one.proxy).await == 1.0).await;
}

async fn an_event_that_the_store_takes(seconds: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let (sse, mut response, _) = one.begin(&modern(1)).await;
    let before = seconds.count(&one.proxy).await;
    sse.event(progress(1)).await;
    response.event().await;
    assert!(seconds.count(&one.proxy).await > before);
}

async fn an_event_that_the_store_cannot_take(failures: &Meter) {
    let mut redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let (sse, mut response, _) = one.begin(&modern(1)).await;
    assert_eq!(failures.of(&one.proxy, "reason=unreachable").await, 0.0);
    redis.kill();
    sse.event(progress(1)).await;
    response.event().await;
    assert!(failures.of(&one.proxy, "reason=unreachable").await >= 1.0);
}

async fn a_call_of_a_replica_that_died(adopted: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, _) = one.begin(&modern(1)).await;
    assert_eq!(adopted.read(&two.proxy).await, 0.0);
    one.proxy.kill().await;
    until("it is ended", async || adopted.read(&two.proxy).await == 1.0).await;
}

async fn a_call_of_a_replica_that_was_frozen(fenced: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, _) = one.begin(&modern(1)).await;
    assert_eq!(fenced.read(&one.proxy).await, 0.0);
    one.proxy.signal("STOP").await;
    until("it is ended", async || metric(&two.proxy, "mcp_resume_streams_adopted_total").await == 1.0).await;
    one.proxy.signal("CONT").await;
    until("it finds out", async || fenced.read(&one.proxy).await == 1.0).await;
}

async fn a_client_of_another_replica(restored: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, place) = one.begin(&modern(1)).await;
    assert_eq!(restored.read(&two.proxy).await, 0.0);
    two.send(modern_resume(&place.at(0))).await.sse().prime().await;
    assert_eq!(restored.read(&two.proxy).await, 1.0);
    assert_eq!(restored.read(&one.proxy).await, 0.0);
}
