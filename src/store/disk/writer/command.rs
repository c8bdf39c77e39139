//! Calls of the store on their way to the writer thread.

use std::sync::Arc;
#[cfg(test)]
use std::sync::mpsc;

use bytes::Bytes;

use crate::completion;
use crate::disk::failure::Failure;
use crate::disk::reply::Reply;
use crate::{Appended, WriterEpoch};
use mcp_resume_protocol::ids::{Seq, StreamId};

/// A call of the store.
pub(in crate::disk) struct Call {
    /// Time of the call, by the wall clock.
    pub(in crate::disk) at: u64,
    pub(in crate::disk) bytes: usize,
    pub(in crate::disk) command: Command,
}

pub(in crate::disk) enum Command {
    Create {
        stream: StreamId,
        about: Vec<u8>,
        tail: Seq,
        keep: u64,
        reply: Reply<WriterEpoch>,
    },
    Append {
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        /// Number of events.
        events: u64,
        /// The events, encoded as stored.
        batch: Vec<u8>,
        state: Option<Vec<u8>>,
        reply: Reply<Appended>,
    },
    Seal {
        stream: StreamId,
        epoch: WriterEpoch,
        state: Vec<u8>,
        keep: u64,
        reply: Reply<Appended>,
    },
    WriteWhole {
        stream: StreamId,
        about: Vec<u8>,
        /// Number of events.
        events: u64,
        /// The events, encoded as stored.
        batch: Vec<u8>,
        state: Vec<u8>,
        keep: u64,
        reply: Reply<WriterEpoch>,
    },
    TakeOver {
        stream: StreamId,
        reply: Reply<WriterEpoch>,
    },
    Trim {
        stream: StreamId,
        epoch: WriterEpoch,
        upto: Seq,
        reply: Reply<()>,
    },
    Keep {
        stream: StreamId,
        keep: u64,
        reply: Reply<()>,
    },
    Expire {
        stream: StreamId,
        reply: Reply<()>,
    },
    Put {
        key: Arc<[u8]>,
        value: Bytes,
        keep: u64,
        reply: Reply<()>,
    },
    Claim {
        key: Arc<[u8]>,
        value: Bytes,
        keep: u64,
        reply: Reply<Option<Bytes>>,
    },
    Replace {
        key: Arc<[u8]>,
        before: Bytes,
        value: Bytes,
        keep: u64,
        reply: Reply<bool>,
    },
    ExpireIfEqual {
        key: Arc<[u8]>,
        value: Bytes,
        keep: Option<u64>,
        reply: Reply<()>,
    },
    Remove {
        key: Arc<[u8]>,
        reply: Reply<()>,
    },
    /// Blocks until the test drops the sender.
    #[cfg(test)]
    Hold(mpsc::Receiver<()>),
    /// Removes all obsolete data, and waits for it.
    #[cfg(test)]
    Clean {
        reply: Reply<()>,
    },
    /// Simulates a failed write.
    #[cfg(test)]
    Fail {
        full: bool,
        reply: Reply<()>,
    },
}

impl Command {
    pub(super) fn refuse(self, failure: &Failure) {
        fn refuse<T: Send + 'static>(reply: Reply<T>, failure: &Failure) {
            completion::deliver([reply.with(Err(failure.clone().into()))]);
        }
        match self {
            Command::Create { reply, .. } | Command::WriteWhole { reply, .. } | Command::TakeOver { reply, .. } => {
                refuse(reply, failure)
            }
            Command::Append { reply, .. } | Command::Seal { reply, .. } => refuse(reply, failure),
            Command::Claim { reply, .. } => refuse(reply, failure),
            Command::Replace { reply, .. } => refuse(reply, failure),
            Command::Trim { reply, .. }
            | Command::Keep { reply, .. }
            | Command::Expire { reply, .. }
            | Command::Put { reply, .. }
            | Command::ExpireIfEqual { reply, .. }
            | Command::Remove { reply, .. } => refuse(reply, failure),
            #[cfg(test)]
            Command::Clean { reply } | Command::Fail { reply, .. } => refuse(reply, failure),
            #[cfg(test)]
            Command::Hold(_) => {}
        }
    }
}
