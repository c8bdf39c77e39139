//! Servers that spell the ID of a response differently from its request, write `null` for a member
//! that is absent, or write JSON that only lenient parsers read. Clients take such responses from
//! the server itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::commit::{committed, hasty};
use crate::support::stdio::StdioServers;
use crate::support::*;

/// IDs of a request and of its response, and whether clients take the response for its own.
const SPELLINGS: [(&str, &str, bool); 15] = [
    ("7", "\"7\"", true),
    ("\"7\"", "7", true),
    ("7", "7.0", true),
    ("7", "7e0", true),
    ("7", "70e-1", true),
    ("7", "\"7.0\"", true),
    ("7", "\" 7\"", true),
    ("7.0", "7", true),
    ("9007199254740993", "\"9007199254740993\"", true),
    ("9007199254740993", "9007199254740992", true),
    ("18446744073709551617", "\"18446744073709551617\"", true),
    ("\"a\"", "\"\\u0061\"", true),
    ("7", "8", false),
    ("\"a\"", "\"A\"", false),
    ("7", "\"x7\"", false),
];

/// Responses to the ID `7` with members that are `null`.
const NULLS: [&str; 5] = [
    r#"{"jsonrpc":"2.0","id":7,"result":{"a":1},"error":null}"#,
    r#"{"jsonrpc":"2.0","id":7,"result":null,"error":{"code":1,"message":"m"}}"#,
    r#"{"jsonrpc":"2.0","id":7,"method":null,"result":{}}"#,
    r#"{"jsonrpc":"2.0","id":7,"method":null,"params":null,"result":{},"error":null}"#,
    r#"{"jsonrpc":"2.0","id":7,"result":null}"#,
];

/// A call under this ID. Its arguments are new: an equal POST would be a retry of the call before
/// it, if the proxy has not seen yet that its client had the response.
fn call(id: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let n = LAST.fetch_add(1, Ordering::Relaxed);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{{"n":{n}}}}}}}"#)
}

/// A response with bytes that must stay.
fn answer(id: &str) -> String {
    format!(r#"{{"result": {{"id":{id}, "n":1e0}},"id":{id} ,"jsonrpc":"2.0"}}"#)
}

/// The message that the client gets for `answer(at_server)`.
fn expected(at_client: &str, at_server: &str) -> String {
    format!(r#"{{"result": {{"id":{at_server}, "n":1e0}},"id":{at_client} ,"jsonrpc":"2.0"}}"#)
}

fn text(event: &Frame) -> String {
    String::from_utf8(event.bytes().to_vec()).expect("text")
}

#[tokio::test]
async fn an_event_has_the_id_of_its_request() {
    let (mut upstream, proxy, session) = setup().await;
    for (at_client, at_server, is_own) in SPELLINGS {
        let pending = session.post(call(at_client)).start(proxy.addr).await;
        upstream.expect("tools/call").await.sse().await.finish(answer(at_server)).await;
        let (events, _) = pending.response().await.sse().events().await;
        let data: Vec<String> = events.iter().map(text).collect();
        if at_server.contains('\\') {
            assert_eq!(data, [answer(at_server)], "an equal ID stays as it is");
        } else if is_own {
            assert_eq!(data, [expected(at_client, at_server)], "{at_client} answered as {at_server}");
        } else {
            // The response of no request, and an error for the request.
            assert_eq!((data.len(), &data[0]), (2, &answer(at_server)));
            assert!(data[1].contains("broke off"), "{}", data[1]);
        }
    }
}

#[tokio::test]
async fn a_late_body_has_the_id_of_its_request() {
    let (mut upstream, proxy, session) = hasty().await;
    for (at_client, at_server, is_own) in SPELLINGS {
        let (pending, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(at_client))).await;
        pending.json(200, answer(at_server)).await;
        let event = response.event().await;
        match is_own {
            true if at_server.contains('\\') => assert_eq!(text(&event), answer(at_server)),
            true => assert_eq!(text(&event), expected(at_client, at_server)),
            false => assert!(text(&event).contains("not a JSON-RPC answer"), "{}", text(&event)),
        }
        response.ends().await;
    }
}

#[tokio::test]
async fn a_resumed_response_has_the_id_of_its_request() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call("7")).start(proxy.addr).await;
    let stream = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    let place = response.prime().await.id().to_owned();
    drop(response);
    stream.finish(answer("\"7\"")).await;
    let mut resumed = session.resume(&place).send(proxy.addr).await.sse();
    assert_eq!(text(&resumed.event().await), expected("7", "\"7\""));
    resumed.ends().await;
}

