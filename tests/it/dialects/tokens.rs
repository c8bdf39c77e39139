//! Resume tokens, #1003.

use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::{Config, ResumeTokens};
use serde_json::{Value, json};

use super::{ask, refused};
use crate::support::*;

const SLICE: Duration = Duration::from_secs(30);
const METHODS: [&str; 3] = ["resources/read", "prompts/get", "acme/report"];

fn sliced(config: &mut Config) {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let tokens = ResumeTokens { slice: SLICE, tools: names(&["slow", "other", "exact"]), methods: names(&METHODS) };
    config.dialects.resume_tokens = Some(Arc::new(tokens));
}

/// A proxy that answers in slices, and a client that has listed the tools.
async fn begun() -> (Upstream, Proxy, Session) {
    let (mut upstream, proxy, session) = setup_with(sliced).await;
    list(&proxy, &mut upstream, &session).await;
    (upstream, proxy, session)
}

fn tools() -> Value {
    json!({ "jsonrpc": "2.0", "id": 90, "result": { "tools": [
        { "name": "slow", "inputSchema": { "type": "object" } },
        { "name": "other", "inputSchema": { "type": "object", "properties": { "a": { "type": "string" } } } },
        { "name": "exact", "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" } },
        { "name": "unnamed", "inputSchema": { "type": "object", "properties": {} } },
    ] } })
}

pub(crate) async fn list(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> Value {
    let pending = session.post(ask(json!(90), "tools/list", json!({}))).start(proxy.addr).await;
    upstream.expect("tools/list").await.json(200, tools().to_string()).await;
    pending.response().await.json().await
}

/// The call of [`call`] again, as client code that knows of tokens sends it: with an id and a
/// progress token of its own.
pub(crate) fn again(id: Value, progress: Value, token: &str) -> String {
    let meta = json!({ "progressToken": progress });
    ask(id, "tools/call", json!({ "name": "slow", "arguments": {}, "resumeToken": token, "_meta": meta }))
}

/// [`progress`] under another token.
fn progress_of(token: &Value, n: u64) -> String {
    progress(n).replace(r#""progressToken":7"#, &format!(r#""progressToken":{token}"#))
}

/// The time of a slice passes: its token.
async fn interim(response: &mut Response, id: Value) -> String {
    pass(SLICE).await;
    let last = response.event().await;
    assert_eq!(last.id, None, "it belongs to this connection");
    let token = interim_token(&last.json(), id, "content");
    response.ends().await;
    token
}

#[track_caller]
pub(crate) fn interim_token(message: &Value, id: Value, member: &str) -> String {
    let token = message["result"]["nextResumeToken"].as_str().unwrap_or_else(|| panic!("no token: {message}"));
    let result = json!({ member: [], "nextResumeToken": token, "_meta": { "io.github.mcp-resume/ttl": 600 } });
    assert_eq!(message, &json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    token.to_owned()
}

/// A call whose first slice is over, with its token.
async fn first_slice(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response, String) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(7))).await;
    let token = interim(&mut response, json!(7)).await;
    (sse, response, token)
}

async fn is_refused(proxy: &Proxy, request: Request) {
    let id = request.rpc_id();
    let mut answer = request.send(proxy.addr).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.json().await, refused(id));
}

#[tokio::test]
async fn a_client_goes_on_slice_by_slice_to_the_result_and_the_tool_runs_once() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, mut first) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let handle = EventId::of(first.prime().await.id()).handle;
    sse.event(progress(1)).await;
    assert_eq!(first.event().await.bytes(), progress(1).as_bytes());
    let token = interim(&mut first, json!(7)).await;

    sse.event(progress(2)).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    let place = EventId::of(second.prime().await.id());
    assert_ne!(place.handle, handle, "a handle of its own");
    assert_eq!(place.seq, "1", "what precedes the interim result has arrived");
    let event = second.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress_of(&json!(80), 2).as_bytes()));
    assert_eq!(interim(&mut second, json!(8)).await, token, "one token per call");

    let last = again(json!("c"), json!("x"), &token);
    let mut third = session.post(&last).send(proxy.addr).await.sse();
    sse.event(progress(3)).await;
    sse.finish(result(7)).await;
    assert_eq!(third.event().await.bytes(), progress_of(&json!("x"), 3).as_bytes());
    assert_eq!(third.event().await.bytes(), result("c").as_bytes());
    third.ends().await;
    assert!(upstream.is_quiet(), "nothing of it was sent on");

    // The next request on that connection says that the result has arrived.
    let mut client = third.into_client();
    client.send(&session.post(&last).bytes(proxy.addr)).await;
    assert_eq!(client.response().await.json().await, refused(json!("c")));
}

