//! A server on HTTP+SSE behind the URL of one on Streamable HTTP: it is recognised at a refused
//! `initialize`.

use serde_json::{Value, json};

use crate::support::*;

/// A scripted server, and a proxy that takes it for one on Streamable HTTP.
struct Server {
    upstream: Upstream,
    proxy: Proxy,
}

impl Server {
    async fn start() -> Self {
        let upstream = Upstream::start().await;
        // The bridge asks too after such a refusal.
        let proxy = Proxy::start(&upstream, |config| config.bridge = None).await;
        Self { upstream, proxy }
    }

    /// The next request, which has this method.
    async fn take(&mut self, method: &str) -> Call {
        let call = self.upstream.next().await;
        assert_eq!((call.method.as_str(), call.target.as_str()), (method, "/mcp"));
        call
    }

    /// Begins an `initialize`, which is refused with this status.
    async fn refuse(&mut self, status: u16) -> Client {
        let pending =
            Request::post(initialize(V2025_11)).with("authorization", "Bearer t").start(self.proxy.addr).await;
        let post = self.take("POST").await;
        assert_eq!(post.rpc_method(), "initialize");
        post.status(status).await;
        pending
    }

    /// Takes the question that comes before the search for an event stream.
    async fn take_question(&mut self) -> Call {
        let question = self.take("POST").await;
        assert_eq!(
            (question.rpc_method().as_str(), question.header("authorization")),
            ("server/discover", Some("Bearer t"))
        );
        question
    }

    /// Takes a GET that is answered with an endpoint.
    async fn take_get(&mut self) -> Sse {
        let get = self.take("GET").await;
        assert_eq!((get.header("accept"), get.header("authorization")), (Some("text/event-stream"), Some("Bearer t")));
        let events = get.sse().await;
        events.bytes("event: endpoint\ndata: /messages?s=secret\n\n").await;
        events
    }

    /// Takes a message at the endpoint.
    async fn take_message(&mut self) -> Value {
        let post = self.upstream.next().await;
        assert_eq!((post.method.as_str(), post.target.as_str()), ("POST", "/messages?s=secret"));
        let message = post.json_body();
        post.status(202).await;
        message
    }

    /// Takes the `initialize` on a channel.
    async fn take_initialize(&mut self, events: &Sse) {
        let message = self.take_message().await;
        assert_eq!(message["method"], "initialize");
        let result = json!({"protocolVersion": V2025_11, "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}});
        events.event(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string()).await;
    }

    /// Has the server recognised. Returns the session that was opened with it.
    async fn recognise(&mut self, status: u16) -> (Sse, Session) {
        let pending = self.refuse(status).await;
        self.take_question().await.status(status).await;
        self.take_get().await.closed().await;
        let events = self.take_get().await;
        self.take_initialize(&events).await;
        (events, opened(pending.response().await).await)
    }
}

async fn opened(mut response: Response) -> Session {
    assert_eq!((response.status, response.json().await["id"].clone()), (200, json!(0)));
    let id = response.header("mcp-session-id").expect("a session").to_owned();
    assert_eq!(id.split_once('~').map(|(owner, name)| (owner.len(), name.len())), Some((8, 32)), "{id}");
    Session::opened_elsewhere(V2025_11, &id, None)
}

fn call(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "tool", "arguments": {}}}).to_string()
}

#[tokio::test]
async fn a_refused_initialize_goes_to_an_event_stream() {
    for status in [400, 404, 405] {
        let mut server = Server::start().await;
        let (events, session) = server.recognise(status).await;
        let pending = session.post(call(1)).start(server.proxy.addr).await;
        assert_eq!(server.take_message().await["id"], 1);
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": []}});
        events.event(answer.to_string()).await;
        assert_eq!(pending.response().await.sse().event().await.json(), answer);
        // The next session asks nothing.
        let pending =
            Request::post(initialize(V2025_11)).with("authorization", "Bearer t").start(server.proxy.addr).await;
        let events = server.take_get().await;
        server.take_initialize(&events).await;
        opened(pending.response().await).await;
    }
}

