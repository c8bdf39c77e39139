//! Limit of the open connections, and the refusal of one more.
//!
//! A connection over the limit is accepted, refused and closed, as Envoy and nginx do it (nginx
//! without a response). So its client knows at once. A connection that stays in the kernel's queue
//! waits for a place that may never come.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::respond;
use mcp_resume_protocol::error::ErrorCode;

/// Divisor of the connection limit: this share of it may be busy with a refusal. Beyond it,
/// connections are closed without one.
const REFUSAL_SHARE: usize = 16;
/// Limits, in time and bytes, of the read from a refused client, so that it can read the refusal.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024;

/// Limit of a listener's open connections, shared by all threads that serve them.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    max: usize,
    connections: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

/// Place of one connection, held while it is open.
#[derive(Debug)]
pub struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    /// Returns a limit of `max` connections.
    pub fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        let refusals = max.div_ceil(REFUSAL_SHARE);
        Self { max, connections: Arc::new(Semaphore::new(max)), refusals: Arc::new(Semaphore::new(refusals)) }
    }

    /// Largest number of connections.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns the largest number of connections under a limit of `max`, including connections that
    /// are being refused.
    pub fn with_refusals(max: usize) -> usize {
        max + max.div_ceil(REFUSAL_SHARE)
    }

    /// Returns the place of one more connection, or `None` if the limit is reached.
    pub fn try_acquire(&self) -> Option<ConnectionPermit> {
        acquire(&self.connections)
    }

    /// Returns the place of one more connection that is refused, or `None` if too many are being
    /// refused.
    pub(super) fn try_acquire_refusal(&self) -> Option<ConnectionPermit> {
        acquire(&self.refusals)
    }
}

fn acquire(semaphore: &Arc<Semaphore>) -> Option<ConnectionPermit> {
    let permit = semaphore.clone().try_acquire_owned().ok()?;
    Some(ConnectionPermit { _permit: permit })
}

/// Sends a refusal and closes the connection.
pub(super) async fn refuse<Io: AsyncRead + AsyncWrite + Unpin>(mut io: Io, _permit: ConnectionPermit) {
    let refusing = async {
        io.write_all(&refusal().await).await?;
        io.shutdown().await?;
        // Closing a socket with unread bytes would reset it and take the refusal back.
        let mut unread = (&mut io).take(LINGER_BYTES as u64);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await
    };
    // The client may not listen.
    let _ = tokio::time::timeout(LINGER, refusing).await;
}

/// Returns the refusal in HTTP/1.1.
async fn refusal() -> Vec<u8> {
    let (parts, body) = respond::refusal(ErrorCode::TooManyConnections).into_parts();
    let body = body.collect().await.map_or(Bytes::new(), |body| body.to_bytes());
    let mut wire =
        format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", parts.status, body.len()).into_bytes();
    for (name, value) in &parts.headers {
        wire.extend_from_slice(name.as_str().as_bytes());
        wire.extend_from_slice(b": ");
        wire.extend_from_slice(value.as_bytes());
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"\r\n");
    wire.extend_from_slice(&body);
    wire
}
