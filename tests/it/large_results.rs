//! Large results of servers on stdio, for clients that limit the size of an event.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

const LARGE: usize = 800 * 1024;
/// Wait for the first message that no result exceeds.
const LONG: Duration = Duration::from_secs(60);
const PYTHON: &str = "python-httpx/0.28.1";

fn call(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t", "_meta": {"progressToken": 7}}})
        .to_string()
}

fn result(id: u64, bytes: usize) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"text": "x".repeat(bytes)}})
}

async fn opened(servers: &StdioServers, commit_after: Duration) -> (Proxy, StdioServer, Session) {
    let proxy = servers.proxy_with(|config| config.delivery.commit_after = Some(commit_after)).await;
    let (server, session) = servers.open(&proxy).await;
    (proxy, server, session)
}

#[tokio::test]
async fn a_large_first_message_is_json_for_clients_in_python_alone() {
    let servers = StdioServers::start().await;
    let (proxy, mut server, session) = opened(&servers, LONG).await;
    let both = "application/json, text/event-stream";
    for (id, (agent, accept, bytes, is_json)) in [
        (PYTHON, both, LARGE, true),
        (PYTHON, both, 700 * 1024, false),
        (PYTHON, "text/event-stream", LARGE, false),
        ("node", both, LARGE, false),
    ]
    .into_iter()
    .enumerate()
    {
        let id = id as u64 + 1;
        let request = session.post(call(id)).with("User-Agent", agent).with("Accept", accept);
        let pending = request.start(proxy.addr).await;
        server.expect("tools/call").await;
        let read = async {
            let mut response = pending.response().await;
            assert_eq!((response.status, response.is_sse()), (200, !is_json), "{agent} {accept} {bytes}");
            if is_json { response.json().await } else { response.event().await.json() }
        };
        let (message, ()) = tokio::join!(read, server.say(result(id, bytes)));
        assert!(message == result(id, bytes));
    }
}

#[tokio::test]
async fn a_large_result_behind_another_message_or_late_is_an_event() {
    let servers = StdioServers::start().await;
    let (proxy, mut server, session) = opened(&servers, LATER).await;
    for is_late in [false, true] {
        let id = 1 + u64::from(is_late);
        let pending = session.post(call(id)).with("User-Agent", PYTHON).start(proxy.addr).await;
        server.expect("tools/call").await;
        if !is_late {
            server.say(progress(1)).await;
        }
        // Without a message the head comes after the time of a commit.
        let mut response = pending.response().await.sse();
        response.prime().await;
        let read = async {
            loop {
                let message = response.event().await.json();
                if message["id"] == id {
                    break message;
                }
            }
        };
        let (message, ()) = tokio::join!(read, server.say(result(id, LARGE)));
        assert!(message == result(id, LARGE));
    }
}

#[tokio::test]
async fn a_large_result_that_was_cut_is_given_to_the_same_post() {
    let servers = StdioServers::start().await;
    let (proxy, mut server, session) = opened(&servers, LONG).await;
    let request = session.post(call(1)).with("User-Agent", PYTHON);
    let pending = request.start(proxy.addr).await;
    server.expect("tools/call").await;
    pending.reset();
    let read = async { request.send(proxy.addr).await.json().await };
    let (message, ()) = tokio::join!(read, server.say(result(1, LARGE)));
    assert!(message == result(1, LARGE));
}
