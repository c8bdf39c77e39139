//! Head of the response to a POST or a standalone GET, and upstream responses that are no stream.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::body::BoxBody;
use crate::protocol::error::Failure;
use crate::sync;

/// Head of the response to the downstream request.
#[derive(Clone, Debug)]
pub enum Head {
    /// Not known yet.
    Waiting,
    /// The upstream responds with an SSE stream and this head.
    Stream(StatusCode, Arc<HeaderMap>),
    /// The proxy committed: the head is its own.
    Committed,
    /// The upstream's response passes through.
    Plain(Arc<Plain>),
    /// The call failed before a commit.
    Failed(Failure),
    /// A newer request took over the stream before there was a head.
    TakenOver,
}

/// An upstream response that is no stream: JSON, or an HTTP error.
#[derive(Debug)]
pub struct Plain {
    /// Status of the response.
    pub status: StatusCode,
    /// Headers of the response, without hop-by-hop ones.
    pub headers: HeaderMap,
    body: PlainBody,
}

/// Body: small and complete, so that a retry gets it again, or still arriving, for the first taker.
#[derive(Debug)]
enum PlainBody {
    Kept(Bytes),
    Passthrough(Mutex<Option<BoxBody>>),
}

impl Plain {
    /// Creates a complete response.
    pub fn kept(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        Self { status, headers, body: PlainBody::Kept(body) }
    }

    /// Creates a response that is still arriving; its body can be taken once.
    pub fn passthrough(status: StatusCode, headers: HeaderMap, body: BoxBody) -> Self {
        Self { status, headers, body: PlainBody::Passthrough(Mutex::new(Some(body))) }
    }

    /// Returns true if a status shows that no tool ran. A server error may follow a run, or replace
    /// its result.
    pub fn shows_nothing_ran(status: StatusCode) -> bool {
        let is_failure = status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE;
        !status.is_success() && !is_failure
    }

    /// Returns true if a status means that the response to the request arrives elsewhere, unless
    /// the body has it.
    pub fn is_without_response(status: StatusCode) -> bool {
        matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT)
    }

    /// Returns the complete body, or `None` if it was not kept.
    pub fn kept_body(&self) -> Option<&Bytes> {
        match &self.body {
            PlainBody::Kept(bytes) => Some(bytes),
            PlainBody::Passthrough(_) => None,
        }
    }

    /// Takes the arriving body. Returns `None` the second time, and for a complete one.
    pub fn take_passthrough(&self) -> Option<BoxBody> {
        match &self.body {
            PlainBody::Kept(_) => None,
            PlainBody::Passthrough(body) => sync::lock(body).take(),
        }
    }
}
