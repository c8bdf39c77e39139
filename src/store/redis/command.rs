//! Calls of Redis and the delivery of their replies.

use std::sync::Arc;

use ::redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::append::Append;
use super::failure::{Failure, Replies, check_replies};
use super::keys::Order;
use super::scripts;
use crate::completion::{Complete, Queue, deliver};

/// A call, and the receiver of its replies.
pub(super) struct Call {
    pub(super) work: Work,
    /// Number of replies.
    pub(super) count: usize,
    /// Calls of the same order take effect as they were made.
    pub(super) order: Order,
    sender: oneshot::Sender<Replies>,
    /// Completions of the caller's runtime.
    queue: Arc<Queue<Completion>>,
    /// Called first with the reply, even if the caller has gone.
    note: Option<Note>,
}

/// Work of a call.
pub(super) enum Work {
    /// Commands, in this order.
    Steps(Vec<Cmd>),
    /// An append. It is made by a plain `XADD` if the connection has the stream's permit, else by
    /// the script, and has one reply in both cases.
    Append(Append),
}

/// Replies on their way to the caller.
pub(super) struct Completion {
    sender: oneshot::Sender<Replies>,
    replies: Replies,
}

impl Complete for Completion {
    fn complete(self) {
        // A caller that no longer waits does not need the replies.
        let _ = self.sender.send(self.replies);
    }
}

/// Callback for a reply, run before the caller is woken.
pub(super) type Note = Box<dyn FnOnce(&Replies) + Send>;

impl Call {
    /// Creates a call whose replies are delivered through `queue`.
    pub(super) fn new(
        work: Work,
        order: Order,
        note: Option<Note>,
        queue: Arc<Queue<Completion>>,
    ) -> (Self, oneshot::Receiver<Replies>) {
        let (sender, receiver) = oneshot::channel();
        let count = match &work {
            Work::Steps(steps) => steps.len(),
            Work::Append(_) => 1,
        };
        (Self { work, count, order, sender, queue, note }, receiver)
    }

    /// Returns the completion of the call with its queue, to be delivered together with others.
    pub(super) fn into_completion(self, replies: Replies) -> (Arc<Queue<Completion>>, Completion) {
        if let Some(note) = self.note {
            note(&replies);
        }
        (self.queue, Completion { sender: self.sender, replies })
    }

    /// Delivers the replies to the caller.
    pub(super) fn complete_with(self, replies: Replies) {
        deliver([self.into_completion(replies)]);
    }
}

/// Sends one command and waits for its reply. Sends the text of the script if Redis does not know
/// its hash.
pub(super) async fn ask(connection: &mut impl ::redis::aio::ConnectionLike, cmd: &Cmd) -> Result<Value, Failure> {
    let send = async |connection: &mut _, cmd: &Cmd| {
        let value = ::redis::aio::ConnectionLike::req_packed_command(connection, cmd).await;
        let value = value.map_err(|error| Failure::of(&error))?;
        check_replies(vec![value]).map(|mut values| values.pop().unwrap_or_default())
    };
    match send(connection, cmd).await {
        Err(Failure::UnknownScript) => match scripts::in_full(cmd) {
            Some(full) => send(connection, &full).await,
            None => Err(Failure::UnknownScript),
        },
        result => result,
    }
}

/// Returns a command with these arguments.
pub(super) fn cmd(args: &[&[u8]]) -> Cmd {
    let mut cmd = Cmd::new();
    for arg in args {
        cmd.arg(*arg);
    }
    cmd
}