#[tokio::test]
async fn the_token_may_stand_among_the_arguments_of_a_tool() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let params = json!({ "name": "slow", "arguments": { "resumeToken": token } });
    let mut second = session.post(ask(json!(8), "tools/call", params)).send(proxy.addr).await.sse();
    sse.event(progress(1)).await;
    sse.finish(result(7)).await;
    assert_eq!(second.event().await.bytes(), result(8).as_bytes(), "who wants no progress hears of none");
    second.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_cut_slice_goes_on_by_its_event_id_up_to_its_own_interim_result() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    sse.event(progress(1)).await;
    let seen = second.event().await.id().to_owned();
    second.reset();
    sse.event(progress(2)).await;
    let mut resumed = session.resume(&seen).send(proxy.addr).await.sse();
    let event = resumed.event().await;
    assert_eq!(event.bytes(), progress_of(&json!(80), 2).as_bytes());
    assert_eq!(event.id(), EventId::of(&seen).at(2));
    assert_eq!(interim(&mut resumed, json!(8)).await, token);
    // The stream is over: a resume with the event ID learns so at once.
    let mut late = session.resume(&seen).send(proxy.addr).await.sse();
    assert_eq!(late.event().await.bytes(), progress_of(&json!(80), 2).as_bytes());
    assert_eq!(interim_token(&late.event().await.json(), json!(8), "content"), token);
    late.ends().await;
    sse.finish(result(7)).await;
    let mut over = session.resume(&seen).send(proxy.addr).await.sse();
    over.event().await;
    assert_eq!(over.event().await.bytes(), result(8).as_bytes(), "the real one, where there is one");
    over.ends().await;
}

#[tokio::test]
async fn events_before_a_lost_interim_result_are_repeated() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, mut first) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    sse.event(progress(1)).await;
    first.event().await;
    let token = interim(&mut first, json!(7)).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    sse.event(progress(2)).await;
    second.event().await;
    pass(SLICE).await;
    settle(&proxy, &mut upstream).await;
    second.reset();
    settle(&proxy, &mut upstream).await;
    let mut third = session.post(again(json!(9), json!(90), &token)).send(proxy.addr).await.sse();
    assert_eq!(third.event().await.bytes(), progress_of(&json!(90), 2).as_bytes());
    sse.finish(result(7)).await;
    assert_eq!(third.event().await.bytes(), result(9).as_bytes());
    third.ends().await;
}

#[tokio::test]
async fn the_same_token_again_gives_the_same_answer_or_a_later_one() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    sse.event(progress(1)).await;
    let repeat = session.post(again(json!(8), json!(80), &token));
    let mut second = repeat.send(proxy.addr).await.sse();
    second.event().await;
    let mut third = repeat.send(proxy.addr).await.sse();
    assert_eq!(third.event().await.bytes(), progress_of(&json!(80), 1).as_bytes());
    second.ends().await;
    sse.finish(result(7)).await;
    assert_eq!(third.event().await.bytes(), result(8).as_bytes());
    third.reset();
    let mut fourth = repeat.send(proxy.addr).await.sse();
    fourth.event().await;
    assert_eq!(fourth.event().await.bytes(), result(8).as_bytes());
    fourth.ends().await;
}

