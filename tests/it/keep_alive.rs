//! Reuse and end of connections, on both sides.

use crate::support::*;

#[tokio::test]
async fn a_downstream_connection_is_reused() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    response.events().await;
    let mut client = response.into_client();
    client.send(&session.post(call(2)).bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.json(200, result(2)).await;
    let mut second = client.response().await;
    assert_eq!(second.body().await, result(2).as_bytes());
}

#[tokio::test]
async fn events_right_behind_the_response_are_delivered_with_it() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    // Late words of a server are logged until it ends or the linger is over.
    sse.finish(progress(9)).await;
    assert_eq!(response.event().await.bytes(), progress(9).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_upstream_that_does_not_end_after_its_response_is_closed_after_the_linger() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.linger = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(result(1)).await;
    response.event().await;
    response.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn a_client_that_waits_for_leave_to_send_its_body_gets_it() {
    let (mut upstream, proxy, session) = setup().await;
    let mut client = Client::connect(proxy.addr).await;
    let request = session.post(call(1)).with("Expect", "100-continue");
    let bytes = request.bytes(proxy.addr);
    let body = bytes.len() - call(1).len();
    client.send(&bytes[..body]).await;
    let (leave, mut client) = client.interim().await;
    assert_eq!(leave, "HTTP/1.1 100 Continue");
    client.send(&bytes[body..]).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.header("expect"), None, "it was answered here");
    upstream_call.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn a_client_that_wants_the_connection_closed_has_it_closed() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Connection", "close");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    assert_eq!(response.into_client().drain().await, b"");
}

#[tokio::test]
async fn a_stream_that_ends_with_its_connection_is_one() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n").await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    upstream_call.write(format!("\u{feff}data: {}\n\n", progress(1))).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes(), "a byte order mark is no name");
    upstream_call.write(format!("data: {}\n\n", result(1))).await;
    upstream_call.fin().await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_upstream_connection_is_reused_after_a_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let before = upstream.connections();
    for id in 0..3 {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.finish(result(id)).await;
        response.event().await;
        response.ends().await;
    }
    assert_eq!(upstream.connections(), before);
}
