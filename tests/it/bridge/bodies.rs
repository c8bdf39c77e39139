//! Bodies of the server that are no plain response of JSON, and the headers that describe them.

use super::legacy_clients::opened as opened_by_legacy;
use super::*;

/// Headers that describe the bytes of a body, each line ended by CRLF.
const FACTS: &str = "etag: \"e\"\r\ncontent-digest: sha-256=:AA==:\r\nrepr-digest: sha-256=:AA==:\r\n";
const NAMES: [&str; 3] = ["etag", "content-digest", "repr-digest"];

/// Responds with these bytes as JSON, and with [`FACTS`].
async fn respond(call: Call, status: u16, media_type: &str, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n{FACTS}\r\n");
    call.whole([head.as_bytes(), body].concat()).await;
}

/// Reads a body, which is complete, and has the announced length.
async fn body_of(response: &mut Response) -> Vec<u8> {
    let announced = response.header("content-length").map(|length| length.parse::<usize>().expect("a length"));
    let (body, end) = response.try_body().await;
    assert_eq!((end, announced), (End::Complete, Some(body.len())));
    body
}

/// Opens the session of a client of 2026-07-28.
async fn opened(upstream: &mut Upstream, proxy: &Proxy) {
    let (sse, mut response, sent) = begun(upstream, proxy, &call(1, json!({}))).await;
    response.prime().await;
    sse.finish(result_under(&sent["id"])).await;
    response.event().await;
}

/// A response with `NaN` and with the ID `id`.
fn not_a_number(id: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"x":NaN}}}}"#)
}

#[tokio::test]
async fn a_body_that_is_not_translated_stays_as_it_is() {
    let (mut upstream, proxy) = stage().await;
    opened(&mut upstream, &proxy).await;
    for (number, body) in [
        "\u{feff}{\"detail\":\"Not Found\"}",
        "\u{feff}<html>",
        "\u{feff}[]",
        "\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}",
        "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"x\":NaN",
        "{\"x\":NaN}} x",
        "{\"detail\":\"Not Found\"}",
    ]
    .into_iter()
    .enumerate()
    {
        let pending = call(10 + number, json!({"arguments": {"n": number}})).start(proxy.addr).await;
        respond(upstream.expect("tools/call").await, 422, "application/json", body.as_bytes()).await;
        let mut response = pending.response().await;
        assert_eq!((response.status, body_of(&mut response).await), (422, body.as_bytes().to_vec()));
        for name in NAMES {
            assert!(response.header(name).is_some(), "{name}: the body is the server's");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_translated_loses_the_headers_of_its_bytes() {
    let (mut upstream, proxy) = stage().await;
    opened(&mut upstream, &proxy).await;
    for (number, status) in [(0, 200), (1, 400)] {
        let pending = call(10 + number, json!({"arguments": {"n": number}})).start(proxy.addr).await;
        let called = upstream.expect("tools/call").await;
        let body = match status {
            200 => not_a_number(&called.json_body()["id"]),
            _ => format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{{\"code\":-5,\"message\":\"m\"}}}}", 1),
        };
        respond(called, status, "application/json", body.as_bytes()).await;
        let mut response = pending.response().await;
        let message: Value = serde_json::from_slice(&body_of(&mut response).await).expect("JSON");
        assert_eq!(message["id"], 10 + number);
        for name in NAMES {
            assert_eq!(response.header(name), None, "{name}");
        }
    }
}

#[tokio::test]
async fn a_body_for_an_older_client_has_no_headers_of_other_bytes() {
    let (mut upstream, proxy) = stage().await;
    let session = opened_by_legacy(&mut upstream, &proxy).await;
    for (id, status, body) in [
        (1, 200, None),
        (2, 400, Some("\u{feff}{\"detail\":\"no\"}")),
        (3, 400, Some("{\"x\":NaN}} x")),
        (4, 400, Some("\u{feff}[{\"x\":Infinity}]")),
    ] {
        let pending = session.call(id).start(proxy.addr).await;
        let called = upstream.expect("tools/call").await;
        let body = body.map_or_else(|| not_a_number(&called.json_body()["id"]), str::to_owned);
        respond(called, status, "application/json", body.as_bytes()).await;
        let mut response = pending.response().await;
        assert_eq!(response.status, status);
        body_of(&mut response).await;
        for name in NAMES {
            assert_eq!(response.header(name), None, "{name}");
        }
    }
}

/// Bodies with the response to the request `id` of the bridge, in forms that clients read from the
/// server itself, each with the value of `x` for the client.
fn odd_forms(id: &Value) -> [(Vec<u8>, Value); 6] {
    let response = |x: &[u8]| {
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"x":"#);
        [head.as_bytes(), x, b"}}"].concat()
    };
    let array = |first: &str, response: Vec<u8>| [first.as_bytes(), &response, b" ]\n"].concat();
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    [
        (response(b"\"a\xffb\""), json!("a\u{fffd}b")),
        (response(b"[\"\xe2\x82\",NaN]"), json!(["\u{fffd}", null])),
        (array("[", response(b"1")), json!(1)),
        (array(&format!("\u{feff} [{note} ,\r\n"), response(b"2")), json!(2)),
        (array("[", response(b"-Infinity")), json!(null)),
        (array(&format!("[{note},"), response(b"\"\xff\"")), json!("\u{fffd}")),
    ]
}

/// Bodies of status 200 without a response that can be translated.
fn unreadable(id: &Value) -> [String; 6] {
    let response = result_under(id);
    [
        format!("{response} x"),
        response[..response.len() - 2].to_owned(),
        format!("[{}", response),
        "[]".to_owned(),
        "\u{feff}<html>".to_owned(),
        r#"{"jsonrpc":"2.0","method":"notifications/message"}"#.to_owned(),
    ]
}

async fn hasty_stage() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.delivery.commit_after = Some(SOON);
        config.bridge = Some(always());
    })
    .await;
    (upstream, proxy)
}

/// Time of the server's response.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The response begins with the server's.
    AtOnce,
    /// The response of the proxy has begun.
    Late,
}

