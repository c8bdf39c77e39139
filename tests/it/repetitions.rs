//! HTTP clients that send a request again by themselves when its connection breaks, outside
//! sessions: the tool runs once, and calls that are equal on purpose run each.

use std::time::Duration;

use mcp_resume::config::Config;
use mcp_resume::protocol::client_address::Trust;
use serde_json::json;

use crate::repeated_ids::run_of;
use crate::retry;
use crate::support::*;

/// Callers whose repetitions are believed, at each revision: without credentials on a loopback
/// listener, with a token, with an API key.
fn callers() -> Vec<(String, Request)> {
    let legacy = Request::post(call(1)).with("MCP-Protocol-Version", V2025_11).with("Cookie", "a=1");
    let requests = [("legacy", legacy), ("modern", modern(1))];
    let of_each = |(era, request): (&str, Request)| {
        [
            (format!("{era}, anonymous"), request.clone()),
            (format!("{era}, token"), request.clone().with("Authorization", "Bearer t")),
            (format!("{era}, key"), request.with("X-API-Key", "k")),
        ]
    };
    requests.into_iter().flat_map(of_each).collect()
}

fn request() -> Request {
    callers().swap_remove(0).1
}

fn outcome(run: u64) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "result": {"run": run}}).to_string()
}

async fn start(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, change).await;
    (upstream, proxy)
}

