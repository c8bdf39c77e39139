//! Responses and notifications that pass unchanged.

use crate::support::*;

const ODD_JSON: &str = "{ \"result\":{\"b\":1.0,\"a\":\"\\u00e9\"},\n \"id\":1, \"jsonrpc\":\"2.0\" }";

#[tokio::test]
async fn a_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.body, call(1).into_bytes());
    upstream_call
        .json_with(200, "x-custom: kept\r\nset-cookie: a=1\r\nset-cookie: b=2\r\netag: \"e\"\r\n", ODD_JSON)
        .await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-custom"), Some("kept"));
    assert_eq!(response.header("etag"), Some("\"e\""));
    assert_eq!(response.head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.body().await, ODD_JSON.as_bytes());
}

#[tokio::test]
async fn error_statuses_pass_unchanged() {
    let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
    for status in [400, 401, 403, 404, 406, 421, 429, 500, 503] {
        let pending = session.post(call(status)).start(proxy.addr).await;
        upstream
            .expect("tools/call")
            .await
            .json_with(status, "www-authenticate: Bearer x\r\nretry-after: 3\r\n", ODD_JSON)
            .await;
        let mut response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("www-authenticate"), Some("Bearer x"));
        assert_eq!(response.header("retry-after"), Some("3"));
        assert_eq!(response.body().await, ODD_JSON.as_bytes(), "{status}");
    }
}

#[tokio::test]
async fn notifications_pass_with_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
    for status in [202, 400, 404] {
        let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#).start(proxy.addr).await;
        upstream.expect("notifications/x").await.status_with(status, "x-custom: 1\r\n").await;
        let response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("x-custom"), Some("1"));
    }
}

#[tokio::test]
async fn interim_answers_of_the_upstream_are_not_its_answer() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await;
    upstream_call.json(200, result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_large_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"t":"{}"}}}}"#, "x".repeat(2_000_000));
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let (mut response, ()) = tokio::join!(pending.response(), async {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        upstream_call.write(head).await;
        for piece in large.as_bytes().chunks(70_000) {
            upstream_call.write(format!("{:x}\r\n", piece.len())).await;
            upstream_call.write(piece).await;
            upstream_call.write("\r\n").await;
        }
        upstream_call.whole("0\r\n\r\n").await;
    });
    assert_eq!(response.status, 200);
    assert!(response.body().await == large.as_bytes(), "2 MB come through");
}

#[tokio::test]
async fn a_compressed_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let body = b"\x1f\x8b\x08\0 not really";
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    upstream.next().await.whole(answer).await;
    let mut response = pending.response().await;
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert_eq!(response.body().await, body);
}

#[tokio::test]
async fn a_body_sent_in_chunks_arrives_whole() {
    let (mut upstream, proxy, session) = setup().await;
    let mut client = Client::connect(proxy.addr).await;
    client.send(&session.post("").with("Transfer-Encoding", "chunked").head_bytes(proxy.addr)).await;
    for piece in call(1).as_bytes().chunks(7) {
        client.send(format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)).as_bytes()).await;
    }
    client.send(b"0\r\n\r\n").await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.body, call(1).into_bytes());
    upstream_call.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn a_json_answer_that_does_not_end_has_its_time_too() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.call_timeout = Some(LATER)).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    upstream_call.write(format!("{head}{}", "x".repeat(70_000))).await;
    let (body, end) = pending.response().await.try_body().await;
    assert_eq!((body.len(), end), (70_000, End::Broken), "a client sees that it is incomplete");
    upstream_call.closed().await;
}
