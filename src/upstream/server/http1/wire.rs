//! One connection with a request in flight.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::Error;
use crate::protocol::http1::{self, Head, HeadReader};

/// Size limit of one read.
const READ_MAX: usize = 64 * 1024;
/// Size limit of the first write of a request. It fits in one TLS record, which a peer cannot read
/// in part. So after a failed write, no byte of the request has left.
const FIRST_WRITE_MAX: usize = 16 * 1024;

thread_local! {
    // In use within one poll only, so that an idle connection holds no buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_MAX]);
}

/// Unwritten rest of a request.
#[derive(Debug)]
pub(super) struct Outgoing {
    head: Vec<u8>,
    /// Written bytes of the head.
    written: usize,
    body: Bytes,
    /// True once all of it has left: TLS may hold written data until its socket is ready.
    is_flushed: bool,
}

impl Outgoing {
    pub(super) fn new(head: Vec<u8>, body: Bytes) -> Self {
        Self { head, written: 0, body, is_flushed: false }
    }

    fn is_empty(&self) -> bool {
        self.written == self.head.len() && self.body.is_empty()
    }

    fn advance(&mut self, written: usize) {
        let of_head = written.min(self.head.len() - self.written);
        self.written += of_head;
        self.body.advance(written - of_head);
        if self.is_empty() {
            // The written bytes are not kept while the response is awaited.
            *self = Self::new(Vec::new(), Bytes::new());
        }
    }

    /// Writes once, between one and `max` bytes.
    fn poll_write<S>(&mut self, socket: &mut S, max: usize, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        let head = &self.head[self.written..];
        let head = &head[..head.len().min(max)];
        let body = &self.body[..self.body.len().min(max - head.len())];
        let pieces = [IoSlice::new(head), IoSlice::new(body)];
        let pieces = if head.is_empty() { &pieces[1..] } else { &pieces[..] };
        match ready!(Pin::new(socket).poll_write_vectored(cx, pieces))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => {
                self.advance(written);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Writes and flushes all of it.
    fn poll_leave<S>(&mut self, socket: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            ready!(self.poll_write(socket, usize::MAX, cx))?;
        }
        if !self.is_flushed {
            ready!(Pin::new(socket).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// Connection with a request in flight. Dropping it closes it.
pub(super) struct Wire<S> {
    socket: S,
    outgoing: Outgoing,
    /// True if the rest of the request could not be written. The server may have sent a response
    /// before it broke off.
    is_broken: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Writes the first bytes of a request.
    ///
    /// # Errors
    /// Returns the request if no byte of it left.
    pub(super) async fn begin(mut socket: S, mut outgoing: Outgoing) -> Result<Self, (Outgoing, io::Error)> {
        match poll_fn(|cx| outgoing.poll_write(&mut socket, FIRST_WRITE_MAX, cx)).await {
            Ok(()) => Ok(Self { socket, outgoing, is_broken: false }),
            Err(error) => Err((outgoing, error)),
        }
    }

    /// Reads the response head, and returns the result of `take` for it and the bytes that arrived
    /// behind it. Writes the rest of the request meanwhile.
    pub(super) fn poll_head<T>(
        &mut self,
        reader: &mut HeadReader,
        cx: &mut Context<'_>,
        take: impl Fn(Head, &[u8]) -> Result<T, http1::Error>,
    ) -> Poll<Result<T, Error>> {
        loop {
            let read = |piece: &[u8]| {
                let found = reader.handle_piece(piece)?;
                Ok::<_, Error>(found.map(|(head, behind)| take(head, behind)).transpose()?)
            };
            match ready!(self.poll_read(cx, read)).map_err(Error::Broken)? {
                Some(found) => match found? {
                    Some(found) => return Poll::Ready(Ok(found)),
                    None => continue,
                },
                None => return Poll::Ready(Err(Error::Broken(io::ErrorKind::UnexpectedEof.into()))),
            }
        }
    }

    /// Reads once, and passes the bytes to `take`. Returns `None` if the server has closed the
    /// connection.
    pub(super) fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<Option<T>>> {
        self.write_on(cx);
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
            Poll::Ready(Ok(Some(buffer.filled()).filter(|piece| !piece.is_empty()).map(take)))
        })
    }

    fn write_on(&mut self, cx: &mut Context<'_>) {
        if !self.is_broken && !self.outgoing.is_flushed {
            self.is_broken = matches!(self.outgoing.poll_leave(&mut self.socket, cx), Poll::Ready(Err(_)));
        }
    }

    /// Returns the connection for another request, or `None` if this request is not completely
    /// written.
    pub(super) fn into_idle(self) -> Option<S> {
        if self.outgoing.is_flushed && !self.is_broken { Some(self.socket) } else { None }
    }
}
