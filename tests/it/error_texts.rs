//! Texts of errors: many hosts show a model nothing else of an error.

use serde_json::Value;

use crate::commit::{committed, hasty};
use crate::support::*;

/// A request of another method, which may have an effect at the server too.
fn other(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"prompts/get","params":{{"name":"p"}}}}"#)
}

#[track_caller]
fn assert_broken(message: &Value, id: u64, end: &str) {
    assert_fault(message, id, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["message"], format!("the MCP server broke off before it had answered{end}"));
    assert_eq!(message["error"]["data"]["error"], "upstream_broke");
}

#[tokio::test]
async fn an_error_names_a_tool_only_if_the_request_called_one() {
    let (mut upstream, proxy, session) = hasty().await;
    for (id, method, body, end) in
        [(1, "tools/call", call(1), MAY_HAVE_RUN), (2, "prompts/get", other(2), MAY_HAVE_BEEN_CARRIED_OUT)]
    {
        // As a whole response.
        let pending = session.post(&body).start(proxy.addr).await;
        upstream.expect(method).await.reset().await;
        assert_broken(&pending.response().await.json().await, id, end);

        // As an event, which a resume and a retry get as well.
        for is_resumed in [true, false] {
            let own = if is_resumed { id + 10 } else { id + 20 };
            let body = body.replace(&format!(r#""id":{id}"#), &format!(r#""id":{own}"#));
            let pending = session.post(&body).start(proxy.addr).await;
            let sse = upstream.expect(method).await.sse().await;
            let mut response = pending.response().await;
            let place = EventId::of(response.prime().await.id());
            response.reset();
            sse.reset().await;
            let request = if is_resumed { session.resume(&place.at(0)) } else { session.post(&body) };
            let (events, _) = request.send(proxy.addr).await.sse().events().await;
            assert_broken(&events.last().expect("an error").json(), own, end);
        }
    }
}

#[tokio::test]
async fn a_late_status_says_that_the_tool_may_have_run() {
    let (mut upstream, proxy, session) = hasty().await;
    let (call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    call.status(500).await;
    let error = response.event().await.json();
    assert_fault(&error, 1, UPSTREAM_FAILED, "upstream");
    let text = after_a_run("the MCP server answered with an HTTP error");
    assert_eq!(
        (&error["error"]["message"], &error["error"]["data"]["error"]),
        (&text.into(), &"upstream_status".into())
    );
}

#[tokio::test]
async fn an_array_of_tool_calls_alone_names_the_tool() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    for (first, body, end) in [
        (1, format!("[{},{}]", call(1), call(2)), MAY_HAVE_RUN),
        (3, format!("[{},{}]", call(3), other(4)), MAY_HAVE_BEEN_CARRIED_OUT),
    ] {
        let pending = session.post(body).start(proxy.addr).await;
        upstream.next().await.reset().await;
        let errors = pending.response().await.json().await;
        assert_broken(&errors[0], first, end);
        assert_broken(&errors[1], first + 1, end);
    }
}

#[tokio::test]
async fn a_request_that_did_not_run_says_nothing_more() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.wait = std::time::Duration::ZERO).await;
    upstream.refuse().await;
    let error = session.post(call(1)).send(proxy.addr).await.json().await;
    assert_fault(&error, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(error["error"]["message"], "the MCP server could not be reached");
    assert_eq!(error["error"]["data"]["error"], "unreachable");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_error_of_a_program_that_has_ended_names_a_tool_only_if_the_request_called_one() {
    let servers = crate::support::stdio::StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (first, session) = servers.open(&proxy).await;
    let mut server = Some(first);
    for (id, method, body, end) in
        [(1, "tools/call", call(1), MAY_HAVE_RUN), (2, "prompts/get", other(2), MAY_HAVE_BEEN_CARRIED_OUT)]
    {
        let pending = session.post(body).start(proxy.addr).await;
        let mut running = match server.take() {
            Some(running) => running,
            None => servers.open_again().await,
        };
        running.expect(method).await;
        let mut response = pending.response().await.sse();
        running.exit().await;
        let error = response.event().await.json();
        assert_fault(&error, id, UPSTREAM_FAILED, "upstream");
        let text = format!("the MCP server has ended before it had answered{end}");
        assert_eq!(
            (&error["error"]["message"], &error["error"]["data"]["error"]),
            (&text.into(), &"server_ended".into())
        );
    }
}