/// Has the server respond to a call with these bytes. Returns the response that the client gets.
async fn exchange(
    upstream: &mut Upstream,
    proxy: &Proxy,
    request: &Request,
    way: Way,
    body: impl FnOnce(&Value) -> (&'static str, Vec<u8>),
) -> Value {
    let pending = request.start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let id = called.json_body()["id"].clone();
    let (media_type, body) = body(&id);
    if matches!(way, Way::AtOnce) {
        respond(called, 200, media_type, &body).await;
        let mut response = pending.response().await;
        return serde_json::from_slice(&body_of(&mut response).await).expect("JSON");
    }
    let mut response = pending.response().await.sse();
    response.prime().await;
    respond(called, 200, media_type, &body).await;
    let mut message = response.event().await.json();
    if message.get("method").is_some() {
        message = response.event().await.json();
    }
    response.ends().await;
    message
}

/// Checks all forms for the requests that `request` makes of a number.
async fn forms_are_translated(upstream: &mut Upstream, proxy: &Proxy, way: Way, request: impl Fn(usize) -> Request) {
    for number in 0..6 {
        for media_type in ["application/json", "application/json-rpc"] {
            let id = 100 + 2 * number + usize::from(media_type.ends_with("rpc"));
            let mut expected = Value::Null;
            let odd = |id: &Value| {
                let (body, x) = odd_forms(id)[number].clone();
                expected = x;
                (media_type, body)
            };
            let message = exchange(upstream, proxy, &request(id), way, odd).await;
            assert_eq!((&message["id"], &message["result"]["x"]), (&json!(id), &expected), "{way:?}: {message}");
        }
        let id = 200 + number;
        let odd = |id: &Value| ("application/json", unreadable(id)[number].clone().into_bytes());
        let message = exchange(upstream, proxy, &request(id), way, odd).await;
        assert_fault(&message, id, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["error"], "upstream_garbage");
    }
}

#[tokio::test]
async fn every_form_of_a_response_has_the_id_of_its_request() {
    for way in [Way::AtOnce, Way::Late] {
        let (mut upstream, proxy) = match way {
            Way::AtOnce => stage().await,
            Way::Late => hasty_stage().await,
        };
        opened(&mut upstream, &proxy).await;
        let request = |id| call(id, json!({"arguments": {"n": id}}));
        forms_are_translated(&mut upstream, &proxy, way, request).await;
    }
}

#[tokio::test]
async fn every_form_of_a_response_has_the_id_of_an_older_clients_request() {
    for way in [Way::AtOnce, Way::Late] {
        let (mut upstream, proxy) = match way {
            Way::AtOnce => stage().await,
            Way::Late => hasty_stage().await,
        };
        let session = opened_by_legacy(&mut upstream, &proxy).await;
        let request = |id| session.request(id, "tools/call", json!({"name": "slow", "arguments": {"n": id}}));
        forms_are_translated(&mut upstream, &proxy, way, request).await;
    }
}
