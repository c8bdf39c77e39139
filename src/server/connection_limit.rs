//! How many connections there may be, and the answer to one more.
//!
//! It is accepted, told so, and closed, as Envoy and nginx do it (nginx without a word): a client knows at once, whereas one
//! that is left in the kernel's queue waits for a place that nobody promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::respond;
use crate::protocol::error::ErrorCode;

/// So many refusals are told at once, as a part of the connections there may be; beyond them, connections are just closed.
const TOLD: usize = 16;
/// A refused client is listened to for so long and so far, so that it gets to read the refusal.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024;

/// The places of one listener, on whatever thread its connections are served.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    taken: AtomicUsize,
    refused: AtomicUsize,
}

/// One place, for as long as this lives.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    refused: bool,
}

impl Seats {
    /// For so many connections at once.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0), refused: AtomicUsize::new(0) })
    }

    /// Returns the largest number of connections where so many have a place, those that are being refused included.
    pub fn with_refused(most: usize) -> usize {
        most + most.div_ceil(TOLD)
    }

    /// A place for one more connection.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        self.take_of(&self.taken, self.most, false)
    }

    /// A place for one more connection that is only told that there is none.
    pub(super) fn take_refused(self: &Arc<Self>) -> Option<Seat> {
        self.take_of(&self.refused, self.most.div_ceil(TOLD), true)
    }

    fn take_of(self: &Arc<Self>, taken: &AtomicUsize, most: usize, refused: bool) -> Option<Seat> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Seat { seats: self.clone(), refused })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let taken = if self.refused { &self.seats.refused } else { &self.seats.taken };
        taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a client that there is no place, and closes.
pub(super) async fn refuse<Io: AsyncRead + AsyncWrite + Unpin>(mut io: Io, _seat: Seat) {
    let telling = async {
        io.write_all(&refusal().await).await?;
        io.shutdown().await?;
        // What came before the refusal was read, and is not: closing now would take the refusal back.
        let mut left = (&mut io).take(LINGER_BYTES as u64);
        tokio::io::copy(&mut left, &mut tokio::io::sink()).await
    };
    // Whether the client listened changes nothing.
    let _ = tokio::time::timeout(LINGER, telling).await;
}

/// The refusal as it goes over the wire, whatever was asked.
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
