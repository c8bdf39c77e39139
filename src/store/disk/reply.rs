//! Replies of the writer to calls.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::failure::Failure;
use crate::store::completion::{Complete, Queue};
use crate::store::{Appended, Error};

/// Sender of the result of one call.
pub(super) struct Reply<T> {
    /// Queue of the runtime of the caller.
    queue: Arc<Queue<Answer>>,
    tell: oneshot::Sender<Result<T, Error>>,
}

/// A result on its way to the caller.
pub(super) struct Answer {
    said: Said,
    /// Failure of the commit, or `None` if the group of the call was written.
    failure: Option<Arc<Failure>>,
}

enum Said {
    /// The frequent case, without a box.
    Append(oneshot::Sender<Result<Appended, Error>>, Result<Appended, Error>),
    Other(Tell),
}

/// Sends a result, or the failure in its place.
type Tell = Box<dyn FnOnce(Option<&Failure>) + Send>;

impl<T: Send + 'static> Reply<T> {
    pub(super) fn new(queue: Arc<Queue<Answer>>) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (tell, result) = oneshot::channel();
        (Self { queue, tell }, result)
    }

    /// Returns the reply with the result of a call whose group is written.
    pub(super) fn with(self, result: Result<T, Error>) -> (Arc<Queue<Answer>>, Answer) {
        let Self { queue, tell } = self;
        let said = Said::Other(Box::new(move |failure| send(tell, result, failure)));
        (queue, Answer { said, failure: None })
    }
}

impl Reply<Appended> {
    /// Returns the reply with the result of an append whose group is written.
    pub(super) fn with_append(self, result: Result<Appended, Error>) -> (Arc<Queue<Answer>>, Answer) {
        (self.queue, Answer { said: Said::Append(self.tell, result), failure: None })
    }
}

impl Answer {
    pub(super) fn fail(&mut self, failure: &Arc<Failure>) {
        self.failure = Some(failure.clone());
    }
}

impl Complete for Answer {
    fn complete(self) {
        let failure = self.failure.as_deref();
        match self.said {
            Said::Append(tell, result) => send(tell, result, failure),
            Said::Other(tell) => tell(failure),
        }
    }
}

fn send<T>(tell: oneshot::Sender<Result<T, Error>>, result: Result<T, Error>, failure: Option<&Failure>) {
    let result = failure.map_or(result, |failure| Err(failure.clone().into()));
    // A caller that no longer waits does not need the result.
    let _ = tell.send(result);
}
