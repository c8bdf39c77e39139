//! Resumable requests, SEP-975.

use serde_json::{Value, json};

use super::{ask, open, refused};
use crate::support::*;

async fn begun(capabilities: Value) -> (Upstream, Proxy, Session, Sse, Response, Value) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, _) = open(&proxy, &mut upstream, capabilities, Some("s")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let first = response.event().await.json();
    (upstream, proxy, session, sse, response, first)
}

fn token(policy: &Value) -> &Value {
    &policy["params"]["resumeToken"]
}

#[tokio::test]
async fn the_policy_comes_first_and_the_capability_goes_no_further() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let declared = json!({ "resumableRequests": {}, "sampling": {} });
    let (session, seen) = open(&proxy, &mut upstream, declared, Some("s")).await;
    assert_eq!(seen["params"]["capabilities"], json!({ "sampling": {} }));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let prime = EventId::of(response.prime().await.id());
    let policy = response.event().await;
    assert_eq!(policy.id(), prime.at(1));
    assert_eq!(policy.event.as_deref(), Some("message"));
    let policy = policy.json();
    assert_eq!(policy["method"], "notifications/requests/resumePolicy");
    let params = &policy["params"];
    assert_eq!((&params["requestId"], &params["minWait"], &params["maxWait"]), (&json!(7), &json!(1), &json!(600)));
    sse.finish(result(7)).await;
    assert_eq!(response.event().await.id(), prime.at(2));
    response.ends().await;
}

#[tokio::test]
async fn a_client_that_declared_nothing_is_told_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    sse.finish(result(7)).await;
    assert_eq!(response.event().await.bytes(), result(7).as_bytes());
}

#[tokio::test]
async fn a_resume_under_the_same_id_goes_on_to_the_response() {
    let (_upstream, proxy, session, sse, mut response, policy) = begun(json!({ "resumableRequests": {} })).await;
    sse.event(progress(1)).await;
    let seen = response.event().await.id().to_owned();
    response.reset();
    sse.event(progress(2)).await;
    let resume = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": token(&policy) })));
    let mut again = resume.clone().resume_from(&seen).send(proxy.addr).await.sse();
    again.prime().await;
    assert_eq!(again.event().await.bytes(), progress(2).as_bytes());
    sse.finish(result(7)).await;
    assert_eq!(again.event().await.bytes(), result(7).as_bytes());
    again.ends().await;
    // Nothing was confirmed since: the same again.
    let mut third = resume.send(proxy.addr).await.sse();
    third.prime().await;
    assert_eq!(third.event().await.bytes(), progress(2).as_bytes());
    assert_eq!(third.event().await.bytes(), result(7).as_bytes());
    third.ends().await;
}

#[tokio::test]
async fn a_status_is_returned_without_events() {
    let (_upstream, proxy, session, sse, response, policy) = begun(json!({ "resumableRequests": {} })).await;
    response.reset();
    let get =
        session.post(ask(json!("st"), "requests/getStatus", json!({ "requestId": 7, "resumeToken": token(&policy) })));
    let status = async || get.send(proxy.addr).await.json().await["result"].clone();
    let said = |status: &str, pending: bool, input: bool| json!({ "requestId": 7, "status": status, "hasPendingMessage": pending, "hasInputRequest": input });
    assert_eq!(status().await, said("processing", false, false));
    sse.event(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    until("the request is pending", async || status().await == said("processing", true, true)).await;
    sse.finish(result(7)).await;
    until("the call is over", async || status().await["status"] == "completed").await;
    assert_eq!(status().await["hasPendingMessage"], true);
}

#[tokio::test]
async fn a_token_that_opens_nothing_gets_one_answer() {
    let (_upstream, proxy, session, _sse, _response, policy) = begun(json!({ "resumableRequests": {} })).await;
    let text = token(&policy).as_str().unwrap();
    let forged = format!("{}{}", &text[..text.len() - 4], "AAAA");
    for (id, given) in
        [(json!(7), json!(forged)), (json!(7), json!("x")), (json!(7), json!(3)), (json!(8), json!(text))]
    {
        let request = session.post(ask(id.clone(), "requests/resume", json!({ "resumeToken": given })));
        let mut answer = request.send(proxy.addr).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json().await, refused(id));
    }
    let foreign = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": text })));
    let mut answer = foreign.with("authorization", "Bearer other").send(proxy.addr).await;
    assert_eq!(answer.json().await, refused(json!(7)));
}

#[tokio::test]
async fn the_token_works_in_another_session_and_in_none() {
    let (_upstream, proxy, _session, sse, response, policy) = begun(json!({ "resumableRequests": {} })).await;
    response.reset();
    sse.finish(result(7)).await;
    let resume = ask(json!(7), "requests/resume", json!({ "resumeToken": token(&policy) }));
    for request in [Session::opened_elsewhere("2025-11-25", "other", None).post(&resume), Request::post(&resume)] {
        let mut answer = request.send(proxy.addr).await.sse();
        answer.prime().await;
        assert_eq!(answer.event().await.json()["method"], "notifications/requests/resumePolicy");
        assert_eq!(answer.event().await.bytes(), result(7).as_bytes());
        answer.ends().await;
    }
}

#[tokio::test]
async fn a_sessionless_servers_client_gets_a_session_of_the_proxys() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, _) = open(&proxy, &mut upstream, json!({ "resumableRequests": {} }), None).await;
    let pending = session.post(call(7)).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), None);
    let sse = call.sse().await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.event().await.json()["method"], "notifications/requests/resumePolicy");
    let mut deleted = session.delete().send(proxy.addr).await;
    assert_eq!((deleted.status, deleted.body().await), (200, Vec::new()));
    assert_eq!(response.event().await.json()["error"]["code"], -32011);
    let told = upstream.expect("notifications/cancelled").await;
    assert_eq!(told.json_body()["params"]["requestId"], 7);
    assert_eq!(told.header("mcp-session-id"), None, "the upstream knows nothing of the session");
    told.status(202).await;
    sse.closed().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_its_tokens_even_where_the_server_was_faster() {
    let (mut upstream, proxy, session, sse, mut response, policy) = begun(json!({ "resumableRequests": {} })).await;
    let place = response.last_id().expect("an id").to_owned();
    sse.reset().await;
    assert_eq!(response.event().await.json()["error"]["code"], -32010);
    response.ends().await;
    let pending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    let resume = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": token(&policy) })));
    assert_eq!(resume.send(proxy.addr).await.json().await, refused(json!(7)));
    let mut kept = session.resume(&place).send(proxy.addr).await.sse();
    kept.prime().await;
    assert_eq!(kept.event().await.json()["error"]["code"], -32010);
}
