//! Messages of the channel itself to a server that takes headers.

use super::super::connection::{Connection, End, Users};
use super::super::limits::Limits;
use super::super::link::{Input, Memory, Output, WriteError};
use super::super::partial::PartialMemory;
use super::*;
use crate::protocol::channel::line::Line;
use crate::protocol::jsonrpc;

/// Messages of a server.
struct Said(mpsc::UnboundedReceiver<Line>);

/// Messages for a server, with their `Authorization`.
struct Written(mpsc::UnboundedSender<(Value, Option<String>)>);

impl Input for Said {
    fn next<'a>(&'a mut self, _: &'a mut dyn Memory) -> LinkFuture<'a, Option<Line>> {
        Box::pin(self.0.recv())
    }
}

impl Output for Written {
    fn write<'a>(
        &'a mut self,
        message: Bytes,
        head: Option<&'a headers::Lines>,
        on_begin: &'a mut (dyn FnMut() + Send),
    ) -> LinkFuture<'a, Result<(), WriteError>> {
        on_begin();
        let head = head.and_then(|head| head.get(&http::header::AUTHORIZATION));
        let credentials = head.map(|value| String::from_utf8_lossy(value).into_owned());
        let message = serde_json::from_slice(&message).expect("JSON");
        self.0.send((message, credentials)).expect("the test goes on");
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn messages_about_a_call_and_after_it_have_its_headers() {
    let (written, mut messages) = mpsc::unbounded_channel();
    let (says, said) = mpsc::unbounded_channel();
    let metrics = Arc::new(Metrics::unregistered());
    let unclaimed = PartialMemory::new(1 << 20);
    let [message_bytes, response_bytes, outgoing_bytes] = [1 << 20; 3];
    let limits = Limits { message_bytes, response_bytes, outgoing_bytes, answers_pings: true, unclaimed, metrics };
    let (input, output) = (Box::new(Said(said)), Box::new(Written(written)));
    let (connection, _reader) = Connection::start(Users::Session, limits, &Handle::current(), input, output);
    let mut head = headers::Lines::default();
    head.push(&http::header::AUTHORIZATION, &http::HeaderValue::from_static("Bearer t"));
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
    let peeked = jsonrpc::peek(&body).expect("a request");
    let call = connection.call(Some(Connection::ONLY), peeked.messages(), &body, Some(head), None, Box::new(|| {}));
    let mut waiting = call.expect("room");
    waiting.begun().await;
    let credentials = Some("Bearer t".to_owned());
    let (message, of_call) = within(messages.recv()).await.expect("the call");
    assert_eq!((&message["method"], of_call), (&json!("tools/call"), credentials.clone()));
    drop(waiting);
    let (message, of_cancel) = within(messages.recv()).await.expect("the cancel");
    assert_eq!((&message["method"], of_cancel), (&json!("notifications/cancelled"), credentials.clone()));
    let ping = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    says.send(Line::Whole(ping)).expect("it is read");
    let (message, of_reply) =
        within(messages.recv()).await.expect("the reply to a ping that no client is there to answer");
    assert_eq!((&message["id"], &message["result"], of_reply), (&json!("p"), &json!({}), credentials));
    connection.end(End::Closed);
}