#[tokio::test]
async fn every_token_that_opens_nothing_gets_one_answer() {
    let (mut upstream, proxy, session) = begun().await;
    let (_sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let with = |name: &str, arguments: Value, token: Value| {
        ask(json!(8), "tools/call", json!({ "name": name, "arguments": arguments, "resumeToken": token }))
    };
    let forged = format!("{}AAAA", &token[..token.len() - 4]);
    for body in [
        with("slow", json!({ "a": 1 }), json!(token)),
        with("other", json!({}), json!(token)),
        with("exact", json!({}), json!(token)),
        with("slow", json!({}), json!(forged)),
        with("slow", json!({}), json!("")),
        with("slow", json!({}), json!(3)),
        ask(json!(8), "resources/read", json!({ "uri": "x", "resumeToken": token })),
    ] {
        is_refused(&proxy, session.post(body)).await;
    }
    let same = session.post(with("slow", json!({}), json!(token)));
    is_refused(&proxy, same.clone().with("Authorization", "Bearer other")).await;
    assert!(upstream.is_quiet(), "none of it was sent on");
    let mut answer = session.post(format!("[{}]", with("slow", json!({}), json!(token)))).send(proxy.addr).await;
    assert_eq!((answer.status, &answer.json().await[0]["error"]["code"]), (400, &json!(-32600)));
    assert!(same.send(proxy.addr).await.is_sse(), "it was good all the time");
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, first, token) = first_slice(&proxy, &mut upstream, &session).await;
    pass(Duration::from_secs(601)).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    sse.closed().await;
    drop(first);
    is_refused(&proxy, session.post(again(json!(8), json!(80), &token))).await;
}

#[tokio::test]
async fn a_cancel_of_a_later_slice_goes_up_under_the_first_id() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let repeat = session.post(again(json!(8), json!(80), &token));
    let mut second = repeat.send(proxy.addr).await.sse();
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 8 } });
    let pending = session.post(cancel.to_string()).start(proxy.addr).await;
    let seen = upstream.expect("notifications/cancelled").await;
    assert_eq!(seen.json_body()["params"]["requestId"], 7);
    seen.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    is_refused(&proxy, repeat).await;
    sse.end().await;
    second.ends().await;
}

#[tokio::test]
async fn an_error_in_a_later_slice_has_its_id_and_no_token() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    sse.reset().await;
    let error = second.event().await.json();
    assert_fault(&error, 8, UPSTREAM_FAILED, "upstream");
    second.ends().await;
    assert!(upstream.is_quiet(), "a call whose server died is never sent again");
}

#[tokio::test]
async fn the_servers_own_error_is_the_answer_to_the_slice_it_comes_in() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    let error = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": 1, "message": "no" } });
    sse.finish(error(7).to_string()).await;
    assert_eq!(second.event().await.json(), error(8));
    second.ends().await;
}

#[tokio::test]
async fn a_client_that_takes_json_only_gets_each_slice_as_json() {
    let (mut upstream, proxy, session) = begun().await;
    let json_only = |body: String| session.post(body).with("Accept", "application/json");
    let pending = json_only(call(7)).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    pass(SLICE).await;
    let mut first = pending.response().await;
    assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
    let token = interim_token(&first.json().await, json!(7), "content");
    let pending = json_only(again(json!(8), json!(80), &token)).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    pass(SLICE).await;
    assert_eq!(interim_token(&pending.response().await.json().await, json!(8), "content"), token);
    let pending = json_only(again(json!(9), json!(90), &token)).start(proxy.addr).await;
    running.json(200, result(7)).await;
    let mut last = pending.response().await;
    assert_eq!(last.body().await, result(9).as_bytes());
    let mut client = last.into_client();
    client.send(&json_only(again(json!(10), json!(1), &token)).bytes(proxy.addr)).await;
    assert_eq!(client.response().await.json().await, refused(json!(10)));
}

#[tokio::test]
async fn a_server_that_says_nothing_is_answered_for_when_the_slice_is_over() {
    let (mut upstream, proxy, session) = begun().await;
    let pending = session.post(call(7)).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    pass(SLICE).await;
    let mut first = pending.response().await.sse();
    first.prime().await;
    let token = interim_token(&first.event().await.json(), json!(7), "content");
    first.ends().await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    running.json(200, result(7)).await;
    assert_eq!(second.event().await.bytes(), result(8).as_bytes());
    second.ends().await;
}

#[tokio::test]
async fn a_quick_answer_is_what_it_would_be() {
    let (mut upstream, proxy, session) = begun().await;
    let params = json!({ "name": "slow", "arguments": { "resumeToken": null, "a": 1 } });
    let pending = session.post(ask(json!(7), "tools/call", params)).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    assert_eq!(running.json_body()["params"], json!({ "name": "slow", "arguments": { "a": 1 } }));
    running.json(200, result(7)).await;
    assert_eq!(pending.response().await.body().await, result(7).as_bytes());
}

