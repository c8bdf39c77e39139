//! Servers on HTTP+SSE: a GET for each session, whose first event names the place of the POSTs.

use mcp_resume::config::{Config, Flags};
use serde_json::{Value, json};

use crate::support::*;

/// A scripted server, and the proxy before it.
struct Server {
    upstream: Upstream,
    proxy: Proxy,
}

/// The GET of a session.
struct Channel {
    events: Sse,
    /// Place of the POSTs.
    target: String,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let upstream = Upstream::start().await;
        let url = format!("http://{}/sse?key=k", upstream.addr());
        let proxy = Proxy::to_url(&url, |config| {
            let flags = Flags { upstream_sse: Some(url.clone()), ..Flags::default() };
            config.upstream = Config::load(None, [], flags).expect("a configuration").upstream;
            change(config);
        })
        .await;
        Self { upstream, proxy }
    }

    /// Takes the GET of a session that is opened.
    async fn take_get(&mut self, place: &str) -> Channel {
        let get = self.upstream.next().await;
        assert_eq!((get.method.as_str(), get.target.as_str()), ("GET", "/sse?key=k"));
        assert_eq!(get.header("accept"), Some("text/event-stream"));
        assert_eq!((get.header("mcp-session-id"), get.header("origin")), (None, None));
        let events = get.sse().await;
        events.bytes(format!("event: endpoint\ndata: {place}\n\n")).await;
        Channel { events, target: place.to_owned() }
    }

    /// Takes the next message of a channel.
    async fn take(&mut self, channel: &Channel) -> Value {
        let post = self.upstream.next().await;
        assert_eq!((post.method.as_str(), post.target.as_str()), ("POST", channel.target.as_str()));
        assert_eq!(post.header("content-type"), Some("application/json"));
        assert_eq!(post.header("mcp-session-id"), None);
        let message = post.json_body();
        post.whole("HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAccepted").await;
        message
    }

    async fn take_initialize(&mut self, channel: &Channel) {
        let message = self.take(channel).await;
        assert_eq!(message["method"], "initialize");
        let result = json!({"protocolVersion": V2025_11, "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}});
        channel.events.event(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string()).await;
    }

    /// Opens a session.
    async fn open(&mut self, place: &str) -> (Channel, Session) {
        let pending = Request::post(initialize(V2025_11)).start(self.proxy.addr).await;
        let channel = self.take_get(place).await;
        self.take_initialize(&channel).await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.json().await["id"].clone()), (200, json!(0)));
        let id = response.header("mcp-session-id").expect("a session").to_owned();
        let session = Session::opened_elsewhere(V2025_11, &id, None);
        let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!(ready.send(self.proxy.addr).await.status, 202);
        assert_eq!(self.take(&channel).await["method"], "notifications/initialized");
        (channel, session)
    }

    /// Opens again the session of the request that waits.
    async fn open_again(&mut self, place: &str) -> Channel {
        let channel = self.take_get(place).await;
        self.take_initialize(&channel).await;
        assert_eq!(self.take(&channel).await["method"], "notifications/initialized");
        channel
    }

    /// The server gets the call with this id, and its client the answer.
    async fn completes(&mut self, channel: &Channel, pending: Client, id: u64) {
        assert_eq!(self.take(channel).await["id"], id);
        channel.events.event(answer(id).to_string()).await;
        assert_eq!(event(&mut pending.response().await.sse()).await, answer(id));
    }
}

fn call(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "tool", "arguments": {}}}).to_string()
}

fn answer(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
}

/// The JSON of the next event with data.
async fn event(response: &mut Response) -> Value {
    response.event().await.json()
}

#[tokio::test]
async fn a_call_is_a_post_and_its_answer_an_event() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages?sessionId=1").await;
    let request = session.post(call(1)).with("authorization", "Bearer t").with("origin", "http://localhost");
    let pending = request.start(server.proxy.addr).await;
    let post = server.upstream.next().await;
    assert_eq!((post.header("authorization"), post.header("origin")), (Some("Bearer t"), None));
    assert_eq!(post.target, channel.target);
    post.status(202).await;
    channel
        .events
        .bytes(b"event: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{\"content\":[]}}\n\n")
        .await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(1));
}

#[tokio::test]
async fn a_relative_endpoint_is_beside_the_event_stream() {
    let mut server = Server::start().await;
    let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
    let mut channel = server.take_get("messages/?session_id=1").await;
    channel.target = "/messages/?session_id=1".to_owned();
    server.take_initialize(&channel).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn an_endpoint_of_another_origin_is_refused() {
    let mut server = Server::start().await;
    for place in ["http://127.0.0.1:1/messages", "//127.0.0.1:1/messages", "https://localhost/x"] {
        let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
        server.take_get(place).await;
        let mut response = pending.response().await;
        let error = response.json().await["error"].clone();
        assert_eq!((response.status, &error["data"]["mayHaveRun"]), (502, &json!(false)), "{error}");
    }
    assert!(server.upstream.is_quiet());
}

#[tokio::test]
async fn a_refused_get_is_the_answer_to_initialize() {
    let mut server = Server::start().await;
    let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
    server.upstream.next().await.json_with(401, "www-authenticate: Bearer realm=\"x\"\r\n", "{\"error\":\"e\"}").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer realm=\"x\"")));
    assert_eq!(response.json().await, json!({"error": "e"}));
}

