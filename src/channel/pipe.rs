//! The two directions of a channel on byte streams: one line for each message.

use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::PartialShare;
use super::link::{Input, LinkFuture, Output, WriteError};
use crate::protocol::channel::line::{Line, LineReader, to_line};
use crate::protocol::headers::Lines;

/// Time in which the server has to take some bytes of a message. After it the channel is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Room in the reader's buffer before a read.
const READ_SIZE: usize = 16 * 1024;

/// Reads lines. The end of the byte stream, an error, and a want of memory is the end of the messages; a line without its end is dropped.
#[derive(Debug)]
pub struct PipeReader<R> {
    input: R,
    lines: LineReader,
    memory: PartialShare,
}

/// Writes lines.
#[derive(Debug)]
pub struct PipeWriter<W>(W);

impl<R> PipeReader<R> {
    /// Creates a reader of lines of at most `limit` bytes. Those that have arrived in part are held in `memory`.
    pub fn new(input: R, limit: usize, memory: PartialShare) -> Self {
        Self { input, lines: LineReader::new(limit), memory }
    }
}

impl<W> PipeWriter<W> {
    /// Creates a writer.
    pub fn new(output: W) -> Self {
        Self(output)
    }
}

impl<R: AsyncRead + Send + Unpin> Input for PipeReader<R> {
    fn next(&mut self) -> LinkFuture<'_, Option<Line>> {
        Box::pin(async move {
            loop {
                if let Some(line) = self.lines.next_line() {
                    return Some(line);
                }
                if !self.memory.note(self.lines.held()) {
                    return None;
                }
                self.lines.buffer().reserve(READ_SIZE);
                match self.input.read_buf(self.lines.buffer()).await {
                    // A server that writes without end would keep all other tasks of the thread from their turns.
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
            // Each write has the whole time: a slow server is not a dead one.
            let written = tokio::time::timeout(WRITE_TIMEOUT, self.0.write_buf(&mut rest)).await??;
            if written == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            on_begin();
        }
        self.0.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::PartialMemory;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_that_have_arrived_in_part_share_a_memory() {
        const LINE: usize = 1 << 20;
        let memory = PartialMemory::new(LINE);
        let open = || {
            let (ours, theirs) = tokio::io::duplex(2 * LINE);
            (PipeReader::new(ours, 2 * LINE, memory.share()), theirs)
        };
        let ((mut one, mut to_one), (mut other, mut to_other)) = (open(), open());
        to_one.write_all(&[b'x'; LINE]).await.expect("room");
        let soon = tokio::time::timeout(Duration::from_secs(1), one.next());
        assert!(soon.await.is_err(), "it waits for the end of the line");
        to_other.write_all(b"{}\n").await.expect("room");
        assert_eq!(other.next().await, Some(Line::Whole(Bytes::from_static(b"{}"))), "usual lines need none");
        to_other.write_all(&[b'x'; LINE]).await.expect("room");
        assert_eq!(other.next().await, None, "no memory is left");
        drop(other);
        to_one.write_all(b"\n").await.expect("room");
        assert!(matches!(one.next().await, Some(Line::Whole(line)) if line.len() == LINE));
    }
}
