//! Arrays of more messages than are taken.

use super::*;
use crate::client_responses::answer;

const MIB: usize = 1024 * 1024;

fn array(messages: impl Iterator<Item = String>) -> String {
    format!("[{}]", messages.collect::<Vec<_>>().join(","))
}

fn notification() -> String {
    r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned()
}

#[tokio::test]
async fn a_longer_array_of_any_content_is_413_with_one_error() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let bodies = [
        array((0..101).map(call)),
        array((0..101).map(|id: i32| answer(&id.to_string()))),
        array((0..101).map(|_| notification())),
        // What its answer used to repeat for each request.
        array((0..200_000).map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#))),
        format!("[{}{{}}]", "{},".repeat(3 * MIB)),
        // The rest is not read.
        format!("[{}{}, and so on]", format!("{},", notification()).repeat(100), notification()),
    ];
    for (n, body) in bodies.iter().enumerate() {
        for accept in ["application/json, text/event-stream", "text/plain"] {
            let mut response = session.post(body).with("Accept", accept).send(proxy.addr).await;
            assert_eq!((response.status, response.header("connection")), (413, None), "body {n}");
            assert_fault(&response.json().await, serde_json::Value::Null, BOUND, "client");
            neighbour.hears().await;
        }
    }
    assert_eq!(metric(&proxy, &rejects("batch_too_long")).await, 2.0 * bodies.len() as f64);
    assert_eq!(metric(&proxy, "mcp_resume_streams_kept").await, 1.0);
    assert!(upstream.is_quiet());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn an_array_of_as_many_as_there_may_be_is_passed_on() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.batch = 3).await;
    for body in [array((0..3).map(call)), array((0..3).map(|_| notification()))] {
        let pending = session.post(&body).start(proxy.addr).await;
        let upstream_call = upstream.expect("batch").await;
        assert_eq!(upstream_call.body, body.as_bytes());
        upstream_call.json(200, array((0..3).map(result))).await;
        assert_eq!(pending.response().await.status, 200);
    }
    assert_eq!(session.post(array((0..4).map(call))).send(proxy.addr).await.status, 413);
    assert!(upstream.is_quiet());
}