/// A call whose connection broke before its head; the proxy has seen the break.
async fn broken(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> Call {
    let client = request.start(proxy.addr).await;
    let call = upstream.next().await;
    client.reset();
    settle(proxy, upstream).await;
    call
}

/// Asserts that `request` is a call of its own.
async fn runs(proxy: &Proxy, upstream: &mut Upstream, request: &Request, what: &str) {
    let pending = request.start(proxy.addr).await;
    upstream.next().await.json(200, outcome(77)).await;
    assert_eq!(run_of(&mut pending.response().await).await, 77, "{what}");
}

/// Asserts that `request` joins `call`.
async fn joins(proxy: &Proxy, upstream: &mut Upstream, request: &Request, call: Call, what: &str) {
    let pending = request.start(proxy.addr).await;
    settle(proxy, upstream).await;
    call.json(200, outcome(5)).await;
    assert_eq!(run_of(&mut pending.response().await).await, 5, "{what}");
    assert!(upstream.is_quiet(), "{what}");
}

#[tokio::test]
async fn a_request_whose_connection_broke_before_its_head_runs_once() {
    for (caller, request) in callers() {
        for form in FORMS {
            for ends_in_order in [false, true] {
                let (mut upstream, proxy) = start(|_| {}).await;
                let mut client = request.start(proxy.addr).await;
                let call = upstream.next().await;
                if ends_in_order {
                    client.half_close().await;
                    drop(client);
                } else {
                    client.reset();
                }
                settle(&proxy, &mut upstream).await;
                let pending = request.start(proxy.addr).await;
                settle(&proxy, &mut upstream).await;
                form.answer(call, outcome(1)).await;
                let what = format!("{caller}, {form:?}, in order: {ends_in_order}");
                assert_eq!(run_of(&mut pending.response().await).await, 1, "{what}");
                assert!(upstream.is_quiet(), "{what}");
                runs(&proxy, &mut upstream, &request, &what).await;
            }
        }
    }
}

#[tokio::test]
async fn a_request_whose_call_ended_after_the_break_gets_its_response() {
    for (caller, request) in callers() {
        for form in FORMS {
            let (mut upstream, proxy) = start(|_| {}).await;
            let call = broken(&proxy, &mut upstream, &request).await;
            form.answer(call, outcome(1)).await;
            settle(&proxy, &mut upstream).await;
            assert_eq!(run_of(&mut request.send(proxy.addr).await).await, 1, "{caller}, {form:?}");
            assert!(upstream.is_quiet(), "{caller}, {form:?}");
            runs(&proxy, &mut upstream, &request, &caller).await;
        }
    }
}

#[tokio::test]
async fn a_request_whose_connection_broke_behind_its_head_runs_once() {
    for (caller, request) in callers() {
        let (mut upstream, proxy) = start(|_| {}).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        sse.event(progress(1)).await;
        let place = EventId::of(response.event().await.id());
        response.reset();
        settle(&proxy, &mut upstream).await;
        let mut again = request.send(proxy.addr).await.sse();
        assert_eq!(EventId::of(again.event().await.id()).handle, place.handle, "{caller}");
        sse.finish(outcome(1)).await;
        assert_eq!(run_of(&mut again).await, 1, "{caller}");

        // In the bytes of a response that the proxy has written whole.
        for form in FORMS {
            let client = request.start(proxy.addr).await.stop_after(10);
            form.answer(upstream.next().await, outcome(2)).await;
            assert!(client.try_response().await.is_err());
            settle(&proxy, &mut upstream).await;
            assert_eq!(run_of(&mut request.send(proxy.addr).await).await, 2, "{caller}, {form:?}");
        }
        assert!(upstream.is_quiet(), "{caller}");
    }
}

#[tokio::test]
async fn a_request_may_be_repeated_three_times() {
    for form in FORMS {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &request()).await;
        for _ in 0..2 {
            let again = request().start(proxy.addr).await;
            settle(&proxy, &mut upstream).await;
            again.reset();
            settle(&proxy, &mut upstream).await;
        }
        let pending = request().start(proxy.addr).await;
        settle(&proxy, &mut upstream).await;
        form.answer(call, outcome(1)).await;
        assert_eq!(run_of(&mut pending.response().await).await, 1, "{form:?}");
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_client_whose_requests_time_out_reaches_the_server_again() {
    let (mut upstream, proxy) = start(|_| {}).await;
    let _hangs = broken(&proxy, &mut upstream, &request()).await;
    for _ in 0..3 {
        let again = request().start(proxy.addr).await;
        settle(&proxy, &mut upstream).await;
        again.reset();
        settle(&proxy, &mut upstream).await;
    }
    runs(&proxy, &mut upstream, &request(), "the fifth time").await;
}

#[tokio::test]
async fn another_request_is_a_call_of_its_own() {
    let others = [
        ("another ID", request().with_body(call(2))),
        ("another tool", request().with_body(call_tool(1, "other"))),
        ("another query", request().target("/mcp?a=1")),
        ("another cookie", request().with("Cookie", "a=2")),
        ("no cookie", request().without("Cookie")),
        ("another header", request().with("X-Other", "1")),
        ("another type", request().with("Accept", "application/json")),
        ("a token", request().with("Authorization", "Bearer t")),
        ("a session", request().with("Mcp-Session-Id", "s-1")),
        ("a key", request().with("Idempotency-Key", "k")),
    ];
    for (what, other) in others {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &request()).await;
        runs(&proxy, &mut upstream, &other, what).await;
        joins(&proxy, &mut upstream, &request(), call, what).await;
    }
    let (mut upstream, proxy) = start(|_| {}).await;
    let token = |token: &str| request().with("Authorization", &format!("Bearer {token}"));
    let _call = broken(&proxy, &mut upstream, &token("a")).await;
    runs(&proxy, &mut upstream, &token("b"), "another token").await;
    runs(&proxy, &mut upstream, &request(), "no token").await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_same_bytes_from_another_address_are_a_call_of_their_own() {
    for (caller, request) in callers() {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &request).await;
        let mut other = Client::connect_from([127, 0, 0, 2].into(), proxy.addr).await;
        other.send(&request.bytes(proxy.addr)).await;
        upstream.next().await.json(200, outcome(2)).await;
        assert_eq!(run_of(&mut other.response().await).await, 2, "{caller}");
        joins(&proxy, &mut upstream, &request, call, &caller).await;
    }
}

#[tokio::test]
async fn equal_calls_on_purpose_run_each() {
    for (caller, request) in callers() {
        let (mut upstream, proxy) = start(|_| {}).await;
        // At once, from two processes of one address.
        let first = request.start(proxy.addr).await;
        let first_call = upstream.next().await;
        let second = request.start(proxy.addr).await;
        upstream.next().await.json(200, outcome(2)).await;
        assert_eq!(run_of(&mut second.response().await).await, 2, "{caller}");
        first_call.json(200, outcome(1)).await;
        let mut response = first.response().await;
        assert_eq!(run_of(&mut response).await, 1, "{caller}");

        // One after the other, on one connection, and on new ones.
        let mut kept = response.into_client();
        kept.send(&request.bytes(proxy.addr)).await;
        upstream.next().await.json(200, outcome(3)).await;
        let mut response = kept.response().await;
        assert_eq!(run_of(&mut response).await, 3, "{caller}");
        response.fin();
        for what in ["a first", "a second"] {
            runs(&proxy, &mut upstream, &request, &format!("{caller}, {what}")).await;
        }

        // Beside a broken call, on a connection that was in use before.
        let pending = request.clone().with("X-First", "1").start(proxy.addr).await;
        upstream.next().await.json(200, outcome(4)).await;
        let mut response = pending.response().await;
        assert_eq!(run_of(&mut response).await, 4, "{caller}");
        let mut used = response.into_client();
        let call = broken(&proxy, &mut upstream, &request).await;
        used.send(&request.bytes(proxy.addr)).await;
        upstream.next().await.json(200, outcome(6)).await;
        assert_eq!(run_of(&mut used.response().await).await, 6, "{caller}");
        joins(&proxy, &mut upstream, &request, call, &caller).await;
    }
}

#[tokio::test]
async fn each_of_two_broken_calls_is_joined_once() {
    let (mut upstream, proxy) = start(|_| {}).await;
    let clients = [request().start(proxy.addr).await, request().start(proxy.addr).await];
    let mut calls = vec![upstream.next().await, upstream.next().await];
    for client in clients {
        client.reset();
    }
    settle(&proxy, &mut upstream).await;
    let pending = [request().start(proxy.addr).await, request().start(proxy.addr).await];
    settle(&proxy, &mut upstream).await;
    runs(&proxy, &mut upstream, &request(), "the third").await;
    for (run, call) in calls.drain(..).enumerate() {
        call.json(200, outcome(run as u64)).await;
    }
    let mut found = Vec::new();
    for client in pending {
        found.push(run_of(&mut client.response().await).await);
    }
    found.sort_unstable();
    assert_eq!(found, [0, 1]);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn after_two_seconds_the_same_request_is_a_new_call() {
    for (caller, request) in callers() {
        for ended in [false, true] {
            let (mut upstream, proxy) = start(|_| {}).await;
            let call = broken(&proxy, &mut upstream, &request).await;
            let call = if ended {
                call.json(200, outcome(1)).await;
                settle(&proxy, &mut upstream).await;
                None
            } else {
                Some(call)
            };
            pass(Duration::from_millis(2100)).await;
            settle(&proxy, &mut upstream).await;
            runs(&proxy, &mut upstream, &request, &format!("{caller}, ended: {ended}")).await;
            drop(call);
        }
    }
}

#[tokio::test]
async fn a_connection_that_may_be_a_balancers_shows_no_repetition() {
    for (name, value) in [
        ("X-Forwarded-For", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
        ("X-Real-IP", "192.0.2.1"),
        ("X-Forwarded-Host", "a.example"),
        ("Via", "1.1 p"),
    ] {
        for (caller, request) in callers() {
            let (mut upstream, proxy) = start(|_| {}).await;
            let request = request.with(name, value);
            let _call = broken(&proxy, &mut upstream, &request).await;
            runs(&proxy, &mut upstream, &request, &format!("{name}, {caller}")).await;
        }
    }
    for (caller, request) in callers() {
        let trusted = |c: &mut Config| c.listen.trusted_proxies = Trust::new(["127.0.0.0/8".parse().unwrap()]);
        let (mut upstream, proxy) = start(trusted).await;
        let _call = broken(&proxy, &mut upstream, &request).await;
        runs(&proxy, &mut upstream, &request, &format!("trusted, {caller}")).await;

        // A connection that has carried another caller.
        let (mut upstream, proxy) = start(|_| {}).await;
        let pending = request.clone().with("Authorization", "Bearer other").start(proxy.addr).await;
        upstream.next().await.json(200, outcome(1)).await;
        let mut response = pending.response().await;
        run_of(&mut response).await;
        let mut shared = response.into_client();
        shared.send(&request.bytes(proxy.addr)).await;
        let _call = upstream.next().await;
        shared.reset();
        settle(&proxy, &mut upstream).await;
        runs(&proxy, &mut upstream, &request, &format!("shared, {caller}")).await;
    }
}

#[tokio::test]
async fn callers_without_credentials_are_believed_on_a_loopback_listener_alone() {
    for (caller, request) in callers() {
        let (mut upstream, mut proxy) = start(|c| c.listen.address = ([0, 0, 0, 0], 0).into()).await;
        proxy.addr = ([127, 0, 0, 1], proxy.addr.port()).into();
        let call = broken(&proxy, &mut upstream, &request).await;
        if caller.contains("anonymous") {
            runs(&proxy, &mut upstream, &request, &caller).await;
        } else {
            joins(&proxy, &mut upstream, &request, call, &caller).await;
        }
    }
}

#[tokio::test]
async fn a_refused_call_and_an_opening_run_again() {
    for status in [400, 401, 404, 429, 503] {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &request()).await;
        call.json(status, "{}").await;
        settle(&proxy, &mut upstream).await;
        runs(&proxy, &mut upstream, &request(), &status.to_string()).await;
    }
    let (mut upstream, proxy) = start(|_| {}).await;
    let opening = Request::post(initialize(V2025_11));
    let _call = broken(&proxy, &mut upstream, &opening).await;
    let pending = opening.start(proxy.addr).await;
    upstream.expect("initialize").await.json(200, outcome(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_modern_call_without_a_key_is_a_retry_right_after_a_break_alone() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = modern(1).with("Authorization", "Bearer a");
    let (sse, _) = retry::left(&proxy, &mut upstream, &request).await;
    pass(Duration::from_millis(2100)).await;
    retry::runs_anew(&proxy, &mut upstream, &request, "no session, no key").await;
    sse.finish(result(1)).await;
}
