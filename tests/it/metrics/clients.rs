//! Clients that leave, come back, and are refused.

use super::events::four_events;
use super::{Meter, finish, left, observed, observed_with};
use crate::bounds::sessions::make_up;
use crate::support::*;
use mcp_resume::config::Config;
use mcp_resume::protocol::client_names::ClientNames;
use std::time::Duration;

pub(super) async fn a_connection(connections: &Meter) {
    let (_upstream, proxy, _) = observed().await;
    // The page is asked for on a connection, which counts as well.
    let are = async |count: f64| until("they are counted", async || connections.read(&proxy).await == count).await;
    are(1.0).await;
    let clients = [Client::connect(proxy.addr).await, Client::connect(proxy.addr).await];
    are(3.0).await;
    drop(clients);
    are(1.0).await;
}

pub(super) async fn every_answer_to_a_resume(resumes: &Meter) {
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

pub(super) async fn mcp_on_another_path(unprotected: &Meter) {
    let (mut upstream, proxy, _) = observed().await;
    let mut so_far = 0.0;
    let named = |target: &str| Request::get().target(target).with("mcp-protocol-version", "2025-11-25");
    for (request, is_stream, counts) in [
        (Request::get().target("/health"), false, false),
        // What a client asks before it has a token.
        (named("/.well-known/oauth-protected-resource"), false, false),
        (named("/deep"), false, true),
        (Request::get().target("/sse"), true, true),
    ] {
        assert_eq!(unprotected.read(&proxy).await, so_far);
        let pending = request.start(proxy.addr).await;
        let asked = upstream.next().await;
        if is_stream {
            asked.sse().await.end().await;
        } else {
            asked.status(200).await;
        }
        pending.response().await.body().await;
        so_far += f64::from(u8::from(counts));
        assert_eq!(unprotected.read(&proxy).await, so_far);
    }
}

pub(super) async fn a_post_sent_again(retries: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(retries.read(&proxy).await, 0.0);
    let mut again = session.post(call(1)).send(proxy.addr).await.sse();
    finish(sse, &mut again).await;
    assert_eq!(retries.read(&proxy).await, 1.0);
}

pub(super) async fn a_newer_connection(takeovers: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    assert_eq!(takeovers.read(&proxy).await, 0.0);
    session.resume(&place.at(0)).send(proxy.addr).await.sse().prime().await;
    response.ends().await;
    assert_eq!(takeovers.read(&proxy).await, 1.0);
}

pub(super) async fn a_reader_that_comes_too_late(gaps: &Meter) {
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

pub(super) async fn an_upstream_that_is_slow_to_begin(commits: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.delivery.commit_after = Some(SOON)).await;
    assert_eq!(commits.read(&proxy).await, 0.0);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let _silent = upstream.expect("tools/call").await;
    pending.response().await.sse().prime().await;
    assert_eq!(commits.read(&proxy).await, 1.0);
}

pub(super) async fn clients_that_leave_with_an_id_and_without(disconnects: &Meter) {
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

pub(super) async fn a_client_that_does_not_resume(by_get: &Meter) {
    let named = |config: &mut Config| config.delivery.by_get = ClientNames::of(&["raw"]);
    let (mut upstream, proxy, session) = observed_with(named).await;
    let pending = session.get().start(proxy.addr).await;
    let _sse = upstream.expect("GET").await.sse().await;
    let mut get = pending.response().await.sse();
    get.prime().await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(by_get.read(&proxy).await, 0.0);
    pass(Duration::from_secs(3)).await;
    get.event().await;
    assert_eq!(by_get.read(&proxy).await, 1.0);
}

pub(super) async fn a_resume_behind_too_many(delayed: &Meter) {
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

pub(super) async fn a_refreshed_token(probes: &Meter) {
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

pub(super) async fn a_request_that_is_refused(rejects: &Meter) {
    let (_upstream, proxy, session) = observed().await;
    assert_eq!(rejects.of(&proxy, "reason=not_json").await, 0.0);
    assert_eq!(session.post("no JSON").send(proxy.addr).await.status, 400);
    assert_eq!(rejects.of(&proxy, "reason=not_json").await, 1.0);
}

pub(super) async fn an_upstream_that_is_not_there(failures: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.upstream.wait = Duration::ZERO).await;
    assert_eq!(failures.of(&proxy, "reason=unreachable").await, 0.0);
    upstream.refuse().await;
    assert_eq!(session.post(call(1)).send(proxy.addr).await.status, 502);
    assert_eq!(failures.of(&proxy, "reason=unreachable").await, 1.0);
}

pub(super) async fn a_session_that_is_named(kept: &Meter) {
    let (_upstream, proxy, session) = observed().await;
    assert_eq!(kept.read(&proxy).await, 1.0);
    make_up(&proxy, &session, 0..3).await;
    assert_eq!(kept.read(&proxy).await, 4.0);
    make_up(&proxy, &session, 0..3).await;
    assert_eq!(kept.read(&proxy).await, 4.0, "each has one record");
}

pub(super) async fn sessions_that_are_made_up(evicted: &Meter) {
    let (_upstream, proxy, session) = observed_with(|c| c.limits.sessions = 4 * 1024).await;
    make_up(&proxy, &session, 0..1024).await;
    assert_eq!(evicted.read(&proxy).await, 0.0);
    make_up(&proxy, &session, 1024..1025).await;
    assert_eq!(evicted.read(&proxy).await, 512.0);
}
