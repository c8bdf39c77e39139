//! A call of Redis, and what can become of it.

use std::sync::Arc;

use ::redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::append::Append;
use super::failure::{Answer, Failure, settle};
use super::keys::Order;
use super::scripts;
use crate::store::completion::{Complete, Queue, deliver};

/// A call, and the receiver of its replies.
pub(super) struct Call {
    pub(super) work: Work,
    /// Number of replies.
    pub(super) count: usize,
    /// Calls of the same order take effect as they were made.
    pub(super) order: Order,
    tell: oneshot::Sender<Answer>,
    /// Completions of the caller's runtime.
    queue: Arc<Queue<Told>>,
    /// Called first with the reply, even if the caller has gone.
    note: Option<Note>,
}

/// Work of a call.
pub(super) enum Work {
    /// Commands, in this order.
    Steps(Vec<Cmd>),
    /// An append, by script or plain. A silent one has no replies.
    Append(Append),
}

/// A reply on its way to the caller.
pub(super) struct Told {
    tell: oneshot::Sender<Answer>,
    answer: Answer,
}

impl Complete for Told {
    fn complete(self) {
        // Who does not wait any more does not need to know.
        let _ = self.tell.send(self.answer);
    }
}

/// Callback for a reply, run before the caller is woken.
pub(super) type Note = Box<dyn FnOnce(&Answer) + Send>;

impl Call {
    /// To be answered by way of `queue`.
    pub(super) fn new(
        work: Work,
        order: Order,
        note: Option<Note>,
        queue: Arc<Queue<Told>>,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (tell, answer) = oneshot::channel();
        let count = match &work {
            Work::Steps(steps) => steps.len(),
            Work::Append(_) => 1,
        };
        (Self { work, count, order, tell, queue, note }, answer)
    }

    /// The answer and where it goes, to be delivered together with others.
    pub(super) fn answered(self, answer: Answer) -> (Arc<Queue<Told>>, Told) {
        if let Some(note) = self.note {
            note(&answer);
        }
        (self.queue, Told { tell: self.tell, answer })
    }

    /// Hands out the answer.
    pub(super) fn answer(self, answer: Answer) {
        deliver([self.answered(answer)]);
    }
}

/// Sends one command and waits; with the text of its script where Redis does not know that.
pub(super) async fn ask(connection: &mut impl ::redis::aio::ConnectionLike, cmd: &Cmd) -> Result<Value, Failure> {
    let send = async |connection: &mut _, cmd: &Cmd| {
        let value = ::redis::aio::ConnectionLike::req_packed_command(connection, cmd).await;
        let value = value.map_err(|error| Failure::of(&error))?;
        settle(vec![value]).map(|mut values| values.pop().unwrap_or_default())
    };
    match send(connection, cmd).await {
        Err(Failure::Unknown) => match scripts::in_full(cmd) {
            Some(full) => send(connection, &full).await,
            None => Err(Failure::Unknown),
        },
        result => result,
    }
}

/// A command with these arguments.
pub(super) fn cmd(args: &[&[u8]]) -> Cmd {
    let mut cmd = Cmd::new();
    for arg in args {
        cmd.arg(*arg);
    }
    cmd
}
