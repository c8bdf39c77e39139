//! A response that begins after messages of its call have arrived on the standalone stream.

use std::future::Future;
use std::pin::Pin;

use futures_util::stream;
use http::Response;

use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, RequestId, code, response};
use crate::upstream::bridge::responses::as_json;
use crate::upstream::server::body::collect;
use crate::upstream::server::exchange::Unanswered;
use crate::upstream::server::response_body::Messages;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sse_reader::EventReader;

/// A request whose response has not begun.
pub(super) type Exchanging = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Unanswered>> + Send>>;

/// Waits for the response to the request with the ID `own`, and returns its messages. Each message
/// has at most `limit` bytes. A response without an event stream is one piece; a refusal becomes an
/// error.
pub(super) async fn late_response(exchange: Exchanging, own: String, limit: usize) -> EventReader {
    let reader = |messages| EventReader::Messages { messages, limit };
    let Ok(response) = exchange.await else { return reader(Messages::broken()) };
    let (status, is_json) = (response.status(), headers::is_read_as_json(response.headers()));
    if status.is_success() && headers::is_sse(response.headers()) {
        return EventReader::new(response.into_body(), limit);
    }
    let message = match collect(response.into_body(), limit).await.map(as_json) {
        Ok(message) if is_json && jsonrpc::peek(&message).is_ok() && status.is_success() => message,
        Ok(_) => {
            let text = format!("the server answered with status {}", status.as_u16());
            response::error(&RequestId::String(own.into()), code::INTERNAL_ERROR, &text).into()
        }
        Err(_) => return reader(Messages::broken()),
    };
    reader(Messages::of(stream::iter([message])))
}
