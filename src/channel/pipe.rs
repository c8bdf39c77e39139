//! The two directions of a channel on byte streams: one line for each message.

use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::link::{Input, LinkFuture, Memory, Output, WriteError};
use crate::protocol::channel::line::{Line, LineReader, to_line};
use crate::protocol::headers::Lines;

/// Longest wait until the server takes some bytes of a message. Then the channel is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Room in the reader's buffer before a read.
const READ_SIZE: usize = 16 * 1024;

/// Reads lines. The messages end with the byte stream, or with an error. A line without its end is
/// dropped.
#[derive(Debug)]
pub struct PipeReader<R> {
    input: R,
    lines: LineReader,
}

/// Writes lines.
#[derive(Debug)]
pub struct PipeWriter<W>(W);

impl<R> PipeReader<R> {
    /// Creates a reader of lines of at most `limit` bytes.
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, lines: LineReader::new(limit) }
    }
}

impl<W> PipeWriter<W> {
    /// Creates a writer.
    pub fn new(output: W) -> Self {
        Self(output)
    }
}

impl<R: AsyncRead + Send + Unpin> Input for PipeReader<R> {
    fn next<'a>(&'a mut self, memory: &'a mut dyn Memory) -> LinkFuture<'a, Option<Line>> {
        Box::pin(async move {
            loop {
                if let Some(line) = self.lines.next_line() {
                    return Some(line);
                }
                if let Err(code) = memory.hold(self.lines.partial()) {
                    return Some(self.lines.cut(code));
                }
                self.lines.buffer().reserve(READ_SIZE);
                match self.input.read_buf(self.lines.buffer()).await {
                    // A server that writes without end would block all other tasks of the thread.
                    Ok(READ_SIZE..) => tokio::task::yield_now().await,
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return None,
                }
            }
        })
    }
}

impl<W: AsyncWrite + Send + Unpin> Output for PipeWriter<W> {
    fn write<'a>(
        &'a mut self,
        message: Bytes,
        _: Option<&'a Lines>,
        on_begin: &'a mut (dyn FnMut() + Send),
    ) -> LinkFuture<'a, Result<(), WriteError>> {
        Box::pin(async move {
            let written = self.write_line(message, on_begin).await;
            written.map_err(|error| {
                debug!(%error, "a server takes no messages");
                WriteError::Lost
            })
        })
    }
}

impl<W: AsyncWrite + Unpin> PipeWriter<W> {
    async fn write_line(&mut self, message: Bytes, on_begin: &mut (dyn FnMut() + Send)) -> std::io::Result<()> {
        let mut rest = to_line(message).chain(Bytes::from_static(b"\n"));
        while rest.has_remaining() {
            // Each write has the whole time: a slow server is not dead.
            let written = tokio::time::timeout(WRITE_TIMEOUT, self.0.write_buf(&mut rest)).await??;
            if written == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            on_begin();
        }
        self.0.flush().await
    }
}
