//! Calls that wait for answers at one of several replicas.

use mcp_resume::config::{Config, OnUnreachable};

use super::*;
use crate::misdirected::{ONE, TWO, marked, misdirected};

async fn named(name: &str, is_bridged: bool) -> (Upstream, Proxy) {
    named_with(is_bridged, |config| config.replica.name = Some(name.to_owned())).await
}

async fn named_with(is_bridged: bool, change: impl FnOnce(&mut Config)) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        change(config);
        config.dialects.input_grace = Duration::from_millis(50);
        config.bridge = is_bridged.then(always);
    })
    .await;
    (upstream, proxy)
}

/// Has a call wait at `proxy`. Returns its stream at the server, its ID there, and the request that
/// brings the answers.
async fn parked(upstream: &mut Upstream, proxy: &Proxy) -> (Sse, Value, Request) {
    let (sse, mut response, sent) = begun(upstream, proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    let state = response.event().await.json()["result"]["requestState"].clone();
    let answers = json!({"requestState": state, "inputResponses": {"q1": {"action": "accept"}}});
    (sse, sent["id"].clone(), call(6, answers))
}

#[tokio::test]
async fn a_marked_retry_is_sent_to_the_replica_in_its_state() {
    let (mut upstream, one) = named("one", true).await;
    let (untouched, two) = named("two", true).await;
    let (sse, id, retry) = parked(&mut upstream, &one).await;
    let body: Value = serde_json::from_slice(retry.body()).expect("JSON");
    let state = body["params"]["requestState"].as_str().expect("text");
    assert_eq!((state.split('~').next(), state.len()), (Some(ONE), 41));
    misdirected(&two, retry.clone(), TWO).await;
    assert_eq!(untouched.connections(), 0);
    let pending = marked(retry).start(one.addr).await;
    upstream.expect("response").await.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.finish(result_under(&id)).await;
    assert_eq!(response.event().await.json()["id"], 6);
}

/// No store has the call.
#[tokio::test]
async fn a_shared_store_does_not_have_calls_that_wait() {
    let redis = Redis::start();
    let (mut upstream, one) = named_with(true, redis.of("one", OnUnreachable::Degrade)).await;
    let (untouched, two) = named_with(true, redis.of("two", OnUnreachable::Degrade)).await;
    let (_sse, _, retry) = parked(&mut upstream, &one).await;
    misdirected(&two, retry, TWO).await;
    assert_eq!(untouched.connections(), 0);
}

#[tokio::test]
async fn without_a_mark_the_state_is_unknown() {
    let (mut upstream, one) = named("one", true).await;
    let (mut other, two) = named("two", true).await;
    let (sse, _, retry) = parked(&mut upstream, &one).await;
    let pending = retry.start(two.addr).await;
    opens(&mut other, true).await;
    other.expect("GET").await.status(405).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.json().await["error"]["code"].clone()), (400, json!(-32602)));
    assert!(!sse.is_closed());
}

/// Not even a state that looks like one of another proxy is read where nothing is translated.
#[tokio::test]
async fn states_of_servers_pass() {
    let foreign = format!("{ONE}~{}", "0".repeat(32));
    for (is_bridged, state) in [(true, "a server's~own"), (true, "0badcafe~"), (false, foreign.as_str())] {
        let (mut upstream, two) = named("two", is_bridged).await;
        let pending = marked(call(6, json!({"requestState": state}))).start(two.addr).await;
        if is_bridged {
            let found = json!({"resultType": "complete", "supportedVersions": [V2026], "capabilities": {}});
            let discover = upstream.expect("server/discover").await;
            let id = discover.json_body()["id"].clone();
            discover.json(200, json!({"jsonrpc": "2.0", "id": id, "result": found}).to_string()).await;
        }
        let sent = upstream.expect("tools/call").await;
        assert_eq!(sent.json_body()["params"]["requestState"], state);
        sent.json(200, result_under(&json!(6))).await;
        assert_eq!(pending.response().await.json().await["id"], 6);
    }
}
