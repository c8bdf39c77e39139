//! Responses, as their bytes, events or JSON.

use super::{Client, End};
use crate::support::sse::{Frame, Parser};
use crate::support::wire::{Framing, Head};
use serde_json::Value;

/// An answer whose head has come.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: Head,
    framing: Framing,
    client: Client,
    /// Decoded and not yet handed out.
    body: Vec<u8>,
    parser: Parser,
    end: Option<End>,
    last_id: Option<String>,
}

impl Response {
    /// A response of which the head has been read.
    pub(super) fn new(client: Client, head: Head, status: u16) -> Response {
        Response {
            status,
            framing: Framing::of_response(&head, status),
            head,
            client,
            body: Vec::new(),
            parser: Parser::default(),
            end: None,
            last_id: None,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub(crate) fn is_sse(&self) -> bool {
        self.header("content-type").is_some_and(|t| t.starts_with("text/event-stream"))
    }

    /// Asserts the head of an event stream.
    pub(crate) fn sse(self) -> Response {
        assert_eq!(self.status, 200, "{:?}", self.head);
        assert!(self.is_sse(), "{:?}", self.head);
        self
    }

    /// The `id` of the last whole frame read.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The next frame, comments included; `None` at the end.
    pub(crate) async fn any_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parser.next() {
                if frame.id.is_some() {
                    self.last_id.clone_from(&frame.id);
                }
                return Some(frame);
            }
            if !self.more("the next frame").await {
                return None;
            }
            self.parser.push(&mut self.body);
        }
    }

    /// The next frame that is more than a comment; `None` at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any_frame().await?;
            if !frame.is_comment() {
                return Some(frame);
            }
        }
    }

    /// The empty first event of a stream or of a resumed connection.
    pub(crate) async fn prime(&mut self) -> Frame {
        let frame = self.frame().await.expect("a first event");
        assert!(!frame.is_event(), "not an empty event: {frame:?}");
        assert!(matches!(frame.event.as_deref(), None | Some("prime")), "another type: {frame:?}");
        assert!(frame.id.is_some(), "no id: {frame:?}");
        frame
    }

    /// The next event with data.
    pub(crate) async fn event(&mut self) -> Frame {
        loop {
            let frame = self.frame().await;
            let frame = frame.unwrap_or_else(|| panic!("the response ended: {:?}", self.end));
            if frame.is_event() {
                return frame;
            }
        }
    }

    /// All events with data to the end of the response, and how it ended.
    pub(crate) async fn events(&mut self) -> (Vec<Frame>, End) {
        let mut events = Vec::new();
        while let Some(frame) = self.frame().await {
            if frame.is_event() {
                events.push(frame);
            }
        }
        (events, self.end.expect("the body was read to its end"))
    }

    /// All frames but comments to the end of the response.
    pub(crate) async fn frames(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }

    /// The whole body, which must end as promised.
    pub(crate) async fn body(&mut self) -> Vec<u8> {
        let (body, end) = self.try_body().await;
        assert_eq!(end, End::Complete, "{}", String::from_utf8_lossy(&body));
        body
    }

    pub(crate) async fn try_body(&mut self) -> (Vec<u8>, End) {
        let mut body = Vec::new();
        while self.more("the rest of the body").await {
            body.append(&mut self.body);
        }
        body.append(&mut self.body);
        (body, self.end.expect("the body was read to its end"))
    }

    pub(crate) async fn json(&mut self) -> Value {
        let body = self.body().await;
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&body)))
    }

    /// Asserts that nothing but frames without data follows, and that the body ends as promised.
    pub(crate) async fn ends(&mut self) {
        let (events, end) = self.events().await;
        assert_eq!(events, vec![], "no further event");
        assert_eq!(end, End::Complete);
    }

    /// Reads some more of the body; false at its end.
    async fn more(&mut self, what: &str) -> bool {
        loop {
            let before = self.body.len();
            self.framing.decode(&mut self.client.input, &mut self.body);
            if self.body.len() > before {
                return true;
            }
            if self.framing.done() {
                self.end = Some(End::Complete);
                return false;
            }
            if let Some(end) = self.client.fill(what).await {
                let to_end = matches!(self.framing, Framing::Close) && end == End::Broken;
                self.end = Some(if to_end { End::Complete } else { end });
                return false;
            }
        }
    }

    /// Returns the number of bytes read from the connection.
    pub(crate) fn read(&self) -> usize {
        self.client.read()
    }

    /// The sizes of the reads so far.
    pub(crate) fn reads(&self) -> &[usize] {
        &self.client.reads
    }

    /// Returns the end of the response, once it has come.
    pub(crate) fn end(&self) -> Option<End> {
        self.end
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) fn reset(self) {
        self.client.reset();
    }

    /// Ends the connection with a FIN.
    pub(crate) fn fin(self) {
        drop(self.client);
    }

    /// Sends bytes on the connection while the response runs.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.client.send(bytes).await;
    }

    /// Ends the sending side only.
    pub(crate) async fn half_close(&mut self) {
        self.client.half_close().await;
    }

    /// The connection, for another request; the body must have been read.
    pub(crate) fn into_client(self) -> Client {
        assert_eq!(self.end, Some(End::Complete), "the body is read first");
        self.client
    }
}
