//! Where a pump's input comes from at the moment.

use std::future::Future;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body_util::BodyExt;

use super::ResponseBody;
use super::sse_reader::EventReader;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::stream::Ending;

/// Where the upstream's bytes come from now.
pub(super) enum InputSource {
    /// A request whose head is awaited; `again` is one that goes on with a stream.
    Sending {
        answer: Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Failure>> + Send>>,
        again: bool,
    },
    Reading(Box<EventReader>),
    /// The body of a JSON answer that becomes a message.
    Collecting(Box<Collecting>),
    /// Nothing is expected until the machine says so.
    Idle,
}

pub(super) enum UpstreamInput {
    Head {
        answer: Result<Box<Response<ResponseBody>>, Failure>,
        again: bool,
    },
    Piece(Bytes),
    End(Ending),
    /// The answer that is collected has grown to so many bytes.
    Grown(usize),
    Body(Collected),
}

/// A JSON answer that becomes a message, or why it cannot.
pub(super) struct Collected {
    pub(super) status: StatusCode,
    pub(super) body: Result<Bytes, ErrorCode>,
}

/// One on its way.
pub(super) struct Collecting {
    status: StatusCode,
    /// `None`: it can be no message.
    body: Option<ResponseBody>,
    kept: BytesMut,
    limit: usize,
}

impl Collecting {
    /// The next piece of it. Dropping the future loses nothing.
    async fn next(&mut self) -> UpstreamInput {
        let status = self.status;
        let Some(body) = &mut self.body else {
            return UpstreamInput::Body(Collected { status, body: Err(refused_by(status)) });
        };
        let failed = match body.frame().await {
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                self.kept.extend_from_slice(&data);
                if self.kept.len() <= self.limit {
                    return UpstreamInput::Grown(self.kept.capacity());
                }
                ErrorCode::EventTooLarge
            }
            Some(Err(_)) => ErrorCode::UpstreamBroke,
            None => {
                return UpstreamInput::Body(Collected { status, body: Ok(std::mem::take(&mut self.kept).freeze()) });
            }
        };
        UpstreamInput::Body(Collected { status, body: Err(failed) })
    }
}

impl InputSource {
    /// The body of an answer that becomes a message; `None` for one that can be none.
    pub(super) fn collecting(status: StatusCode, json: Option<ResponseBody>, limit: usize) -> Self {
        InputSource::Collecting(Box::new(Collecting { status, body: json, kept: BytesMut::new(), limit }))
    }

    /// The next thing the upstream does. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> UpstreamInput {
        match self {
            InputSource::Sending { answer, again } => {
                let again = *again;
                UpstreamInput::Head { answer: answer.await.map(Box::new), again }
            }
            InputSource::Reading(reader) => match reader.next().await {
                Ok(piece) => UpstreamInput::Piece(piece),
                Err(ending) => UpstreamInput::End(ending),
            },
            InputSource::Collecting(collecting) => collecting.next().await,
            InputSource::Idle => std::future::pending().await,
        }
    }
}

/// Returns the error for a response of this status that holds no JSON-RPC response.
pub(super) fn refused_by(status: StatusCode) -> ErrorCode {
    if status.is_success() { ErrorCode::UpstreamGarbage } else { ErrorCode::UpstreamStatus }
}
