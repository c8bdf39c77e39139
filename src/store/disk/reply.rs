//! Replies of the writer to calls.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::failure::Failure;
use crate::completion::{Complete, Queue};
use crate::{Appended, Error};

/// Sender of the result of one call.
pub(super) struct Reply<T> {
    /// Queue of the runtime of the caller.
    queue: Arc<Queue<Completion>>,
    sender: oneshot::Sender<Result<T, Error>>,
}

/// The result of a call on its way to the caller.
pub(super) struct Completion {
    outcome: Outcome,
    /// Failure of the commit, or `None` if the group of the call was written.
    failure: Option<Arc<Failure>>,
}

enum Outcome {
    /// The frequent case, without a box.
    Append(oneshot::Sender<Result<Appended, Error>>, Result<Appended, Error>),
    Other(SendOutcome),
}

/// Sends a result, or the failure in its place.
type SendOutcome = Box<dyn FnOnce(Option<&Failure>) + Send>;

impl<T: Send + 'static> Reply<T> {
    pub(super) fn new(queue: Arc<Queue<Completion>>) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (sender, result) = oneshot::channel();
        (Self { queue, sender }, result)
    }

    /// Returns the reply with the result of a call whose group is written.
    pub(super) fn with(self, result: Result<T, Error>) -> (Arc<Queue<Completion>>, Completion) {
        let Self { queue, sender } = self;
        let outcome = Outcome::Other(Box::new(move |failure| send(sender, result, failure)));
        (queue, Completion { outcome, failure: None })
    }
}

impl Reply<Appended> {
    /// Returns the reply with the result of an append whose group is written.
    pub(super) fn with_append(self, result: Result<Appended, Error>) -> (Arc<Queue<Completion>>, Completion) {
        (self.queue, Completion { outcome: Outcome::Append(self.sender, result), failure: None })
    }
}

impl Completion {
    pub(super) fn fail(&mut self, failure: &Arc<Failure>) {
        self.failure = Some(failure.clone());
    }
}

impl Complete for Completion {
    fn complete(self) {
        let failure = self.failure.as_deref();
        match self.outcome {
            Outcome::Append(sender, result) => send(sender, result, failure),
            Outcome::Other(send) => send(failure),
        }
    }
}

fn send<T>(sender: oneshot::Sender<Result<T, Error>>, result: Result<T, Error>, failure: Option<&Failure>) {
    let result = failure.map_or(result, |failure| Err(failure.clone().into()));
    // A caller that no longer waits does not need the result.
    let _ = sender.send(result);
}
