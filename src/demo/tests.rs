//! Tests of the demo's parts without the proxy: the server with a plain client, and the client with
//! scripted peers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

use hyper::StatusCode;
use serde_json::{Value, json};

/// Sends one request over a connection of its own. Returns the status, head and body of the
/// response.
async fn ask(address: SocketAddr, head: &str, body: &str) -> (u16, String, String) {
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!("{head}\r\nHost: demo\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

async fn session(server: &Server) -> String {
    let params = json!({"protocolVersion": "2025-06-18"});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let (status, head, body) = ask(server.address(), "POST /mcp HTTP/1.1", &message.to_string()).await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned()
}

#[tokio::test]
async fn the_server_keeps_to_the_transport() {
    let server = Server::start().await.unwrap();
    let session = session(&server).await;
    let post = format!("POST /mcp HTTP/1.1\r\nMcp-Session-Id: {session}");
    let list = r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

    let (status, _, body) = ask(server.address(), &post, list).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["id"]), (200, &json!("a")));
    assert_eq!(answer["result"]["tools"][0]["name"], "count");

    for (head, body, wanted) in [
        (post.as_str(), initialized, 202),
        (post.as_str(), "{", 400),
        ("POST /mcp HTTP/1.1", list, 400),
        ("POST /mcp HTTP/1.1\r\nMcp-Session-Id: demo-99", list, 404),
        ("POST /other HTTP/1.1", list, 404),
        ("GET /mcp HTTP/1.1", "", 405),
        (&format!("DELETE /mcp HTTP/1.1\r\nMcp-Session-Id: {session}"), "", 200),
        (post.as_str(), list, 404),
    ] {
        assert_eq!(ask(server.address(), head, body).await.0, wanted, "{head} {body}");
    }
}

#[tokio::test]
async fn a_call_streams_its_progress_and_its_result_without_ids() {
    let server = Server::start().await.unwrap();
    let mut transcript = Transcript::discarded();
    let mut client = Client::new(server.address(), &mut transcript);
    client.initialize().await.unwrap();
    let mut stream = client.call("count", json!({"to": 3, "interval_ms": 0})).await.unwrap();
    let mut messages = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        assert_eq!((event.id, event.retry), (None, None), "this server must not be resumable");
        messages.push(serde_json::from_slice::<Value>(&event.data).unwrap());
    }
    let progress: Vec<_> = messages.iter().map(|message| message["params"]["progress"].as_u64()).collect();
    assert_eq!(progress, [Some(1), Some(2), Some(3), None]);
    assert_eq!(messages[3]["result"]["content"][0]["text"], "counted to 3");
}

#[tokio::test]
async fn a_cut_call_is_lost_to_the_client() {
    let server = Server::start().await.unwrap();
    let relay = Relay::start(server.address()).await.unwrap();
    let mut transcript = Transcript::discarded();
    let mut client = Client::new(relay.address(), &mut transcript);
    client.initialize().await.unwrap();
    let mut stream = client.call("count", json!({"to": 1, "interval_ms": 10_000})).await.unwrap();
    relay.cut();
    assert!(stream.next().await.is_err());
    assert_eq!(server.calls_begun(), 1);

    let refused = client.resume("made.up").await.map(drop).unwrap_err();
    let wanted = StatusCode::METHOD_NOT_ALLOWED;
    assert!(matches!(refused, Error::Unexpected { status, .. } if status == wanted));
}

#[tokio::test]
async fn a_call_runs_on_when_its_client_leaves() {
    let server = Server::start().await.unwrap();
    let mut transcript = Transcript::discarded();
    let mut client = Client::new(server.address(), &mut transcript);
    client.initialize().await.unwrap();
    let stream = client.call("count", json!({"to": 100, "interval_ms": 1})).await.unwrap();
    drop((stream, client));
    let ended = tokio::time::timeout(SHOW_LIMIT, server.all_calls_ended()).await;
    assert!(ended.is_ok(), "the call ended with its client");
}

/// Starts a peer that gives each connection the next response of its script, if the request
/// contains the text beside it. The connection stays open, so that only a cut ends an incomplete
/// response.
async fn scripted(script: Vec<(&'static str, String)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        for (wanted, answer) in script {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = socket.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let answer = if request.contains(wanted) { answer } else { "HTTP/1.1 400 Unexpected\r\n\r\n".to_owned() };
            socket.write_all(answer.as_bytes()).await.unwrap();
            open.push(socket);
        }
        std::future::pending::<()>().await;
    });
    address
}

fn events(numbers: impl IntoIterator<Item = u64>, ids: bool) -> String {
    let id = |n: u64| {
        if ids { format!("id: h.{n}\nretry: 1\n") } else { String::new() }
    };
    let one = |n| format!("{}data: {}\n\n", id(n), json!({"params": {"progress": n, "total": COUNT_TO}}));
    let body: String = numbers.into_iter().map(one).collect();
    let chunk = format!("{:x}\r\n{body}\r\n", body.len());
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
         Transfer-Encoding: chunked\r\n\r\n{chunk}"
    )
}

fn last(numbers: impl IntoIterator<Item = u64>) -> String {
    let text = format!("counted to {COUNT_TO}");
    let result = json!({"id": 1, "result": {"content": [{"type": "text", "text": text}]}});
    let result = format!("id: h.result\ndata: {result}\n\n");
    format!("{}{:x}\r\n{result}\r\n0\r\n\r\n", events(numbers, true), result.len())
}

async fn count_before(script: Vec<(&'static str, String)>, cuts: &[u64]) -> ReceivedEvents {
    let relay = Relay::start(scripted(script).await).await.unwrap();
    let mut transcript = Transcript::discarded();
    let mut client = Client::new(relay.address(), &mut transcript);
    count(&mut client, &relay, cuts).await.unwrap()
}

#[tokio::test]
async fn the_client_resumes_with_the_last_id_it_received() {
    let script = vec![
        ("tools/call", events(1..=3, true)),
        ("last-event-id: h.3", events(4..=8, true)),
        ("last-event-id: h.8", last(9..=10)),
    ];
    let received = count_before(script, &[3, 8]).await;
    assert_eq!(received.verify(), Ok(()));
    assert_eq!((received.breaks, received.third.as_deref()), (2, Some("h.3")));
    assert_eq!(verify(&received, 1), Ok(()));
    assert!(verify(&received, 2).is_err(), "a tool that ran twice is no success");
}

#[tokio::test]
async fn without_an_id_a_cut_call_is_lost() {
    let received = count_before(vec![("tools/call", events(1..=3, false))], &[3]).await;
    assert_eq!((received.breaks, received.progress.as_slice()), (1, &[1, 2, 3][..]));
    assert!(received.verify().is_err());
}

#[test]
fn the_commands_are_filled_in() {
    let example = Example { session: "demo-2".to_owned(), event_id: "h.3".to_owned() };
    let commands = commands(([127, 0, 0, 1], 7000).into(), &example);
    for part in
        ["http://127.0.0.1:7000/mcp", "'Mcp-Session-Id: demo-2'", "'Last-Event-ID: h.3'", r#""params":{"name":"count""#]
    {
        assert!(commands.contains(part), "{part}");
    }
    assert!(!commands.contains("{{"));
}