#[tokio::test]
async fn a_refused_post_is_the_answer_to_its_call() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.upstream.next().await.status_with(403, "www-authenticate: Bearer\r\n").await;
    assert_eq!(pending.response().await.status, 403);
    // The session goes on.
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.completes(&channel, pending, 1).await;
}

#[tokio::test]
async fn a_post_that_finds_no_session_opens_it_again() {
    let mut server = Server::start().await;
    let (_channel, session) = server.open("/messages?s=1").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.upstream.next().await.json(404, "Could not find session").await;
    let channel = server.open_again("/messages?s=2").await;
    server.completes(&channel, pending, 1).await;
}

#[tokio::test]
async fn a_stream_that_is_lost_ends_its_calls_and_the_next_one_opens_the_session_again() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages?s=1").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.take(&channel).await;
    let mut response = pending.response().await.sse();
    channel.events.reset().await;
    let error = event(&mut response).await;
    assert_eq!((&error["id"], &error["error"]["data"]["mayHaveRun"]), (&json!(1), &json!(true)), "{error}");
    let pending = session.post(call(2)).start(server.proxy.addr).await;
    let channel = server.open_again("/messages?s=2").await;
    server.completes(&channel, pending, 2).await;
}

#[tokio::test]
async fn a_client_that_comes_back_gets_what_it_missed() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.take(&channel).await;
    let mut response = pending.response().await.sse();
    let first = response.prime().await.id().to_owned();
    drop(response);
    channel.events.event(answer(1).to_string()).await;
    let mut resumed = session.resume(&first).send(server.proxy.addr).await.sse();
    assert_eq!(event(&mut resumed).await, answer(1));
}

#[tokio::test]
async fn a_server_may_ask_before_it_answers_a_post() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    let held = server.upstream.next().await;
    let question = json!({"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "?"}});
    channel.events.event(question.to_string()).await;
    let mut response = pending.response().await.sse();
    assert_eq!(event(&mut response).await, question);
    let own = json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}});
    assert_eq!(session.post(own.to_string()).send(server.proxy.addr).await.status, 202);
    assert_eq!(server.take(&channel).await, own);
    held.status(202).await;
    channel.events.event(answer(1).to_string()).await;
    assert_eq!(event(&mut response).await, answer(1));
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_posts() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    let _pending = session.post(call(1)).start(server.proxy.addr).await;
    let held = server.upstream.next().await;
    assert_eq!(session.delete().send(server.proxy.addr).await.status, 200);
    held.closed().await;
    channel.events.closed().await;
}

#[tokio::test]
async fn the_end_of_a_session_closes_its_stream() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    assert_eq!(session.delete().send(server.proxy.addr).await.status, 200);
    channel.events.closed().await;
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_waited_for() {
    let mut server = Server::start_with(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let (channel, session) = server.open("/messages?s=1").await;
    server.upstream.refuse().await;
    channel.events.reset().await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    let admin = server.proxy.admin.expect("an admin listener");
    until("the proxy finds the server away", async || Request::new("GET", "/readyz").send(admin).await.status == 503)
        .await;
    server.upstream.listen_again().await;
    let channel = server.open_again("/messages?s=2").await;
    server.completes(&channel, pending, 1).await;
}

#[tokio::test]
async fn the_cancel_of_a_call_has_its_credentials() {
    let mut server = Server::start_with(|config| config.streams.max_wait = Some(SOON)).await;
    let (channel, session) = server.open("/messages").await;
    let pending = session.post(call(1)).with("authorization", "Bearer t").start(server.proxy.addr).await;
    assert_eq!(server.take(&channel).await["id"], 1);
    drop(pending.response().await);
    let cancel = server.upstream.next().await;
    assert_eq!(cancel.header("authorization"), Some("Bearer t"));
    assert_eq!(cancel.json_body()["method"], "notifications/cancelled");
    cancel.status(202).await;
}

#[tokio::test]
async fn a_redirect_of_the_get_is_followed_within_the_origin_alone() {
    let mut server = Server::start().await;
    let own = format!("location: http://{}/sse/\r\n", server.upstream.addr());
    for (status, location, is_followed) in [
        (307, "location: /sse/\r\n", true),
        (308, own.as_str(), true),
        (307, "location: http://127.0.0.1:1/sse\r\n", false),
        (308, "location: //example.com/sse\r\n", false),
        (302, "location: http://127.0.0.1:1/sse\r\n", false),
    ] {
        let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
        server.upstream.next().await.status_with(status, location).await;
        if is_followed {
            let get = server.upstream.next().await;
            assert_eq!((get.method.as_str(), get.target.as_str()), ("GET", "/sse/"));
            get.status(401).await;
            assert_eq!(pending.response().await.status, 401);
            continue;
        }
        let mut response = pending.response().await;
        assert_eq!((response.status, response.header("location")), (502, None), "{location}");
        let error = response.json().await["error"].clone();
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("redirects") && !message.contains("127.0.0.1"), "{message}");
        assert_eq!(error["data"]["mayHaveRun"], false);
    }
    assert!(server.upstream.is_quiet());
}

