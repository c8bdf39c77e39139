//! Where the answers to calls go.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::database::Failure;
use crate::store::completion::{Complete, Queue};
use crate::store::{Appended, Error};

/// Who waits for a call.
pub(super) struct Reply<T> {
    /// In its runtime.
    queue: Arc<Queue<Answer>>,
    tell: oneshot::Sender<Result<T, Error>>,
}

/// An answer on its way.
pub(super) struct Answer {
    said: Said,
    /// The group of the call was not written.
    failure: Option<Arc<Failure>>,
}

enum Said {
    /// The many.
    Append(oneshot::Sender<Result<Appended, Error>>, Result<Appended, Error>),
    Other(Tell),
}

/// Hands out a result, or the failure in its place.
type Tell = Box<dyn FnOnce(Option<&Failure>) + Send>;

impl<T: Send + 'static> Reply<T> {
    pub(super) fn new(queue: Arc<Queue<Answer>>) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (tell, result) = oneshot::channel();
        (Self { queue, tell }, result)
    }

    /// The answer, if the group of the call is written.
    pub(super) fn with(self, result: Result<T, Error>) -> (Arc<Queue<Answer>>, Answer) {
        let Self { queue, tell } = self;
        let said = Said::Other(Box::new(move |failure| send(tell, result, failure)));
        (queue, Answer { said, failure: None })
    }
}

impl Reply<Appended> {
    /// The same for an append.
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
    // Who does not wait any more does not need to know.
    let _ = tell.send(result);
}
