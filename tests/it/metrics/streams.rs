//! Streams: those there are, and how they end.

use super::{Meter, finish, left, observed, observed_with};
use crate::beats::{beat, with_beats};
use crate::support::*;
use crate::tasks;
use mcp_resume::config::Config;
use std::time::Duration;

pub(super) async fn a_call_that_runs(open: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(open.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(open.read(&proxy).await, 1.0);
    finish(sse, &mut response).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(open.read(&proxy).await, 0.0);
}

pub(super) async fn a_client_that_reads(attached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(attached.read(&proxy).await, 1.0);
    response.reset();
    settle(&proxy, &mut upstream).await;
    assert_eq!(attached.read(&proxy).await, 0.0);
}

pub(super) async fn a_call_whose_client_is_away(detached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, place) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(detached.read(&proxy).await, 1.0);
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(detached.read(&proxy).await, 0.0);
}

pub(super) async fn a_stream_until_its_retention_is_over(kept: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = kept.read(&proxy).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    finish(sse, &mut response).await;
    assert_eq!(kept.read(&proxy).await, before + 1.0);
    pass(Duration::from_secs(3600)).await;
    within("it is forgotten", async { while kept.read(&proxy).await > 0.0 {} }).await;
}

pub(super) async fn an_event_until_it_is_forgotten(held: &Meter) {
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

pub(super) async fn every_way_a_stream_ends(sealed: &Meter) {
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

pub(super) async fn a_slow_call_of_a_client_with_tasks(created: &Meter) {
    let admin = |config: &mut Config| config.admin.address = Some(([127, 0, 0, 1], 0).into());
    let (mut upstream, proxy) = tasks::stage(admin).await;
    assert_eq!(created.read(&proxy).await, 0.0);
    let (sse, _) = tasks::promoted(&mut upstream, &proxy).await;
    assert_eq!(created.read(&proxy).await, 1.0);
    drop(sse);
}

pub(super) async fn an_end_without_a_client(detached: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    sse.finish(result(2)).await;
    response.event().await;
    response.ends().await;
    let before = detached.read(&proxy).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    sse.finish(result(1)).await;
    until("the end is counted", async || detached.read(&proxy).await == before + 1.0).await;
}

pub(super) async fn a_client_that_does_not_come_back_in_time(abandoned: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(abandoned.read(&proxy).await, 0.0);
    pass(Duration::from_secs(3600)).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    sse.closed().await;
    assert_eq!(abandoned.read(&proxy).await, 1.0);
}

pub(super) async fn a_server_that_is_gone_and_comes_back(ready: &Meter) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
        config.upstream.unready = Duration::ZERO;
    })
    .await;
    assert_eq!(ready.read(&proxy).await, 1.0);
    upstream.refuse().await;
    until("it is seen", async || ready.read(&proxy).await == 0.0).await;
    upstream.listen_again().await;
    until("it is seen", async || ready.read(&proxy).await == 1.0).await;
}

pub(super) async fn a_call_that_waits_for_its_server(waiting: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    upstream.refuse().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    until("it waits", async || waiting.read(&proxy).await == 1.0).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(waiting.read(&proxy).await, 0.0);
}

pub(super) async fn the_end_of_a_wait_for_the_server(waits: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.upstream.wait = Duration::from_secs(300)).await;
    let ended = async |outcome: &str| waits.of(&proxy, &format!("outcome={outcome}")).await;
    let waiting = async || metric(&proxy, "mcp_resume_calls_waiting").await;
    upstream.refuse().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    until("it waits", async || waiting().await == 1.0).await;
    pass(Duration::from_secs(301)).await;
    assert_eq!(pending.response().await.status, 502);
    assert_eq!(ended("timed_out").await, 1.0);
    // No id was written to the client, which is gone.
    let pending = modern(2).start(proxy.addr).await;
    until("it waits", async || waiting().await == 1.0).await;
    pending.reset();
    until("it is over", async || ended("ended").await == 1.0).await;
    let pending = session.post(call(3)).start(proxy.addr).await;
    until("it waits", async || waiting().await == 1.0).await;
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, result(3)).await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(ended("connected").await, 1.0);
}

