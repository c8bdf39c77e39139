//! The kit against itself, with no proxy between: what these show broken, no other test can prove.

use crate::support::*;

#[tokio::test]
async fn a_scripted_stream_is_read_back_frame_by_frame() {
    let mut upstream = Upstream::start().await;
    let pending = Request::post(call(1)).start(upstream.addr()).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    sse.bytes(": hi\r\n\r\nid: 7\r\nretry: 5\r\ndata:\r\n\r\n").await;
    let prime = response.prime().await;
    assert_eq!((prime.id(), prime.retry), ("7", Some(5)));
    sse.bytes("event: x\ndata: a\nda").await;
    sse.bytes("ta:  b\n\n").await;
    let event = response.event().await;
    assert_eq!(event.event.as_deref(), Some("x"));
    assert_eq!(event.bytes(), b"a\n b");
    sse.end().await;
    response.ends().await;
    let mut client = response.into_client();
    client.send(&Request::get().bytes(upstream.addr())).await;
    upstream.expect("GET").await.json(404, "{}").await;
    assert_eq!(client.response().await.status, 404);
    assert_eq!(upstream.connections(), 1, "the connection was reused");
}

#[tokio::test]
async fn a_reset_is_distinguished_from_an_end_on_both_sides() {
    let mut upstream = Upstream::start().await;
    let request = Request::post(call(1));

    let (sse, mut response) = {
        let pending = request.start(upstream.addr()).await;
        let sse = upstream.next().await.sse().await;
        (sse, pending.response().await)
    };
    sse.event("{}").await;
    sse.reset().await;
    assert_eq!(response.events().await.1, End::Broken);

    let pending = request.start(upstream.addr()).await;
    let sse = upstream.next().await.sse().await;
    pending.response().await.reset();
    sse.closed().await;
}

#[tokio::test]
async fn a_refusing_upstream_keeps_its_running_calls() {
    let mut upstream = Upstream::start().await;
    let pending = Request::post(call(1)).start(upstream.addr()).await;
    let running = upstream.next().await;
    upstream.refuse().await;
    assert!(tokio::net::TcpStream::connect(upstream.addr()).await.is_err());
    running.json(200, "{}").await;
    assert_eq!(pending.response().await.body().await, b"{}");
    upstream.listen_again().await;
    let pending = Request::post(call(2)).start(upstream.addr()).await;
    upstream.next().await.json(200, "[]").await;
    assert_eq!(pending.response().await.body().await, b"[]");
}

#[tokio::test]
async fn a_client_stops_at_its_byte() {
    let mut upstream = Upstream::start().await;
    let pending = Request::post(call(1)).start(upstream.addr()).await;
    upstream.next().await.json(200, "0123456789").await;
    let whole = pending.response().await;
    let head = whole.read() - 10;
    drop(whole);

    let pending = Request::post(call(1)).start(upstream.addr()).await;
    upstream.next().await.json(200, "0123456789").await;
    let mut response = pending.stop_after(head + 4).response().await;
    assert_eq!(response.try_body().await, (b"0123".to_vec(), End::Cut));

    let pending = Request::post(call(1)).start(upstream.addr()).await;
    upstream.next().await.json(200, "0123456789").await;
    let none = pending.stop_after(head - 1).try_response().await;
    assert_eq!(none.unwrap_err(), End::Cut);
}
