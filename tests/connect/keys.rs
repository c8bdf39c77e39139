//! A `serve` at the far side: calls have keys, and are sent again until it has joined them.

use std::time::Duration;

use mcp_resume::connect::Options;
use serde_json::{Value, json};

use super::host::*;
use super::support::*;

const PROMISE: &str = "mcp-resume: 1; epoch=e-1; hold=600\r\n";
const WARNING: &str = "; the tool may have run: check whether it did before you call it again";

/// Opens a session at a server that promises.
async fn open(upstream: &mut Upstream) -> Host {
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    let head = format!("mcp-session-id: s-1\r\n{PROMISE}");
    upstream.expect("initialize").await.json_with(200, &head, handshake(V2025_11)).await;
    host.hear().await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status_with(202, PROMISE).await;
    host
}

fn proxy_error(code: &str, may_have_run: bool) -> String {
    let data = json!({"error": code, "fault": "proxy", "mayHaveRun": may_have_run});
    json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32010, "message": "words", "data": data}}).to_string()
}

#[tokio::test]
async fn a_call_that_broke_before_an_id_is_sent_again_with_its_key() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    let first = upstream.expect("tools/call").await;
    let key = first.header("idempotency-key").expect("a key").to_owned();
    assert_eq!((first.header("mcp-resume-epoch"), first.header("mcp-resume-hold")), (None, Some("600")));
    let body = first.body.clone();
    first.reset().await;
    // Before the head, in the head, and before the first event.
    for cut in 0..3 {
        let again = upstream.expect("tools/call").await;
        assert_eq!(again.header("idempotency-key"), Some(&*key));
        assert_eq!(again.header("mcp-resume-epoch"), Some("e-1"));
        assert_eq!(again.body, body);
        match cut {
            0 => again.reset().await,
            1 => {
                again.write("HTTP/1.1 200 OK\r\ncontent-ty").await;
                again.reset().await;
            }
            _ => {
                let sse = again.sse_with(PROMISE).await;
                sse.bytes(": ok\n\n").await;
                sse.reset().await;
            }
        }
    }
    upstream.expect("tools/call").await.json_with(200, PROMISE, content(1, "once")).await;
    assert_eq!(text_of(&host.hear().await), "once");
    // The next call has a key of its own.
    host.say(&call(2)).await;
    let next = upstream.expect("tools/call").await;
    assert!(next.header("idempotency-key").is_some_and(|other| other != key));
    next.json_with(200, PROMISE, content(2, "two")).await;
    host.hear().await;
}

#[tokio::test]
async fn requests_without_effects_need_no_key() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    let list = upstream.expect("tools/list").await;
    assert_eq!(list.header("idempotency-key"), None);
    list.reset().await;
    let list = upstream.expect("tools/list").await;
    assert_eq!((list.header("idempotency-key"), list.header("mcp-resume-epoch")), (None, None));
}

#[tokio::test]
async fn another_epoch_is_an_error_in_words() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    upstream.expect("tools/call").await.reset().await;
    let again = upstream.expect("tools/call").await;
    let text =
        "the proxy that ran the call has died; the tool may have run: check whether it did before you call it again";
    let data = json!({"error": "owner_died", "fault": "proxy", "mayHaveRun": true});
    let error = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32011, "message": text, "data": data}});
    again.json_with(412, "mcp-resume: 1; epoch=e-2; hold=600\r\n", error.to_string()).await;
    let answer = host.hear().await;
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
    // The next call relies on the new epoch.
    host.say(&call(2)).await;
    upstream.expect("tools/call").await.reset().await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-resume-epoch"), Some("e-2"));
    again.json(200, content(2, "two")).await;
    host.hear().await;
}

#[tokio::test]
async fn refusals_of_a_repetition_are_waited_out() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    upstream.expect("tools/call").await.reset().await;
    let busy = upstream.expect("tools/call").await;
    busy.json_with(503, PROMISE, proxy_error("store_failed", false)).await;
    // A proxy in between has no word of the far side.
    upstream.expect("tools/call").await.status(502).await;
    upstream.expect("tools/call").await.json_with(200, PROMISE, content(1, "at last")).await;
    assert_eq!(text_of(&host.hear().await), "at last");
}

#[tokio::test]
async fn a_repetition_that_was_not_taken_does_not_hide_that_the_tool_may_have_run() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    upstream.expect("tools/call").await.reset().await;
    upstream.expect("tools/call").await.json_with(429, PROMISE, proxy_error("too_many_streams", false)).await;
    let answer = host.hear().await;
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
}