#[tokio::test]
async fn responses_of_a_batch_are_told_apart_by_their_exact_ids() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    let body = format!("[{},{}]", call("7"), call("\"7\""));
    let pending = session.post(body).start(proxy.addr).await;
    let stream = upstream.next().await.sse().await;
    // Neither ID is the only one that equals it.
    stream.event(answer("7.0")).await;
    stream.event(answer("\"7\"")).await;
    // The rest is unmistakable.
    stream.finish(answer("7e0")).await;
    let (events, _) = pending.response().await.sse().events().await;
    let data: Vec<String> = events.iter().map(text).collect();
    assert_eq!(data, [answer("7.0"), answer("\"7\""), expected("7", "7e0")]);
}

#[tokio::test]
async fn a_line_of_a_program_has_the_id_of_its_request() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    for (at_client, at_server, is_own) in SPELLINGS {
        if !is_own || at_server.contains('\\') {
            continue;
        }
        let pending = session.post(call(at_client)).start(proxy.addr).await;
        server.message().await;
        server.say(answer(at_server)).await;
        let event = pending.response().await.sse().event().await;
        assert_eq!(text(&event), expected(at_client, at_server), "{at_client} answered as {at_server}");
    }
}

#[tokio::test]
async fn a_member_that_is_null_counts_as_absent() {
    let (mut upstream, proxy, session) = hasty().await;
    let servers = StdioServers::start().await;
    let by_channel = servers.proxy(|_| {}).await;
    let (mut server, channel_session) = servers.open(&by_channel).await;
    for message in NULLS {
        let pending = session.post(call("7")).start(proxy.addr).await;
        upstream.expect("tools/call").await.sse().await.finish(message).await;
        let (events, end) = pending.response().await.sse().events().await;
        assert_eq!((events.len(), end), (1, End::Complete));
        assert_eq!(text(&events[0]), message);

        let (late, mut response, _) = committed(&proxy, &mut upstream, &session.post(call("7"))).await;
        late.json(200, message).await;
        assert_eq!(text(&response.event().await), message);
        response.ends().await;

        let pending = channel_session.post(call("7")).start(by_channel.addr).await;
        server.message().await;
        server.say(message).await;
        assert_eq!(text(&pending.response().await.sse().event().await), message);
    }
}

/// Bytes that only lenient parsers read, before a response to the ID `7` or in it.
const LENIENT: [&str; 3] = [
    r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN,"y":[Infinity,-Infinity]}}"#,
    r#"{"jsonrpc":"2.0","result":{"text":"\"NaN","x":NaN},"id":"7"}"#,
    "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}",
];

/// Such a response as a client gets it: with the ID of its request, without a byte order mark.
fn passed(message: &str) -> String {
    message.trim_start_matches('\u{feff}').replace("\"id\":\"7\"", "\"id\":7")
}

#[tokio::test]
async fn a_response_that_only_lenient_parsers_read_passes() {
    let (mut upstream, proxy, session) = hasty().await;
    let servers = StdioServers::start().await;
    let by_channel = servers.proxy(|_| {}).await;
    let (mut server, channel_session) = servers.open(&by_channel).await;
    for message in LENIENT {
        let (late, mut response, _) = committed(&proxy, &mut upstream, &session.post(call("7"))).await;
        late.json(200, message).await;
        assert_eq!(text(&response.event().await), passed(message));
        response.ends().await;

        let pending = channel_session.post(call("7")).start(by_channel.addr).await;
        server.message().await;
        // Lines of a log, which end no call.
        server.say(r#"{"id":7,"level":"info","x":NaN"#).await;
        server.say("NaN {\"jsonrpc\":\"2.0\",\"id\":7}").await;
        server.say(message).await;
        assert_eq!(text(&pending.response().await.sse().event().await), passed(message));
    }
    for message in &LENIENT[..2] {
        let pending = session.post(call("7")).start(proxy.addr).await;
        upstream.expect("tools/call").await.sse().await.finish(message).await;
        let (events, end) = pending.response().await.sse().events().await;
        assert_eq!((events.len(), end), (1, End::Complete));
        assert_eq!(text(&events[0]), passed(message));
    }
}