#[tokio::test]
async fn other_methods_get_results_of_their_own_kind() {
    let (mut upstream, proxy, session) = begun().await;
    for (method, member) in [("resources/read", "contents"), ("prompts/get", "messages")] {
        let request = |id: u64, token: Option<&str>| {
            let mut params = json!({ "name": "x" });
            token.into_iter().for_each(|token| params["resumeToken"] = json!(token));
            session.post(ask(json!(id), method, params))
        };
        let (sse, mut first) = begin(&proxy, &mut upstream, &request(7, None)).await;
        pass(SLICE).await;
        let token = interim_token(&first.event().await.json(), json!(7), member);
        first.ends().await;
        let mut second = request(8, Some(&token)).send(proxy.addr).await.sse();
        sse.finish(result(7)).await;
        assert_eq!(second.event().await.bytes(), result(8).as_bytes());
        second.ends().await;
    }
}

#[tokio::test]
async fn calls_of_other_tools_are_not_sliced_and_their_tokens_are_payload() {
    let (mut upstream, proxy, session) = begun().await;
    let params = json!({ "name": "unnamed", "arguments": { "resumeToken": "a" }, "resumeToken": "b" });
    let pending = session.post(ask(json!(7), "tools/call", params.clone())).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    assert_eq!(running.json_body()["params"], params);
    let sse = running.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    pass(SLICE * 2).await;
    sse.finish(result(7)).await;
    assert_eq!(response.event().await.bytes(), result(7).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_tool_with_an_output_schema_or_one_that_no_list_shows_is_never_sliced() {
    let (mut upstream, proxy, session) = setup_with(sliced).await;
    let waits = async |upstream: &mut Upstream, tool: &str, is_listed: bool| {
        let pending = session.post(call_tool(7, tool)).start(proxy.addr).await;
        if !is_listed {
            upstream.expect("tools/list").await.json(404, "{}").await;
        }
        let sse = upstream.expect("tools/call").await.sse().await;
        let mut response = pending.response().await.sse();
        response.prime().await;
        pass(SLICE * 2).await;
        sse.finish(result(7)).await;
        assert_eq!(response.event().await.bytes(), result(7).as_bytes());
        response.ends().await;
    };
    waits(&mut upstream, "slow", false).await;
    list(&proxy, &mut upstream, &session).await;
    waits(&mut upstream, "exact", true).await;
}

#[tokio::test]
async fn where_no_client_has_listed_the_tools_the_proxy_asks_page_by_page() {
    let (mut upstream, proxy, session) = setup_with(sliced).await;
    let pending = session.post(call(7)).with("authorization", "Bearer a").start(proxy.addr).await;
    let question = upstream.expect("tools/list").await;
    assert_eq!((question.header("authorization"), question.header("mcp-session-id")), (Some("Bearer a"), Some("s-1")));
    let other = json!({ "name": "other", "inputSchema": { "type": "object" } });
    let page = json!({ "jsonrpc": "2.0", "id": 1, "result": { "tools": [other], "nextCursor": "two" } });
    question.json(200, page.to_string()).await;
    let question = upstream.expect("tools/list").await;
    assert_eq!(question.json_body()["params"], json!({ "cursor": "two" }));
    let sse = question.sse().await;
    sse.finish(tools().to_string()).await;
    let _running = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    interim(&mut response, json!(7)).await;
    // What was learned stays.
    let (_sse, mut second) = begin(&proxy, &mut upstream, &session.post(call(8))).await;
    second.prime().await;
}

#[tokio::test]
async fn a_list_of_tools_says_which_take_a_token_as_json_and_as_an_event() {
    let (mut upstream, proxy, session) = setup_with(sliced).await;
    let listed = list(&proxy, &mut upstream, &session).await;
    let of = |listed: &Value, index: usize| listed["result"]["tools"][index]["inputSchema"]["properties"].clone();
    assert_eq!(of(&listed, 0)["resumeToken"]["type"], "string");
    assert_eq!(
        (&of(&listed, 1)["resumeToken"]["type"], &of(&listed, 1)["a"]["type"]),
        (&json!("string"), &json!("string"))
    );
    assert_eq!((of(&listed, 2), of(&listed, 3)), (Value::Null, json!({})));
    assert_eq!(listed["result"]["tools"][0]["inputSchema"].get("required"), None);

    let (sse, mut response) =
        begin(&proxy, &mut upstream, &session.post(ask(json!(91), "tools/list", json!({})))).await;
    sse.finish(tools().to_string().replace("\"id\":90", "\"id\":91")).await;
    assert_eq!(response.event().await.json()["result"], listed["result"]);
    response.ends().await;
}

#[tokio::test]
async fn without_the_dialect_lists_and_tokens_pass_as_they_are() {
    let (mut upstream, proxy, session) = setup().await;
    assert_eq!(list(&proxy, &mut upstream, &session).await, tools());
    let pending = session.post(again(json!(7), json!(7), "t")).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    assert_eq!(running.json_body()["params"]["resumeToken"], "t");
    running.json(200, result(7)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn the_first_call_sent_again_takes_over_its_own_slice() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, first) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    sse.event(progress(1)).await;
    first.reset();
    settle(&proxy, &mut upstream).await;
    let mut retry = session.post(call(7)).send(proxy.addr).await.sse();
    assert_eq!(retry.event().await.bytes(), progress(1).as_bytes());
    let token = interim(&mut retry, json!(7)).await;
    let mut second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    sse.finish(result(7)).await;
    assert_eq!(second.event().await.bytes(), result(8).as_bytes());
    second.ends().await;
}

#[tokio::test]
async fn the_token_is_good_in_another_session_which_may_cancel_the_call() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _first, token) = first_slice(&proxy, &mut upstream, &session).await;
    let other = Session::opened_elsewhere(V2025_11, "other", None);
    let mut second = other.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    sse.event(progress(1)).await;
    assert_eq!(second.event().await.bytes(), progress_of(&json!(80), 1).as_bytes());
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 8 } });
    let pending = other.post(cancel.to_string()).start(proxy.addr).await;
    let seen = upstream.expect("notifications/cancelled").await;
    assert_eq!(seen.json_body()["params"]["requestId"], 7);
    seen.status(202).await;
    pending.response().await;
    sse.end().await;
    second.ends().await;
}