pub(super) async fn a_session_that_its_server_has_forgotten(revivals: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let outcomes = ["unauthorized", "failed", "differs"];
    for (id, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(revivals.of(&proxy, &format!("outcome={outcome}")).await, 0.0);
        let pending = session.post(call(id)).start(proxy.addr).await;
        crate::revival::forget(&mut upstream, "tools/call", "s-1").await;
        let opening = upstream.expect("initialize").await;
        match outcome {
            "unauthorized" => opening.status(401).await,
            "failed" => opening.status(500).await,
            _ => {
                let response = serde_json::json!({ "jsonrpc": "2.0", "id": opening.json_body()["id"], "result": {} });
                opening.json(200, response.to_string()).await;
            }
        }
        assert!(pending.response().await.status >= 400);
        assert_eq!(revivals.of(&proxy, &format!("outcome={outcome}")).await, 1.0);
    }
    let (mut upstream, proxy, session) = observed().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(404).await;
    upstream.expect("ping").await.json(200, "{}").await;
    assert_eq!(pending.response().await.status, 404);
    assert_eq!(revivals.of(&proxy, "outcome=lives").await, 1.0);
}

pub(super) async fn the_version_that_runs(info: &Meter) {
    let (_upstream, proxy, _) = observed().await;
    assert_eq!(info.of(&proxy, &format!("version={}", env!("CARGO_PKG_VERSION"))).await, 1.0);
    assert_eq!(info.of(&proxy, "version=another").await, 0.0);
}

pub(super) async fn a_drain_that_begins(ready: &Meter) {
    let (_upstream, proxy, _) = observed().await;
    assert_eq!(ready.read(&proxy).await, 1.0);
    let admin = proxy.admin.expect("an admin listener");
    assert_eq!(Request::new("GET", "/drain").with("X-Drain", "1").send(admin).await.status, 200);
    assert_eq!(ready.read(&proxy).await, 0.0);
}

pub(super) async fn a_ping_of_the_server_while_the_client_is_away(answered: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let of = async |outcome: &str| answered.of(&proxy, &format!("outcome={outcome}")).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    for (outcome, status) in [("accepted", 202), ("refused", 400), ("refused", 401)] {
        let before = of(outcome).await;
        sse.event(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#).await;
        upstream.expect("response").await.status(status).await;
        until("it is seen", async || of(outcome).await == before + 1.0).await;
    }
    sse.event(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#).await;
    until("it is seen", async || of("withheld").await == 1.0).await;
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/n"}"#).start(proxy.addr).await;
    upstream.expect("notifications/n").await.status(202).await;
    pending.response().await;
    sse.event(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#).await;
    upstream.expect("response").await.reset().await;
    until("it is seen", async || of("failed").await == 1.0).await;
}

pub(super) async fn a_silent_server(beats: &Meter) {
    let (mut upstream, proxy, session) = observed_with(with_beats).await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(beats.read(&proxy).await, 0.0);
    pass(Duration::from_secs(21)).await;
    beat(&mut response).await;
    assert_eq!(beats.read(&proxy).await, 1.0);
    assert_eq!(metric(&proxy, "mcp_resume_delivered_events_total").await, 0.0, "it is no event");
}

pub(super) async fn a_silent_call(pings: &Meter) {
    let (mut upstream, proxy, session) = observed_with(|c| c.upstream.keepalive = Some(Duration::from_secs(120))).await;
    let of = async |outcome: &str| pings.of(&proxy, &format!("outcome={outcome}")).await;
    let _call = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(of("accepted").await, 0.0);
    pass(Duration::from_secs(130)).await;
    upstream.expect("ping").await.status(202).await;
    until("it is seen", async || of("accepted").await == 1.0).await;
    pass(Duration::from_secs(130)).await;
    upstream.expect("ping").await.status(404).await;
    until("it is seen", async || of("refused").await == 1.0).await;
}