#[tokio::test]
async fn redirects_without_end_are_an_error() {
    let mut server = Server::start().await;
    let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
    for _ in 0..4 {
        server.upstream.next().await.status_with(307, "location: /sse\r\n").await;
    }
    assert_eq!(pending.response().await.status, 502);
    assert!(server.upstream.is_quiet());
}

#[tokio::test]
async fn a_redirect_of_a_post_is_followed_within_the_origin_alone() {
    let mut server = Server::start().await;
    let (channel, session) = server.open("/messages").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.upstream.next().await.status_with(307, "location: /messages/\r\n").await;
    let post = server.upstream.next().await;
    assert_eq!((post.target.as_str(), post.json_body()["id"].clone()), ("/messages/", json!(1)));
    post.status(202).await;
    channel.events.event(answer(1).to_string()).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(1));

    let pending = session.post(call(2)).start(server.proxy.addr).await;
    server.upstream.next().await.status_with(307, "location: http://127.0.0.1:1/messages\r\n").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("location")), (502, None));
    let error = response.json().await;
    assert_eq!((&error["id"], &error["error"]["data"]["mayHaveRun"]), (&json!(2), &json!(false)), "{error}");
    let data = &error["error"]["data"];
    assert_eq!((&data["error"], &data["origin"]), (&json!("upstream_redirect"), &json!("http://127.0.0.1:1")));
    // The session goes on.
    let _pending = session.post(call(3)).start(server.proxy.addr).await;
    assert_eq!(server.take(&channel).await["id"], 3);
}

#[tokio::test]
async fn an_event_over_the_limit_ends_its_call_and_the_session_goes_on() {
    let mut server = Server::start_with(|config| config.streams.max_event_bytes = 8 * 1024).await;
    let (channel, session) = server.open("/messages?s=1").await;
    let pad = "x".repeat(9000);
    for (id, large) in [
        (1, format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{pad}"}}"#)),
        (2, format!(r#"{{"result":"{pad}","jsonrpc":"2.0","id":2}}"#)),
        (3, format!(r#"{{"result":"{pad}","id":3,"text":"{pad}"}}"#)),
    ] {
        let pending = session.post(call(id)).start(server.proxy.addr).await;
        assert_eq!(server.take(&channel).await["id"], id);
        channel.events.bytes(format!("event: ping\ndata: {pad}\n\n: {pad}\n\n")).await;
        channel.events.event(large).await;
        let error = event(&mut pending.response().await.sse()).await;
        let message = "the MCP server sent an event over the size limit";
        assert_eq!((&error["id"], &error["error"]["message"]), (&json!(id), &json!(after_a_run(message))));
        let cancel = server.take(&channel).await;
        assert_eq!(
            (&cancel["method"], &cancel["params"]["requestId"]),
            (&json!("notifications/cancelled"), &json!(id))
        );
        let pending = session.post(call(id + 10)).start(server.proxy.addr).await;
        server.completes(&channel, pending, id + 10).await;
    }
}

#[tokio::test]
async fn an_event_that_finds_no_memory_ends_its_call_and_the_session_goes_on() {
    const QUOTA: usize = 1024 * 1024;
    let mut server = Server::start_with(|config| {
        config.streams.max_event_bytes = 4 * QUOTA;
        config.streams.max_bytes = 8 * QUOTA;
        config.streams.max_bytes_per_principal = QUOTA;
    })
    .await;
    let (channel, session) = server.open("/messages?s=1").await;
    let pending = session.post(call(1)).start(server.proxy.addr).await;
    server.take(&channel).await;
    channel.events.event(format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(2 * QUOTA))).await;
    let error = event(&mut pending.response().await.sse()).await;
    assert_eq!(error["error"]["message"], after_a_run("this caller's share of the proxy's memory is full"));
    assert_eq!(server.take(&channel).await["method"], "notifications/cancelled");
    let pending = session.post(call(2)).start(server.proxy.addr).await;
    server.completes(&channel, pending, 2).await;
}
