//! HTTP/1.1 client: one connection for each call, driven by the call's own task.
//!
//! hyper's client has a task for each connection, and passes each piece of a response through a
//! channel. Here the task that wants the bytes reads them. Owned here: connections and their reuse,
//! writing a request, reading its response. Absent: framing ([`crate::protocol::http1`]), bodies
//! that are not in memory (hyper's client sends those), and retries of anything but an unwritten
//! request.

mod body;
mod error;
mod pool;
#[cfg(test)]
mod tests;
mod wire;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};

pub(super) use body::Body;
use body::BodyStart;
pub(super) use error::Error;
use pool::Pool;
use wire::{Outgoing, Wire};

use super::connect::{Connector, Socket};
use crate::protocol::headers::Lines;
use crate::protocol::http1::{self, Head, HeadReader};

/// Size limit of a body that is copied behind its head: the copy costs less than a second piece of
/// the write.
const SMALL_BODY: usize = 1024;

/// Connections of one runtime to one origin.
pub(super) struct Client {
    connector: Connector,
    pool: Arc<Pool<Socket>>,
    host: String,
}

/// A request whose body is in memory.
pub(super) struct Request<'a> {
    pub(super) method: &'a Method,
    pub(super) target: &'a str,
    /// Headers, except the headers of the body.
    pub(super) lines: &'a Lines,
    pub(super) body: &'a Bytes,
}

impl Client {
    /// Creates a client. Connects nothing yet. Requests that name no host are for `host`; an idle
    /// connection is kept for `idle`.
    pub(super) fn new(connector: Connector, host: String, idle: Duration) -> Self {
        Self { connector, pool: Pool::new(idle), host }
    }

    /// Sends a request and waits for the head of its response. Calls `on_sent` once bytes of the
    /// request have left; after that the request is never written again. Dropping the future, or
    /// the body before its end, closes the connection. `wrap` makes the body of the response, which
    /// is boxed, since it passes through many futures.
    pub(super) async fn send<B>(
        &self,
        request: Request<'_>,
        on_sent: impl FnOnce(),
        wrap: impl FnOnce(Body) -> B,
    ) -> Result<Box<Response<B>>, Error> {
        let outgoing = self.encode(&request);
        let wire = self.wire(outgoing).await?;
        on_sent();
        receive(wire, request.method, self.pool.clone(), wrap).await
    }

    fn encode(&self, request: &Request<'_>) -> Outgoing {
        let Request { method, target, lines, body } = *request;
        let (copied, apart) = if body.len() > SMALL_BODY { (&[][..], body.clone()) } else { (&body[..], Bytes::new()) };
        let mut head = http1::encode_request(method, target, &self.host, lines, body.len(), copied.len());
        head.extend_from_slice(copied);
        Outgoing::new(head, apart)
    }

    /// Returns a connection that has taken the first bytes of the request.
    async fn wire(&self, mut outgoing: Outgoing) -> Result<Wire<Socket>, Error> {
        while let Some(socket) = self.pool.take() {
            // The server may have closed the connection since the last check.
            match Wire::begin(socket, outgoing).await {
                Ok(wire) => return Ok(wire),
                Err((back, _)) => outgoing = back,
            }
        }
        // Boxed, because most calls find a connection.
        let socket = Box::pin(self.connector.connect()).await.map_err(Error::Connect)?;
        if socket.is_http2() {
            return Err(Error::Http2);
        }
        Wire::begin(socket, outgoing).await.map_err(|(_, error)| Error::Unsent(error))
    }
}

async fn receive<B>(
    mut wire: Wire<Socket>,
    method: &Method,
    pool: Arc<Pool<Socket>>,
    wrap: impl FnOnce(Body) -> B,
) -> Result<Box<Response<B>>, Error> {
    let mut reader = HeadReader::new(method);
    let begin = |head: Head, behind: &[u8]| BodyStart::new(&head, behind).map(|start| (head, start));
    let (head, start) = poll_fn(|cx| wire.poll_head(&mut reader, cx, begin)).await?;
    let mut response = Box::new(Response::new(wrap(Body::new(wire, start, pool))));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(response)
}
