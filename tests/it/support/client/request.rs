//! Requests of the test client, with the spelling of each header.

use super::{Client, Response};
use serde_json::Value;
use std::net::SocketAddr;

/// A request yet to be sent. Header names keep their spelling.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str) -> Request {
        Request { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    /// A POST to the endpoint with the headers of every SDK client.
    pub(crate) fn post(body: impl AsRef<[u8]>) -> Request {
        let mut request = Request::new("POST", "/mcp")
            .with("Content-Type", "application/json")
            .with("Accept", "application/json, text/event-stream");
        request.body = Some(body.as_ref().to_vec());
        request
    }

    /// A GET that accepts an event stream.
    pub(crate) fn get() -> Request {
        Request::new("GET", "/mcp").with("Accept", "text/event-stream")
    }

    /// Sets a header, in place of any of that name.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Request {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a header beside any of that name.
    pub(crate) fn and(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Request {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn method(mut self, method: &str) -> Request {
        self.method = method.to_owned();
        self
    }

    /// Any method may have one.
    pub(crate) fn with_body(mut self, body: impl AsRef<[u8]>) -> Request {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    pub(crate) fn target(mut self, target: &str) -> Request {
        self.target = target.to_owned();
        self
    }

    pub(crate) fn resume_from(self, id: &str) -> Request {
        self.with("Last-Event-ID", id)
    }

    /// The request as it goes over the wire.
    pub(crate) fn bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {addr}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body());
        bytes
    }

    /// Returns the method and the target.
    pub(crate) fn line(&self) -> (&str, &str) {
        (&self.method, &self.target)
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.body.as_deref().unwrap_or_default()
    }

    /// The id of the JSON-RPC request it carries.
    pub(crate) fn rpc_id(&self) -> Value {
        let message: Value = serde_json::from_slice(self.body()).expect("a JSON body");
        message["id"].clone()
    }

    /// Returns the head alone, without `Content-Length`.
    pub(crate) fn head_bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut head = self.clone();
        head.body = None;
        head.bytes(addr)
    }

    /// Sends it on a connection of its own and does not wait for an answer.
    pub(crate) async fn start(&self, addr: SocketAddr) -> Client {
        let mut client = Client::connect(addr).await;
        client.send(&self.bytes(addr)).await;
        client
    }

    /// Sends it on a connection of its own and waits for the answer's head.
    pub(crate) async fn send(&self, addr: SocketAddr) -> Response {
        self.start(addr).await.response().await
    }
}
