//! The streams page and the live page.

use crate::client_responses::question;
use crate::legacy_tasks;
use crate::support::*;
use crate::tasks;
use mcp_resume::config::Config;
use serde_json::{Value, json};
use std::time::Duration;

async fn page(proxy: &Proxy, path: &str) -> Response {
    Request::new("GET", path).send(proxy.admin.expect("an admin listener")).await
}

async fn streams(proxy: &Proxy) -> Value {
    page(proxy, "/streams").await.json().await
}

#[tokio::test]
async fn the_streams_page_follows_a_call_and_holds_no_secret() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-secret", Some("Bearer hidden")).await;
    assert_eq!(streams(&proxy).await["total"], 0);

    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call("request-id"))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    response.event().await;
    let list = streams(&proxy).await;
    assert_eq!((&list["total"], &list["open"], &list["detached"]), (&1.into(), &1.into(), &0.into()), "{list}");
    let stream = &list["streams"][0];
    assert_eq!((&stream["state"], &stream["attached"]), (&"working".into(), &true.into()));
    assert_eq!((&stream["events"], &stream["kind"], &stream["era"]), (&1.into(), &"request".into(), &"legacy".into()));
    assert!(stream["bufferedBytes"].as_u64() > Some(0));
    assert_eq!((&stream["method"], &stream["tool"]), (&"tools/call".into(), &"slow".into()), "{stream}");
    assert_eq!((&stream["resumes"], &stream["ended"], &stream["error"]), (&0.into(), &false.into(), &Value::Null));
    assert_eq!(stream["task"], Value::Null);
    for secret in [place.handle.as_str(), "s-secret", "hidden", "request-id"] {
        assert!(!list.to_string().contains(secret), "{secret}: {list}");
    }

    response.reset();
    sse.event(question("q")).await;
    let list = loop {
        let list = streams(&proxy).await;
        if list["detached"] == 1 && list["streams"][0]["events"] == 2 {
            break list;
        }
    };
    assert_eq!(list["streams"][0]["state"], "awaiting input");
    sse.finish(result("request-id")).await;
    while streams(&proxy).await["streams"][0]["state"] != "completed" {}
    assert_eq!(streams(&proxy).await["open"], 0);
    let again = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let list = streams(&proxy).await;
    let stream = &list["streams"][0];
    assert_eq!((&stream["resumes"], &stream["ended"]), (&1.into(), &true.into()), "{stream}");
    drop(again);
}

#[tokio::test]
async fn the_streams_page_says_by_which_error_a_call_has_ended() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    sse.reset().await;
    assert_fault(&response.event().await.json(), 1, UPSTREAM_FAILED, "upstream");
    response.ends().await;
    let list = streams(&proxy).await;
    let stream = &list["streams"][0];
    assert_eq!((&stream["ended"], &stream["state"]), (&true.into(), &"failed".into()), "{stream}");
    assert_eq!(stream["error"], "upstream_broke", "{stream}");
}

#[tokio::test]
async fn the_live_page_and_its_parts_are_there() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    for (path, kind) in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")] {
        let mut part = page(&proxy, path).await;
        assert_eq!(part.status, 200, "{path}");
        assert!(part.header("content-type").expect("a type").starts_with(kind), "{path}");
        assert!(part.header("content-security-policy").expect("a policy").contains("default-src 'self'"));
        assert!(!part.body().await.is_empty());
    }
}