#[tokio::test]
async fn slices_are_counted_as_what_they_are() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        sliced(config);
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    list(&proxy, &mut upstream, &session).await;
    let pending = session.post(call(7)).with("Accept", "application/json").start(proxy.addr).await;
    let _running = upstream.expect("tools/call").await;
    pass(SLICE).await;
    let token = interim_token(&pending.response().await.json().await, json!(7), "content");
    let _second = session.post(again(json!(8), json!(80), &token)).send(proxy.addr).await.sse();
    is_refused(&proxy, session.post(again(json!(9), json!(90), "no"))).await;
    let resumes = |outcome: &str| format!(r#"mcp_resume_resumes_total{{dialect="resume_tokens",outcome="{outcome}"}}"#);
    assert_eq!(metric(&proxy, &resumes("served")).await, 1.0);
    assert_eq!(metric(&proxy, &resumes("lost")).await, 1.0);
    let left = metric(&proxy, r#"mcp_resume_disconnects_total{can_resume="no"}"#).await;
    assert_eq!(left, 0.0, "an interim result is an answer");
}

#[tokio::test]
async fn the_url_of_a_slice_goes_on_as_that_slice() {
    let (mut upstream, proxy, session) = begun().await;
    let (sse, _, token) = first_slice(&proxy, &mut upstream, &session).await;
    let second = session.post(again(json!(8), json!("p8"), &token));
    let mut response = second.send(proxy.addr).await.sse();
    let handle = EventId::of(response.prime().await.id()).handle;
    assert_eq!(response.header("link"), Some(format!("<?mcp-stream={handle}>; rel=\"stream\"").as_str()));
    response.reset();
    sse.event(progress(1)).await;
    let url = session.get().target(&format!("/mcp?mcp-stream={handle}"));
    let mut again = url.send(proxy.addr).await.sse();
    assert_eq!(EventId::of(again.prime().await.id()).handle, handle);
    assert_eq!(again.event().await.bytes(), progress_of(&json!("p8"), 1).as_bytes());
    sse.finish(result(7)).await;
    assert_eq!(again.event().await.bytes(), result(8).as_bytes());
    again.ends().await;
}
