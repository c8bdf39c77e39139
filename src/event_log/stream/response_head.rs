//! The head of the response to a POST or a standalone GET, and an answer that is no stream.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::body::BoxBody;
use crate::protocol::error::Failure;
use crate::sync;

/// What the response to the downstream request begins with, once it is known.
#[derive(Clone, Debug)]
pub enum Head {
    /// Not known yet.
    Waiting,
    /// The upstream answered with an SSE stream and this head.
    Stream(StatusCode, Arc<HeaderMap>),
    /// The proxy committed: the head is ours.
    Committed,
    /// The upstream's answer passes as it is.
    Plain(Arc<Plain>),
    /// The call failed before anything was committed.
    Failed(Failure),
    /// A newer request took over the stream before there was a head.
    TakenOver,
}

/// An upstream answer that is no stream: JSON, or an HTTP error.
#[derive(Debug)]
pub struct Plain {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, hop-by-hop ones removed.
    pub headers: HeaderMap,
    body: PlainBody,
}

/// Either small and complete, so that a retry gets it again, or on its way, and whoever asks first has it.
#[derive(Debug)]
enum PlainBody {
    Kept(Bytes),
    Passing(Mutex<Option<BoxBody>>),
}

impl Plain {
    /// An answer that is complete.
    pub fn kept(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        Self { status, headers, body: PlainBody::Kept(body) }
    }

    /// An answer that is still arriving; it can be taken once.
    pub fn passing(status: StatusCode, headers: HeaderMap, body: BoxBody) -> Self {
        Self { status, headers, body: PlainBody::Passing(Mutex::new(Some(body))) }
    }

    /// The complete body, where it was kept.
    pub fn kept_body(&self) -> Option<&Bytes> {
        match &self.body {
            PlainBody::Kept(bytes) => Some(bytes),
            PlainBody::Passing(_) => None,
        }
    }

    /// Takes the body that is still arriving; `None` the second time, and for a kept one.
    pub fn take_passing(&self) -> Option<BoxBody> {
        match &self.body {
            PlainBody::Kept(_) => None,
            PlainBody::Passing(body) => sync::lock(body).take(),
        }
    }
}
