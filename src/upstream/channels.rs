//! Requests to a server that is not on Streamable HTTP: it has channels in place of connections.
//!
//! Absent: the channels themselves (`channel/`), and the moment at which a server turns out to have
//! them ([`super::recognition`]).

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;

use super::{Body, Forwarded, ResponseBody, Template, Upstream};
use crate::channel::{self, Channels};
use crate::event_log::Stream;
use crate::protocol::headers;

/// Limit of the body of a request that passes unchanged to a server that is not on HTTP.
const MAX_FORWARDED: usize = 4 * 1024 * 1024;

impl Upstream {
    /// Returns the same upstream with channels to a server that is not on Streamable HTTP.
    pub fn with_channels(self, channels: Arc<Channels>) -> Self {
        Self { channels: Arc::new(channels.into()), ..self }
    }

    /// Returns true if the server is not on Streamable HTTP: then callers have servers or event
    /// streams of their own.
    pub fn has_channels(&self) -> bool {
        self.channels.get().is_some()
    }

    /// Returns the time for which a full stream pauses the server: `configured`, or none on a
    /// channel, which one full stream must not stop.
    pub fn full_wait(&self, configured: Duration) -> Duration {
        if self.has_channels() { Duration::ZERO } else { configured }
    }

    /// Returns the longest time for the start of a server on a channel, or `None` for one on
    /// Streamable HTTP.
    pub(super) fn start_limit(&self) -> Option<Duration> {
        self.channels.get().map(|channels| channels.start_limit())
    }

    /// Ends all channels.
    pub async fn end_channels(&self) {
        if let Some(channels) = self.channels.get() {
            channels.end_all().await;
        }
    }

    /// Returns true if a channel takes the request. Clients of the old transport of a server that
    /// was recognised go on to reach it: their requests at the endpoint are GETs without a session.
    pub(super) fn is_for_channel(&self, template: &Template) -> bool {
        self.recognition.is_none() || *template.method() == Method::POST || template.names_session()
    }

    /// Answers a request for any path. A server that is not on HTTP has the endpoint alone.
    pub(super) async fn forward_by_channel(
        &self,
        channels: &Arc<Channels>,
        request: Request<Body>,
        client: &Forwarded,
    ) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        // A page can send other content to any address without being asked.
        if parts.method == Method::POST && !headers::is_json(&parts.headers) {
            return channel::empty(StatusCode::UNSUPPORTED_MEDIA_TYPE).map(ResponseBody::from);
        }
        let body = match http_body_util::Limited::new(body, MAX_FORWARDED).collect().await {
            Ok(body) if self.config.url.is_endpoint(parts.uri.path()) => body.to_bytes(),
            Ok(_) => return channel::empty(StatusCode::NOT_FOUND).map(ResponseBody::from),
            Err(_) => return channel::empty(StatusCode::BAD_REQUEST).map(ResponseBody::from),
        };
        let lines = self.address(headers::end_to_end(&parts.headers), None, client, Some(&self.sessions));
        let template = Template::new(&parts, lines, body);
        let mut response = exchange_by_channel(channels, &template, None).await;
        self.sessions.wrap(response.headers_mut(), false);
        response
    }
}

/// Sends a request to a server that is not on HTTP. Each error is a response.
pub(super) async fn exchange_by_channel(
    channels: &Arc<Channels>,
    template: &Template,
    sent: Option<&Arc<Stream>>,
) -> Response<ResponseBody> {
    let stream = sent.cloned();
    let on_begin = move || {
        if let Some(stream) = stream {
            stream.note_sent();
        }
    };
    let request = channel::Request {
        method: template.method(),
        headers: template.lines(),
        session: template.session_name(),
        body: template.body(),
        stream: sent,
        caller: template.caller(),
        start_kind: template.start_kind(),
        on_begin: Box::new(on_begin),
    };
    channels.send(request).await.map(ResponseBody::from)
}
