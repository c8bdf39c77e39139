//! Response that begins after messages of its call have come on the session's own stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use serde_json::Value;

use crate::body::BoxError;
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::sse;
use crate::upstream::body::collect;
use crate::upstream::{ResponseBody, Unanswered};

/// A request whose response has not begun.
pub(super) type Exchange = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Unanswered>> + Send>>;

/// Events of the response. One that is no stream is one event; a refusal is an error to the
/// request.
pub(super) enum LateResponse {
    Awaited(Pin<Box<dyn Future<Output = Begun> + Send>>),
    Begun(ResponseBody),
    Ended,
}

/// Beginning of the response.
pub(super) enum Begun {
    Events(ResponseBody),
    Message(Bytes),
    Failed,
}

impl LateResponse {
    /// Takes the request that is sent under this ID. A message has at most `limit` bytes.
    pub(super) fn new(exchange: Exchange, own: String, limit: usize) -> Self {
        Self::Awaited(Box::pin(async move {
            let Ok(response) = exchange.await else { return Begun::Failed };
            let (status, is_json) = (response.status(), headers::is_json(response.headers()));
            if status.is_success() && headers::is_sse(response.headers()) {
                return Begun::Events(response.into_body());
            }
            match collect(response.into_body(), limit).await {
                Ok(message) if is_json && jsonrpc::peek(&message).is_ok() && status.is_success() => {
                    Begun::Message(sse::message_event(&message))
                }
                Ok(_) => {
                    let (id, text) =
                        (RequestId::String(own.into()), format!("the server answered with status {}", status.as_u16()));
                    Begun::Message(sse::message_event(&jsonrpc::error_message(Some(&id), -32603, &text, Value::Null)))
                }
                Err(_) => Begun::Failed,
            }
        }))
    }
}

impl Body for LateResponse {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut *self {
                Self::Awaited(begun) => match ready!(begun.as_mut().poll(cx)) {
                    Begun::Events(body) => *self = Self::Begun(body),
                    Begun::Message(event) => {
                        *self = Self::Ended;
                        return Poll::Ready(Some(Ok(Frame::data(event))));
                    }
                    Begun::Failed => {
                        *self = Self::Ended;
                        return Poll::Ready(Some(Err("the response broke off".into())));
                    }
                },
                Self::Begun(body) => {
                    return Pin::new(body).poll_frame(cx);
                }
                Self::Ended => return Poll::Ready(None),
            }
        }
    }
}
