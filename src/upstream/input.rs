//! Input of a pump: the upstream's response in its current phase.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body_util::BodyExt;

use super::revival::Settled;
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sse_reader::{EventReader, poll_once};
use crate::event_log::UpstreamState;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::stream::Ending;

/// Current source of the upstream's bytes.
pub(super) enum InputSource {
    /// A request that waits for its response head; `is_reopening` if it resumes a stream.
    Sending {
        response: Pin<Box<dyn Future<Output = Settled> + Send>>,
        is_reopening: bool,
    },
    /// A request with its response head, until the pump has that.
    Responded(Option<Box<Response<ResponseBody>>>),
    Reading(EventReader),
    /// The body of a JSON response that becomes an event.
    Collecting(Box<ResponseCollector>),
    /// No input until the machine requests it.
    Idle,
}

pub(super) enum UpstreamInput {
    Head {
        response: Result<Box<Response<ResponseBody>>, Failure>,
        is_reopening: bool,
    },
    /// The session of the request was opened again; see [`Settled::Revived`].
    Revived {
        again: Arc<Template>,
        refusal: Box<Response<ResponseBody>>,
    },
    Piece(Bytes),
    End(Ending),
    /// Size of the response that is being collected, after growth.
    Grown(usize),
    Body(CollectedResponse),
}

/// A JSON response that becomes an event, or its error.
pub(super) struct CollectedResponse {
    pub(super) status: StatusCode,
    pub(super) body: Result<Bytes, ErrorCode>,
}

/// A response that is being collected.
pub(super) struct ResponseCollector {
    status: StatusCode,
    /// Body, or `None` if it cannot be an event.
    body: Option<ResponseBody>,
    buffer: BytesMut,
    limit: usize,
}

impl ResponseCollector {
    /// Reads the next piece. Dropping the future loses nothing.
    async fn next(&mut self) -> UpstreamInput {
        let status = self.status;
        let Some(body) = &mut self.body else {
            return UpstreamInput::Body(CollectedResponse { status, body: Err(refused_by(status)) });
        };
        let failed = match body.frame().await {
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                self.buffer.extend_from_slice(&data);
                if self.buffer.len() <= self.limit {
                    return UpstreamInput::Grown(self.buffer.capacity());
                }
                ErrorCode::EventTooLarge
            }
            Some(Err(_)) => ErrorCode::UpstreamBroke,
            None => {
                return UpstreamInput::Body(CollectedResponse {
                    status,
                    body: Ok(std::mem::take(&mut self.buffer).freeze()),
                });
            }
        };
        UpstreamInput::Body(CollectedResponse { status, body: Err(failed) })
    }
}

impl InputSource {
    /// Collects a body that becomes an event. `None` stands for a body that cannot become one.
    pub(super) fn collecting(status: StatusCode, json: Option<ResponseBody>, limit: usize) -> Self {
        InputSource::Collecting(Box::new(ResponseCollector { status, body: json, buffer: BytesMut::new(), limit }))
    }

    /// Returns the state of the upstream connection.
    pub(super) fn upstream_state(&self) -> UpstreamState {
        match self {
            InputSource::Reading(_) => UpstreamState::Streaming,
            InputSource::Sending { is_reopening: false, .. }
            | InputSource::Responded(_)
            | InputSource::Collecting(_) => UpstreamState::Requested,
            InputSource::Sending { is_reopening: true, .. } | InputSource::Idle => UpstreamState::Absent,
        }
    }

    /// Returns the next input if it is ready and `may_read`.
    pub(super) async fn next_if_ready(&mut self, may_read: bool) -> Option<UpstreamInput> {
        if may_read { poll_once(self.next()).await } else { None }
    }

    /// Waits for the next input. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> UpstreamInput {
        match self {
            InputSource::Sending { response, is_reopening } => {
                let is_reopening = *is_reopening;
                match response.await {
                    Settled::Response(response) => UpstreamInput::Head { response, is_reopening },
                    Settled::Revived { again, refusal } => UpstreamInput::Revived { again, refusal: refusal.into() },
                }
            }
            InputSource::Responded(response) => match response.take() {
                Some(response) => UpstreamInput::Head { response: Ok(response), is_reopening: false },
                None => std::future::pending().await,
            },
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