#[tokio::test]
async fn what_a_serve_says_of_its_server_is_the_answer() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    upstream.expect("tools/call").await.json_with(502, PROMISE, proxy_error("upstream_broke", true)).await;
    assert_eq!(host.hear().await["error"]["data"]["error"], "upstream_broke");
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse_with(PROMISE).await;
    sse.event_id("e-7", proxy_error("upstream_broke", true)).await;
    assert_eq!(host.hear().await["error"]["data"]["error"], "upstream_broke");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_without_a_promise_takes_its_place_and_gets_no_key() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&request(1, "tools/list")).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    host.hear().await;
    host.say(&call(2)).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("idempotency-key"), None);
    call.reset().await;
    assert!(error_of(&host.hear().await).ends_with(WARNING));
    assert!(upstream.is_quiet());
}

/// A host of 2026-07-28 whose server has promised.
async fn open_modern(upstream: &mut Upstream) -> Host {
    let headers = vec!["Authorization: Bearer b".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    host.say(&modern_line(0, "server/discover")).await;
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"supportedVersions": [V2026]}});
    upstream.expect("server/discover").await.json_with(200, PROMISE, result.to_string()).await;
    host.hear().await;
    host
}

fn modern_line(id: impl Into<Value>, method: &str) -> String {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": V2026});
    let params = json!({"name": "slow", "arguments": {}, "_meta": meta});
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

#[tokio::test]
async fn a_call_of_2026_07_28_is_held_and_cancelled_by_its_key() {
    let mut upstream = Upstream::start().await;
    let mut host = open_modern(&mut upstream).await;
    host.say(&modern_line(1, "tools/call")).await;
    let first = upstream.expect("tools/call").await;
    let key = first.header("idempotency-key").expect("a key").to_owned();
    assert_eq!(first.header("mcp-resume-hold"), Some("600"));
    assert_eq!(first.header("mcp-resume-epoch"), None);
    first.reset().await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-resume-epoch"), Some("e-1"));
    assert_eq!(again.header("authorization"), Some("Bearer b"));
    let sse = again.sse_with(PROMISE).await;
    sse.bytes("id: e-1\ndata:\n\n").await;
    host.say(&cancel(1)).await;
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.header("idempotency-key"), Some(&*key));
    assert_eq!(cancelled.header("mcp-protocol-version"), Some(V2026));
    assert_eq!(cancelled.header("mcp-method"), Some("notifications/cancelled"));
    assert_eq!(cancelled.json_body()["params"]["requestId"], 1);
    cancelled.status(202).await;
    sse.closed().await;
    assert!(host.hears_nothing_for(Duration::from_millis(50)).await);
}

#[tokio::test]
async fn a_host_that_has_probed_elsewhere_has_the_promise_before_its_first_call() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["Authorization: Bearer b".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    for id in [1, 2] {
        host.say(&modern_line(id, "tools/call")).await;
    }
    let question = upstream.expect("server/discover").await;
    assert_eq!(question.header("mcp-protocol-version"), Some(V2026));
    assert_eq!(question.json_body()["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], V2026);
    question.reset().await;
    // No call is sent before, and the second one asks nothing.
    let question = upstream.expect("server/discover").await;
    question.json_with(200, PROMISE, r#"{"jsonrpc":"2.0","id":"mcp-resume","result":{}}"#.to_owned()).await;
    for _ in 0..2 {
        let call = upstream.expect("tools/call").await;
        assert!(call.header("idempotency-key").is_some());
        let id = call.json_body()["id"].clone();
        call.json_with(200, PROMISE, content(id, "once")).await;
        assert_eq!(text_of(&host.hear().await), "once");
    }
}

#[tokio::test]
async fn a_far_side_that_knows_no_probe_gets_the_first_call_without_a_key() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["Authorization: Bearer b".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    host.say(&modern_line(1, "tools/call")).await;
    upstream.expect("server/discover").await.status(404).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("idempotency-key"), None);
    call.json(200, content(1, "once")).await;
    assert_eq!(text_of(&host.hear().await), "once");
    // Its response has shown that there is no promise.
    host.say(&modern_line(2, "tools/call")).await;
    upstream.expect("tools/call").await.json(200, content(2, "two")).await;
    host.hear().await;
}

#[tokio::test]
async fn a_cancel_of_a_held_call_is_sent_until_the_far_side_has_it() {
    let mut upstream = Upstream::start().await;
    let mut host = open_modern(&mut upstream).await;
    host.say(&modern_line(1, "tools/call")).await;
    let call = upstream.expect("tools/call").await;
    let key = call.header("idempotency-key").expect("a key").to_owned();
    let _sse = call.sse_with(PROMISE).await;
    host.say(&cancel(1)).await;
    upstream.expect("notifications/cancelled").await.reset().await;
    let again = upstream.expect("notifications/cancelled").await;
    assert_eq!(again.header("idempotency-key"), Some(&*key));
    again.status(202).await;
}

#[tokio::test]
async fn held_calls_are_cancelled_at_the_end() {
    let mut upstream = Upstream::start().await;
    let mut host = open_modern(&mut upstream).await;
    host.say(&modern_line(1, "tools/call")).await;
    let call = upstream.expect("tools/call").await;
    let key = call.header("idempotency-key").expect("a key").to_owned();
    let _sse = call.sse_with(PROMISE).await;
    host.stop();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.header("idempotency-key"), Some(&*key));
    cancelled.status(202).await;
    host.end().await;
}

#[tokio::test]
async fn a_serve_that_has_forgotten_a_stream_of_a_call_ends_it_in_words() {
    let mut upstream = Upstream::start().await;
    let mut host = open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse_with(PROMISE).await;
    sse.bytes("id: e-7\ndata:\n\n").await;
    sse.reset().await;
    let data = json!({"error": "stream_lost", "fault": "client", "mayHaveRun": true});
    let text = "the stream or the place in it is gone; the request may have been carried out";
    let lost = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32012, "message": text, "data": data}});
    let resumed = upstream.expect("GET").await;
    assert_eq!(resumed.header("last-event-id"), Some("e-7"));
    resumed.sse_with(PROMISE).await.event_id("e-8", lost.to_string()).await;
    let answer = host.hear().await;
    assert_eq!(answer["error"]["data"], data);
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
}

