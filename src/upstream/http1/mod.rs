//! The client for HTTP/1.1: a connection to a call, spoken to by the call's own task.
//!
//! hyper's client has a task for each connection, and every piece of an answer crosses over from it by a channel; here the task
//! that wants the bytes reads them. Owned here: connections and their reuse, writing a request, reading its response. Absent:
//! how bytes are framed ([`crate::protocol::http1`]), bodies that are not in memory (hyper's client sends those), and
//! repeating anything but what was never written.

mod body;
mod pool;
#[cfg(test)]
mod tests;
mod wire;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};

use body::Begun;
pub(super) use body::Body;
use pool::Pool;
use wire::{Outgoing, Wire};

use super::connect::{Connector, Socket};
use crate::body::BoxError;
use crate::protocol::headers::Lines;
use crate::protocol::http1::{self, Head, HeadReader};

/// To copy a body up to this size behind its head costs less than to write two pieces.
const SMALL_BODY: usize = 1024;

/// The connections of one runtime to one origin.
pub(super) struct Client {
    connector: Connector,
    pool: Arc<Pool<Socket>>,
    host: String,
}

/// A request whose body is in memory.
pub(super) struct Request<'a> {
    pub(super) method: &'a Method,
    pub(super) target: &'a str,
    /// They say nothing of the body.
    pub(super) lines: &'a Lines,
    pub(super) body: &'a Bytes,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("there is no connection to the upstream")]
    Connect(#[source] BoxError),
    /// The server chose the other version for a new connection, on which nothing was sent.
    #[error("the upstream speaks HTTP/2")]
    Http2,
    /// Nothing of the request had left.
    #[error("the connection broke before the request")]
    Unsent(#[source] io::Error),
    #[error("the connection broke before the response")]
    Broken(#[source] io::Error),
    #[error(transparent)]
    Malformed(#[from] http1::Error),
}

impl Client {
    /// Nothing is connected yet. `host` is what requests that name none are for; a connection is kept for `idle` between two
    /// requests.
    pub(super) fn new(connector: Connector, host: String, idle: Duration) -> Self {
        Self { connector, pool: Pool::new(idle), host }
    }

    /// Sends a request and waits for the head of its response. `on_sent` is called once bytes of it have left; after that it is
    /// never written again. Dropping the future, or the body before its end, closes the connection.
    pub(super) async fn send(&self, request: Request<'_>, on_sent: impl FnOnce()) -> Result<Response<Body>, Error> {
        let outgoing = self.encode(&request);
        let wire = self.wire(outgoing).await?;
        on_sent();
        receive(wire, request.method, self.pool.clone()).await
    }

    fn encode(&self, request: &Request<'_>) -> Outgoing {
        let Request { method, target, lines, body } = *request;
        let (copied, apart) = if body.len() > SMALL_BODY { (&[][..], body.clone()) } else { (&body[..], Bytes::new()) };
        let mut head = http1::encode_request(method, target, &self.host, lines, body.len(), copied.len());
        head.extend_from_slice(copied);
        Outgoing::new(head.into(), apart)
    }

    /// A connection that has taken the first bytes of a request.
    async fn wire(&self, mut outgoing: Outgoing) -> Result<Wire<Socket>, Error> {
        while let Some(socket) = self.pool.take() {
            // The server may have closed it while nobody looked.
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

async fn receive(mut wire: Wire<Socket>, method: &Method, pool: Arc<Pool<Socket>>) -> Result<Response<Body>, Error> {
    let mut reader = HeadReader::new(method);
    let begin = |head: Head, behind: &[u8]| Begun::new(&head, behind).map(|begun| (head, begun));
    let (head, begun) = poll_fn(|cx| wire.poll_head(&mut reader, cx, begin)).await?;
    let body = Body::new(wire, begun, pool);
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(response)
}
