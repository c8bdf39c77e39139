//! A whole store in memory: every call of the contract over [`Tail`]s.
//!
//! For tests alone. In production the event log keeps the tails itself and has no store behind them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dashmap::DashMap;

use super::Tail;
use crate::protocol::ids::{AttachId, Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Batch, Outcome};
use crate::store::{Answered, Appended, Error, Pending, Read, Store, WriterEpoch};

/// Streams by id; each is locked on its own, and one lock is one atomic step.
#[derive(Default)]
pub(crate) struct Memory {
    streams: DashMap<StreamId, Arc<Mutex<Shelf>>>,
}

#[derive(Default)]
struct Shelf {
    tail: Tail,
    answered: HashSet<RequestId>,
    reader: Option<AttachId>,
}

impl Memory {
    fn with<T>(&self, stream: StreamId, act: impl FnOnce(MutexGuard<'_, Shelf>) -> T) -> Pending<Result<T, Error>> {
        // The map's guard ends before the stream's lock is waited for.
        let shelf = self.streams.get(&stream).map(|entry| entry.value().clone());
        Pending::Ready(match shelf {
            Some(shelf) => Ok(act(shelf.lock().unwrap_or_else(PoisonError::into_inner))),
            None => Err(Error::Gone),
        })
    }
}

impl Store for Memory {
    fn create(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.streams.insert(stream, Arc::default());
        Pending::Ready(Ok(WriterEpoch::default()))
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
    ) -> Pending<Result<Appended, Error>> {
        self.with(stream, |mut shelf| shelf.tail.append(epoch, after, batch))
    }

    fn seal(&self, stream: StreamId, epoch: WriterEpoch, _: Outcome) -> Pending<Result<Appended, Error>> {
        self.with(stream, |mut shelf| shelf.tail.seal(epoch))
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.with(stream, |mut shelf| shelf.tail.take_over())
    }

    fn answer(&self, stream: StreamId, request: &RequestId) -> Pending<Result<Answered, Error>> {
        self.with(
            stream,
            |mut shelf| {
                if shelf.answered.insert(request.clone()) { Answered::First } else { Answered::Again }
            },
        )
    }

    fn attach(&self, stream: StreamId, reader: AttachId) -> Pending<Result<Option<AttachId>, Error>> {
        self.with(stream, |mut shelf| shelf.reader.replace(reader))
    }

    fn read(&self, stream: StreamId, after: Seq, limit: usize) -> Pending<Result<Read, Error>> {
        let found = self.with(stream, |shelf| {
            if after < shelf.tail.trimmed() {
                return Read::Trimmed { upto: shelf.tail.trimmed() };
            }
            let events = shelf.tail.events_after(after).take(limit);
            Read::Events(events.map(|(seq, event)| (seq, Bytes::copy_from_slice(event))).collect())
        });
        match found {
            Pending::Ready(Err(Error::Gone)) => Pending::Ready(Ok(Read::Gone)),
            found => found,
        }
    }

    fn trim(&self, stream: StreamId, upto: Seq) -> Pending<Result<(), Error>> {
        self.with(stream, |mut shelf| shelf.tail.trim(upto))
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        self.streams.remove(&stream);
        Pending::Ready(Ok(()))
    }
}
