//! The batches of 2025-03-26: one stream, ended when every request in it is answered.

use crate::support::*;
use serde_json::{Value, json};

async fn setup_with_batches() -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.streams.linger = SOON;
        c.streams.cancel_grace = SOON;
        c.upstream.wait = SOON;
    })
    .await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    (upstream, proxy, session)
}

fn two() -> String {
    two_of("slow")
}

fn two_of(tool: &str) -> String {
    let (one, two) = (call_tool(1, tool), call_tool("two", tool));
    format!(r#"[{one}, {{"jsonrpc":"2.0","method":"notifications/x"}}, {two}]"#)
}

/// Every message of these events, arrays taken apart.
fn messages(events: &[Frame]) -> Vec<Value> {
    events
        .iter()
        .flat_map(|event| match event.json() {
            Value::Array(items) => items,
            one => vec![one],
        })
        .collect()
}

fn ids(messages: &[Value]) -> Vec<Value> {
    let mut ids: Vec<Value> = messages.iter().map(|m| m["id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    ids
}

#[tokio::test]
async fn a_batch_is_forwarded_unchanged_and_its_array_comes_back() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let pending = session.post(two()).start(proxy.addr).await;
    let upstream_call = upstream.expect("batch").await;
    assert_eq!(upstream_call.body, two().into_bytes());
    let answer = format!("[{}, {}]", result("two"), result(1));
    upstream_call.json(200, &answer).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.body().await, answer.as_bytes());
}

#[tokio::test]
async fn its_stream_ends_with_the_last_answer() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(two())).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(result("two")).await;
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    back.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(back.event().await.id(), place.at(2));
    sse.event(result(1)).await;
    assert_eq!(back.event().await.id(), place.at(3));
    back.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn an_array_of_responses_in_one_event_answers_both() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(two())).await;
    let both = format!("[{},{}]", result(1), result("two"));
    sse.event(&both).await;
    assert_eq!(response.event().await.bytes(), both.as_bytes());
    response.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn every_unanswered_request_gets_the_error() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    for (tool, answered) in [("a", None), ("b", Some(json!(1))), ("c", Some(json!("two")))] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(two_of(tool))).await;
        response.prime().await;
        if let Some(id) = &answered {
            sse.event(result(id.clone())).await;
            response.event().await;
        }
        sse.reset().await;
        let (events, end) = response.events().await;
        assert_eq!(end, End::Complete);
        let errors = messages(&events);
        let left: Vec<Value> =
            [json!("two"), json!(1)].into_iter().filter(|id| Some(id) != answered.as_ref()).collect();
        assert_eq!(ids(&errors), left);
        for error in &errors {
            assert_fault(error, error["id"].clone(), UPSTREAM_FAILED, "upstream");
        }
    }
}

#[tokio::test]
async fn a_batch_refused_before_the_head_names_every_request() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    upstream.refuse().await;
    let mut response = session.post(two()).send(proxy.addr).await;
    assert!(matches!(response.status, 502..=504));
    let Value::Array(errors) = response.json().await else {
        panic!("a batch is answered by an array");
    };
    assert_eq!(ids(&errors), [json!("two"), json!(1)]);
}

#[tokio::test]
async fn a_late_array_becomes_the_messages_of_the_stream() {
    let (mut upstream, proxy, _) = setup_with_batches().await;
    let hasty = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    drop(proxy);
    let session = Session::open(&hasty, &mut upstream, V2025_03).await;
    let pending = session.post(two()).start(hasty.addr).await;
    let upstream_call = upstream.expect("batch").await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    upstream_call.json(200, format!("[{},{}]", result("two"), result(1))).await;
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    assert_eq!(ids(&messages(&events)), [json!("two"), json!(1)]);
}

#[tokio::test]
async fn a_lost_batch_is_an_array_of_errors() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(two())).await;
    let place = EventId::of(response.prime().await.id());
    let mut lost = session.resume(&place.forged().at(0)).send(proxy.addr).await.sse();
    let (events, end) = lost.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    let Value::Array(errors) = events[0].json() else {
        panic!("an array: {:?}", events[0]);
    };
    assert_eq!(ids(&errors), [json!("two"), json!(1)]);
    for error in &errors {
        assert_eq!(error["error"]["code"], GONE);
    }
    sse.event(result(1)).await;
    sse.finish(result("two")).await;
}

#[tokio::test]
async fn a_cancelled_request_of_a_batch_is_not_waited_for() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(two())).await;
    response.prime().await;
    let pending = session
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#)
        .start(proxy.addr)
        .await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.event(result("two")).await;
    assert_eq!(response.event().await.bytes(), result("two").as_bytes());
    response.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn a_batch_without_requests_gets_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let pending = session
        .post(r#"[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","method":"notifications/y"}]"#)
        .start(proxy.addr)
        .await;
    upstream.expect("batch").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
}

#[tokio::test]
async fn a_client_that_takes_json_only_gets_an_array_of_an_event_once() {
    let (mut upstream, proxy, session) = setup_with_batches().await;
    let pending = session.post(two()).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    let news = progress(1);
    sse.finish(format!("[{},{news},{}]", result("two"), result(1))).await;
    let mut response = pending.response().await;
    assert_eq!(response.body().await, format!("[{},{}]", result("two"), result(1)).as_bytes());
}

#[tokio::test]
async fn an_evicted_response_is_replaced_by_an_error() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_events = 4).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    let batch = format!("[{},{}]", call(1), call(2));
    let pending = session.post(batch).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    sse.event(result(1)).await;
    for n in 1..=9 {
        sse.event(progress(n)).await;
    }
    sse.finish(result(2)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    let body = response.json().await;
    let [dropped, kept] = body.as_array().expect("an array").as_slice() else { panic!("{body}") };
    assert_fault(dropped, 1, BOUND, "client");
    assert_eq!(kept.to_string(), serde_json::from_str::<serde_json::Value>(&result(2)).expect("JSON").to_string());
}