#[tokio::test]
async fn clients_of_the_old_transport_go_on() {
    let mut server = Server::start().await;
    let _session = server.recognise(404).await;
    let pending = Request::get().start(server.proxy.addr).await;
    let events = server.take("GET").await.sse().await;
    events.bytes("event: endpoint\ndata: /messages?s=old\n\n").await;
    assert_eq!(pending.response().await.status, 200);
    let post = Request::post(call(1)).target("/messages?s=old").start(server.proxy.addr).await;
    let taken = server.upstream.next().await;
    assert_eq!(taken.target, "/messages?s=old");
    taken.status(202).await;
    assert_eq!(post.response().await.status, 202);
}

#[tokio::test]
async fn a_server_that_answers_the_question_is_none() {
    let known = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no session"}}"#;
    for (status, body) in [(400, known), (200, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)] {
        let mut server = Server::start().await;
        let pending = server.refuse(400).await;
        server.take_question().await.json(status, body).await;
        assert_eq!(pending.response().await.status, 400);
        // It is not asked again.
        assert_eq!(server.refuse(400).await.response().await.status, 400);
        assert!(server.upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_server_that_has_opened_a_session_is_none() {
    let mut server = Server::start().await;
    let pending = Request::post(initialize(V2025_11)).start(server.proxy.addr).await;
    let result =
        json!({"protocolVersion": V2025_11, "capabilities": {}, "serverInfo": {"name": "new", "version": "1"}});
    let answer = json!({"jsonrpc": "2.0", "id": 0, "result": result});
    server.take("POST").await.json(200, &answer.to_string()).await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(server.refuse(404).await.response().await.status, 404);
    assert!(server.upstream.is_quiet());
}

#[tokio::test]
async fn a_get_without_an_endpoint_lets_the_refusal_pass() {
    let elsewhere = "event: endpoint\ndata: http://127.0.0.1:1/messages\n\n";
    for first in [elsewhere, "data: {}\n\n", ""] {
        let mut server = Server::start().await;
        let pending = server.refuse(405).await;
        server.take_question().await.status(405).await;
        let get = server.take("GET").await;
        if first.is_empty() {
            get.status(405).await;
        } else {
            get.sse().await.bytes(first).await;
        }
        assert_eq!(pending.response().await.status, 405);
        // For a while it is not searched again.
        assert_eq!(server.refuse(405).await.response().await.status, 405);
        assert!(server.upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_get_that_is_redirected_to_another_origin_is_not_followed() {
    let mut server = Server::start().await;
    let pending = server.refuse(404).await;
    server.take_question().await.status(404).await;
    server.take("GET").await.status_with(307, "location: http://127.0.0.1:1/sse\r\n").await;
    assert_eq!(pending.response().await.status, 404);
}

#[tokio::test]
async fn a_caller_whom_the_server_refuses_prevents_no_later_search() {
    let mut server = Server::start().await;
    let pending = server.refuse(404).await;
    server.take_question().await.status(404).await;
    server.take("GET").await.status(401).await;
    assert_eq!(pending.response().await.status, 404);
    server.recognise(404).await;
}

#[tokio::test]
async fn no_other_refusal_begins_a_search() {
    let mut server = Server::start().await;
    for status in [401, 403, 406, 500] {
        assert_eq!(server.refuse(status).await.response().await.status, status);
    }
    let pending = Request::post(call(1)).start(server.proxy.addr).await;
    server.take("POST").await.status(404).await;
    assert_eq!(pending.response().await.status, 404);
    assert!(server.upstream.is_quiet());
}

/// At its other paths such a server permits its own pages.
#[tokio::test]
async fn the_proxy_permits_pages_at_the_endpoint_of_a_recognised_server() {
    let mut server = Server::start().await;
    let (_events, session) = server.recognise(405).await;
    let page = "http://localhost:6274";
    let preflight =
        |target| Request::new("OPTIONS", target).with("Origin", page).with("Access-Control-Request-Method", "POST");
    let unknown = Session::opened_elsewhere(V2025_11, "unknown", None);
    for (request, status) in [(preflight("/mcp"), 204), (unknown.post(call(1)).with("Origin", page), 404)] {
        let response = request.send(server.proxy.addr).await;
        assert_eq!((response.status, response.header("access-control-allow-origin")), (status, Some(page)));
    }
    let pending = preflight("/messages").start(server.proxy.addr).await;
    server.upstream.next().await.status_with(204, "access-control-allow-origin: *\r\n").await;
    assert_eq!(pending.response().await.header("access-control-allow-origin"), Some("*"));
    drop(session);
}
