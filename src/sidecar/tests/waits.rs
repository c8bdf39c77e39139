//! Calls that wait for a server, with a test that decides on each attempt to connect.

use tokio::sync::oneshot;

use super::*;

type Attempt = oneshot::Sender<io::Result<DuplexStream>>;

/// Attempts to connect, each as slow as the test.
struct SlowDial(mpsc::UnboundedSender<Attempt>);

impl Dial for SlowDial {
    fn dial(&self, _: &Uri) -> DialFuture {
        let (outcome, decided) = oneshot::channel();
        self.0.send(outcome).unwrap();
        Box::pin(async move { decided.await.unwrap().map(|near| Box::new(near) as Box<dyn Wire>) })
    }
}

async fn next(attempts: &mut mpsc::UnboundedReceiver<Attempt>) -> Attempt {
    timeout(LONG, attempts.recv()).await.expect("an attempt to connect").expect("a replica")
}

fn refuse(attempt: Attempt) {
    attempt.send(Err(io::ErrorKind::ConnectionRefused.into())).unwrap();
}

fn accept(attempt: Attempt) -> Pipe {
    let (near, far) = duplex(PIPE);
    attempt.send(Ok(near)).unwrap();
    Pipe::new(far)
}

/// Starts a replica with a call that waits and whose second attempt to connect has begun.
async fn connecting() -> (Replica, Pipe, mpsc::UnboundedReceiver<Attempt>, Attempt) {
    let (dial, mut attempts) = mpsc::unbounded_channel();
    let replica = Replica::by(&TestStore::default(), 1, Arc::new(SlowDial(dial)), OnUnreachable::Degrade).await;
    let client = replica.send(&post(1, "")).await;
    refuse(next(&mut attempts).await);
    let second = next(&mut attempts).await;
    (replica, client, attempts, second)
}

fn cancel() -> String {
    post_of(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#, "")
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_it_connects_is_withdrawn_before_its_cancel_is_sent() {
    let (replica, _client, mut attempts, second) = connecting().await;
    let cancelled = clock::now();
    let _cancelling = replica.send(&cancel()).await;
    let third = next(&mut attempts).await;
    assert!(second.is_closed(), "the call connects no longer");
    assert_eq!(clock::now(), cancelled, "no time limit has passed");
    accept(third).until("notifications/cancelled").await;
    settle().await;
    assert!(attempts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn the_cancel_of_a_call_that_was_just_sent_follows_it() {
    let (replica, _client, mut attempts, second) = connecting().await;
    let mut call = accept(second);
    call.until("tools/call").await;
    let _cancelling = replica.send(&cancel()).await;
    accept(next(&mut attempts).await).until("notifications/cancelled").await;
    call.json(RESULT).await;
}

#[tokio::test(start_paused = true)]
async fn the_next_call_tries_to_connect_while_the_response_to_one_that_waited_is_awaited() {
    let (replica, _client, mut attempts, second) = connecting().await;
    let mut call = accept(second);
    call.until("tools/call").await;
    // The server closes its port, and finishes the call.
    let _other = replica.send(&post(2, "")).await;
    refuse(next(&mut attempts).await);
    accept(next(&mut attempts).await).until("tools/call").await;
}

/// Responds to a request on a connection that ends with the response.
async fn respond(pipe: &mut Pipe, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}");
    pipe.write(&format!("{head}Content-Length: {length}\r\n\r\n{body}")).await;
}

/// Responds to an `initialize`. The session gets this name.
async fn open(attempt: Attempt, name: &str) {
    let mut opening = accept(attempt);
    opening.until("\r\n\r\n{").await;
    opening.until(r#""method":"initialize""#).await;
    let (_, body) = opening.seen.split_once("\r\n\r\n").unwrap();
    let id = serde_json::from_str::<serde_json::Value>(body).unwrap()["id"].clone();
    let info = serde_json::json!({ "name": "server", "version": "1" });
    let result = serde_json::json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info });
    let result = serde_json::json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    respond(&mut opening, "200 OK", &format!("Mcp-Session-Id: {name}\r\n"), &result).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_sent_again_in_a_new_session_tries_to_connect_until_it_can() {
    let (dial, mut attempts) = mpsc::unbounded_channel();
    let replica = Replica::by(&TestStore::default(), 1, Arc::new(SlowDial(dial)), OnUnreachable::Degrade).await;
    let params = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let initialize = format!(r#"{{"jsonrpc":"2.0","id":0,"params":{params},"method":"initialize"}}"#);
    let opening = replica.send(&post_of(&initialize, "").replace("Mcp-Session-Id: s\r\n", "")).await;
    open(next(&mut attempts).await, "s").await;
    opening.answer("serverInfo").await;
    let client = replica.send(&post(1, "")).await;
    let mut refused = accept(next(&mut attempts).await);
    refused.until("tools/call").await;
    respond(&mut refused, "404 Not Found", "", "Session not found").await;
    let mut asked = accept(next(&mut attempts).await);
    asked.until("ping").await;
    respond(&mut asked, "404 Not Found", "", "Session not found").await;
    open(next(&mut attempts).await, "t").await;
    // The server has closed its port.
    for _ in 0..3 {
        refuse(next(&mut attempts).await);
    }
    let mut call = accept(next(&mut attempts).await);
    call.until("tools/call").await;
    assert!(call.seen.to_lowercase().contains("mcp-session-id: t\r\n"), "{}", call.seen);
    call.json(RESULT).await;
    client.answer(RESULT).await;
    assert!(attempts.try_recv().is_err());
}