/// Starts `serve` before `upstream`, at `address`.
async fn serve_at(upstream: &Upstream, address: &str) -> Proxy {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--upstream", &upstream.url(), "--listen", address, "--admin", "127.0.0.1:0"]);
    Proxy::process(command).await
}

#[tokio::test]
async fn a_serve_that_was_killed_in_a_call_runs_it_no_second_time() {
    let mut upstream = Upstream::start().await;
    let proxy = serve_at(&upstream, "127.0.0.1:0").await;
    let address = proxy.addr.to_string();
    let mut host = Host::before(&format!("http://{address}/mcp"));
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    let mut stream = None;
    for _ in 0..2 {
        let call = upstream.next().await;
        match &*call.rpc_method() {
            "GET" => stream = Some(call.sse().await),
            _ => call.status(202).await,
        }
    }
    host.say(&call(1)).await;
    let ran = upstream.expect("tools/call").await;
    assert!(ran.header("idempotency-key").is_some());
    // The head has not come yet.
    proxy.kill().await;
    let _again = serve_at(&upstream, &address).await;
    let answer = host.hear().await;
    assert_eq!(answer["error"]["data"]["error"], "owner_died", "{answer}");
    assert!(error_of(&answer).ends_with(WARNING), "{answer}");
    while !upstream.is_quiet() {
        assert_ne!(upstream.next().await.rpc_method(), "tools/call");
    }
    drop((ran, stream));
}

#[tokio::test]
async fn a_call_that_is_translated_relies_on_no_promise() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["Authorization: Bearer b".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    host.say(&initialized()).await;
    host.say(&call(1)).await;
    let (mut streams, mut calls) = (Vec::new(), 0);
    let serving = async {
        loop {
            let call = upstream.next().await;
            let id = call.json_body()["id"].clone();
            match &*call.rpc_method() {
                "initialize" => {
                    let data = json!({"supported": [V2026]});
                    let error = json!({"code": -32022, "message": "Unsupported protocol version", "data": data});
                    let refusal = json!({"jsonrpc": "2.0", "id": 0, "error": error});
                    call.json_with(400, PROMISE, refusal.to_string()).await;
                }
                "server/discover" => {
                    let result =
                        json!({"resultType": "complete", "supportedVersions": [V2026], "capabilities": {"tools": {}}});
                    let found = json!({"jsonrpc": "2.0", "id": id, "result": result});
                    call.json_with(200, PROMISE, found.to_string()).await;
                }
                "tools/list" => {
                    let result = json!({"resultType": "complete", "tools": []});
                    call.json_with(200, PROMISE, json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
                        .await;
                }
                "tools/call" => {
                    for name in ["idempotency-key", "mcp-resume-hold", "mcp-resume-epoch"] {
                        assert_eq!(call.header(name), None, "{name}");
                    }
                    calls += 1;
                    call.reset().await;
                }
                _ => streams.push(call.sse_with(PROMISE).await),
            }
        }
    };
    let mut answers = Vec::new();
    tokio::select! {
        () = serving => {}
        () = async { for _ in 0..2 { answers.push(host.hear().await); } } => {}
    }
    assert!(error_of(&answers[1]).ends_with(WARNING), "{answers:?}");
    assert_eq!(calls, 1);
}
