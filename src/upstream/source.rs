//! Where a pump's input comes from at the moment.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::Received;
use super::body::collect;
use super::pump::refused_by;
use super::reader::EventReader;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::stream::Ending;

/// Where the upstream's bytes come from now.
pub(super) enum Source {
    /// A request whose head is awaited; `again` is one that goes on with a stream.
    Sending {
        answer: Pin<Box<dyn Future<Output = Result<Response<Received>, Failure>> + Send>>,
        again: bool,
    },
    Reading(Box<EventReader>),
    /// The body of a JSON answer that becomes a message.
    Collecting(Pin<Box<dyn Future<Output = Collected> + Send>>),
    /// Nothing is expected until the machine says so.
    Idle,
}

pub(super) enum Input {
    Head { answer: Result<Box<Response<Received>>, Failure>, again: bool },
    Piece(Bytes),
    End(Ending),
    Body(Collected),
}

/// A JSON answer that becomes a message, or why it cannot.
pub(super) struct Collected {
    pub(super) status: StatusCode,
    pub(super) body: Result<Bytes, ErrorCode>,
}

impl Source {
    /// The body of an answer that becomes a message; `None` for one that can be none.
    pub(super) fn collecting(status: StatusCode, json: Option<Received>, limit: usize) -> Self {
        Source::Collecting(Box::pin(async move {
            let body = match json {
                Some(body) => collect(body, limit).await,
                None => Err(refused_by(status)),
            };
            Collected { status, body }
        }))
    }

    /// The next thing the upstream does. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Input {
        match self {
            Source::Sending { answer, again } => {
                let again = *again;
                Input::Head { answer: answer.await.map(Box::new), again }
            }
            Source::Reading(reader) => match reader.next().await {
                Ok(piece) => Input::Piece(piece),
                Err(ending) => Input::End(ending),
            },
            Source::Collecting(collecting) => Input::Body(collecting.await),
            Source::Idle => std::future::pending().await,
        }
    }
}
