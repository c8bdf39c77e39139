//! The host's side of stdout: one line for each message.
//!
//! Owned here: the queue of lines, its end without a reader, and the rule that only responses are
//! written before the host has said `initialized`. Invariant: a line is written whole, or stdout
//! has ended. The queue is short: a writer waits for the host, and reads on from the log then.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use crate::protocol::channel::line::to_line;

/// Lines that wait for the host.
const QUEUE: usize = 16;
/// Lines up to this size are written together.
const JOINED: usize = 64 * 1024;

/// Writer of lines. Clones share one queue.
#[derive(Clone)]
pub(super) struct Output {
    lines: mpsc::Sender<Bytes>,
    /// True once messages other than responses may be written.
    is_open: Arc<watch::Sender<bool>>,
}

/// The task that writes, and its end.
pub(super) struct Writing<W> {
    output: W,
    lines: mpsc::Receiver<Bytes>,
}

impl Output {
    /// Creates a writer to `output`.
    pub(super) fn new<W>(output: W) -> (Self, Writing<W>) {
        let (sender, lines) = mpsc::channel(QUEUE);
        (Self { lines: sender, is_open: Arc::new(watch::channel(false).0) }, Writing { output, lines })
    }

    /// Writes a response of the far side or of our own.
    pub(super) async fn respond(&self, message: Bytes) {
        // Fails without a reader: the process is about to end.
        let _ = self.lines.send(message).await;
    }

    /// Writes a request or a notification, once such messages may be written.
    pub(super) async fn write(&self, message: Bytes) {
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        let _ = self.lines.send(message).await;
    }

    /// Lets requests and notifications pass from now on.
    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// Resolves when the host reads no more.
    pub(super) async fn closed(&self) {
        self.lines.closed().await;
    }
}

impl<W: AsyncWrite + Unpin> Writing<W> {
    /// Writes until all [`Output`]s are dropped, or the host reads no more.
    pub(super) async fn run(mut self) {
        let mut buffer = BytesMut::new();
        while let Some(line) = self.lines.recv().await {
            push(&mut buffer, line);
            while buffer.len() < JOINED
                && let Ok(line) = self.lines.try_recv()
            {
                push(&mut buffer, line);
            }
            if self.output.write_all(&buffer).await.is_err() || self.output.flush().await.is_err() {
                return;
            }
            buffer.clear();
            if buffer.capacity() > 2 * JOINED {
                buffer = BytesMut::new();
            }
        }
    }
}

fn push(buffer: &mut BytesMut, message: Bytes) {
    buffer.extend_from_slice(&to_line(message));
    buffer.extend_from_slice(b"\n");
}