#[tokio::test]
async fn the_streams_page_shows_the_state_of_tasks() {
    let (mut upstream, proxy) = tasks::stage(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let (sse, handle) = tasks::promoted(&mut upstream, &proxy).await;
    let task = tasks::id_of(&handle);
    let seen = async || {
        let list = streams(&proxy).await;
        let stream = list["streams"].as_array().unwrap().iter().find(|stream| stream["kind"] == "task").cloned();
        assert!(!list.to_string().contains(&task), "the ID of a task opens it: {list}");
        stream.expect("a task")
    };
    let state = async || seen().await["task"].clone();
    assert_eq!(state().await, json!({"status": "working", "text": null}));
    assert_eq!((&seen().await["tool"], &seen().await["ended"]), (&json!("slow"), &json!(false)));

    let progress = |message: &str| {
        let params = json!({"progressToken": 7, "progress": 3, "total": 10, "message": message});
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string()
    };
    sse.event(progress("<b>\"linking\"\u{1b}")).await;
    until("the text", async || state().await["text"] == "3 of 10: <b>\"linking\"\u{1b}").await;
    sse.event(progress(&"ä".repeat(600))).await;
    until("a bound", async || state().await["text"] == format!("3 of 10: {}…", "ä".repeat(111))).await;

    let round = json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required",
        "inputRequests": {"q": {"method": "roots/list", "params": {"_meta": {"of": "the question"}}}}}});
    sse.finish(round.to_string()).await;
    until("a question", async || state().await["status"] == "input_required").await;
    assert_eq!(seen().await["state"], "awaiting input");
    assert!(!streams(&proxy).await.to_string().contains("the question"));
    let cancel = tasks::declaring(9, "tasks/cancel", json!({"taskId": task}));
    cancel.send(proxy.addr).await;
    assert_eq!(state().await["status"], "cancelled");
    assert_eq!((&seen().await["state"], &seen().await["ended"]), (&json!("cancelled"), &json!(true)));
}

#[tokio::test]
async fn the_streams_page_shows_the_outcomes_of_tasks() {
    let (mut upstream, proxy) = tasks::stage(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let state = async || {
        let list = streams(&proxy).await;
        list["streams"].as_array().unwrap().iter().find(|stream| stream["kind"] == "task").cloned().expect("a task")
    };
    for (message, status, error) in [
        (result(5), "completed", Value::Null),
        (
            json!({"jsonrpc": "2.0", "id": 5, "error": {"code": -32603, "message": "m"}}).to_string(),
            "failed",
            Value::Null,
        ),
        (String::new(), "failed", json!("upstream_broke")),
    ] {
        let (sse, handle) = tasks::promoted(&mut upstream, &proxy).await;
        if message.is_empty() {
            sse.reset().await
        } else {
            sse.finish(message).await
        }
        let task = tasks::id_of(&handle);
        until("the end", async || tasks::state(&proxy, &task).await["status"] == status).await;
        // The youngest is the first.
        let shown = state().await;
        assert_eq!((&shown["task"]["status"], &shown["error"]), (&json!(status), &error), "{shown}");
    }
}

#[tokio::test]
async fn the_streams_page_shows_tasks_of_2025_11_25() {
    let offering = legacy_tasks::offering(Duration::from_secs(3600));
    let admin = |config: &mut Config| config.admin.address = Some(([127, 0, 0, 1], 0).into());
    let (mut upstream, proxy, session) = legacy_tasks::stage_with(offering, admin).await;
    let (sse, handle) = legacy_tasks::begun(&mut upstream, &proxy, &session).await;
    let state = async || {
        let list = streams(&proxy).await;
        assert!(!list.to_string().contains(handle["taskId"].as_str().unwrap()), "{list}");
        list["streams"].as_array().unwrap().iter().find(|stream| stream["kind"] == "task").expect("a task")["task"]
            .clone()
    };
    assert_eq!(state().await, json!({"status": "working", "text": null}));
    sse.event(progress(3)).await;
    until("the text", async || state().await["text"] == "3").await;
    sse.event(crate::client_responses::question("q")).await;
    until("a question", async || state().await["status"] == "input_required").await;
    let failed =
        json!({"jsonrpc": "2.0", "id": 5, "result": {"isError": true, "content": [{"type": "text", "text": "no"}]}});
    sse.finish(failed.to_string()).await;
    until("the end", async || state().await == json!({"status": "failed", "text": "no"})).await;
}
