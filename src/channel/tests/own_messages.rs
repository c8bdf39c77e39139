//! Messages of the channel itself to a server that takes headers.

use std::collections::VecDeque;

use super::super::connection::{Connection, End, Users};
use super::super::limits::Limits;
use super::super::link::{Input, Output, WriteError};
use super::*;
use crate::protocol::channel::line::Line;
use crate::protocol::jsonrpc;

/// Messages of a server that it sends at once, and no end.
struct Said(VecDeque<Line>);

/// Messages for a server, with their `Authorization`.
struct Written(mpsc::UnboundedSender<(Value, Option<String>)>);

impl Input for Said {
    fn next(&mut self) -> LinkFuture<'_, Option<Line>> {
        let next = self.0.pop_front();
        Box::pin(async move { if next.is_some() { next } else { std::future::pending().await } })
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
async fn the_cancel_of_a_call_has_the_headers_of_the_call() {
    let (written, mut messages) = mpsc::unbounded_channel();
    let metrics = Arc::new(Metrics::new(&Registrar::default()).expect("new names"));
    let limits = Limits { response_bytes: 1 << 20, outgoing_bytes: 1 << 20, metrics };
    let (input, output) = (Box::new(Said(VecDeque::new())), Box::new(Written(written)));
    let (connection, _reader) = Connection::start(Users::Session, limits, input, output);
    let mut head = headers::Lines::default();
    head.push(&http::header::AUTHORIZATION, &http::HeaderValue::from_static("Bearer t"));
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
    let peeked = jsonrpc::peek(&body).expect("a request");
    let call = connection.call(peeked.messages(), &body, Some(head), None, Box::new(|| {}));
    let mut waiting = call.expect("room");
    waiting.begun().await;
    let credentials = Some("Bearer t".to_owned());
    let (message, of_call) = within(messages.recv()).await.expect("the call");
    assert_eq!((&message["method"], of_call), (&json!("tools/call"), credentials.clone()));
    drop(waiting);
    let (message, of_cancel) = within(messages.recv()).await.expect("the cancel");
    assert_eq!((&message["method"], of_cancel), (&json!("notifications/cancelled"), credentials));
    connection.end(End::Closed);
}
