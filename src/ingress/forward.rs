//! Requests that pass unchanged: other paths, other methods, other content types.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::ORIGIN;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use tracing::warn;

use super::components::Components;
use super::context::RequestContext;
use super::refusals;
use crate::body::{BoxBody, Incoming};
use crate::channel::Caller;
use crate::clock;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::upstream::{self, Forwarded, ResponseBody, Template};

/// Paths of a server's metadata, which clients request with the headers of MCP but without a call.
const WELL_KNOWN: &str = "/.well-known/";

/// Forwards a request for another path than the endpoint. MCP traffic on such a path passes
/// unprotected, which is counted and logged once.
pub(super) async fn forward_other_path(
    components: &Components,
    parts: Parts,
    body: Incoming,
    client: &Forwarded,
) -> Response<BoxBody> {
    let has_warned = components.has_warned_unprotected.load(Ordering::Relaxed);
    let path = if has_warned { None } else { Some(parts.uri.path().to_owned()) };
    let is_mcp = has_mcp_headers(&parts);
    let response = forward(components, parts, body, client, None).await;
    let is_stream = response.status().is_success() && headers::is_sse(response.headers());
    if is_mcp || is_stream {
        components.metrics.observe_unprotected();
        if let Some(path) = path
            && !components.has_warned_unprotected.swap(true, Ordering::Relaxed)
        {
            let endpoint = components.upstream.server().endpoint_path();
            warn!(
                path,
                endpoint,
                streams = is_stream,
                "MCP traffic passes unprotected: clients are to use the endpoint's path"
            );
        }
    }
    response
}

/// Forwards a request for another path of the origin, unbuffered both ways.
async fn forward(
    components: &Components,
    parts: Parts,
    body: Incoming,
    client: &Forwarded,
    caller: Option<Arc<Caller>>,
) -> Response<BoxBody> {
    let is_broken = Arc::new(AtomicBool::new(false));
    let note = is_broken.clone();
    let body = body.map_err(move |error| {
        note.store(true, Ordering::Relaxed);
        error
    });
    let body = upstream::Body::Passthrough(body.boxed_unsync());
    match components.upstream.forward(Request::from_parts(parts, body), client, caller).await {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            headers::expose_ours(&mut parts.headers);
            Response::from_parts(parts, body.boxed_unsync())
        }
        // The client's body broke off: the upstream is not at fault.
        Err(_) if is_broken.load(Ordering::Relaxed) => refusals::refuse(components, ErrorCode::BadRequest),
        Err(failure) => refusals::fail_forward(components, failure),
    }
}

/// Forwards a request for the endpoint that the proxy does not handle. Its path becomes the
/// upstream's.
pub(super) async fn forward_to_endpoint(
    components: &Components,
    mut parts: Parts,
    body: Incoming,
    client: &Forwarded,
    caller: Option<Arc<Caller>>,
) -> Response<BoxBody> {
    let target = components.upstream.server().endpoint_target(parts.uri.query());
    if let Ok(uri) = target.parse::<Uri>() {
        parts.uri = uri;
    }
    // Some servers respond to a foreign event ID with 500.
    parts.headers.remove(headers::names::LAST_EVENT_ID);
    let origin = parts.headers.get(ORIGIN).cloned();
    let response = forward(components, parts, body, client, caller).await;
    observe_cors(components, origin.as_ref(), response.headers());
    response
}

/// Forwards a request whose body was read, most often an empty one. Redirects within the origin
/// are followed.
pub(super) async fn forward_buffered(
    components: &Components,
    mut context: Box<RequestContext>,
    body: Bytes,
) -> Response<BoxBody> {
    context.reserve();
    let template = components.upstream.pass(&context.parts, context.connection.forwarded(), body);
    send(components, &template.for_caller(context.caller.clone())).await
}

/// Forwards a POST whose body was read.
pub(super) async fn forward_post(
    components: &Components,
    context: Box<RequestContext>,
    body: Bytes,
) -> Response<BoxBody> {
    let template = components.upstream.call(&context.parts, context.connection.forwarded(), body);
    send(components, &template.for_caller(context.caller.clone())).await
}

/// Sends a whole request to the endpoint and returns its response.
pub(super) async fn send(components: &Components, template: &Template) -> Response<BoxBody> {
    match components.upstream.send(template).await {
        Ok(response) => pass_response(components, template, response),
        Err(failure) => refusals::fail_forward(components, failure),
    }
}

/// Does as [`send`], and returns whether the response refuses the session of the request.
pub(super) async fn send_examined(components: &Components, template: &Template) -> (Response<BoxBody>, bool) {
    match components.upstream.send(template).await {
        Ok(response) => {
            let (response, is_refused) = components.upstream.revivals().is_session_refused(response).await;
            (pass_response(components, template, response), is_refused)
        }
        Err(failure) => (refusals::fail_forward(components, failure), false),
    }
}

/// Returns the endpoint's response to `template` without hop-by-hop headers.
pub(super) fn pass_response(
    components: &Components,
    template: &Template,
    response: Response<ResponseBody>,
) -> Response<BoxBody> {
    let (mut parts, body) = response.into_parts();
    observe_cors(components, template.origin(), &parts.headers);
    headers::remove_hop_by_hop(&mut parts.headers);
    components.upstream.server().rewrite_location(&mut parts.headers);
    headers::expose_ours(&mut parts.headers);
    Response::from_parts(parts, body.boxed_unsync())
}

/// Observes the CORS headers of a response. The headers of a preflight count as well: a page
/// that was let in must be able to read the proxy's own responses. Other paths have rules of
/// their own and do not count.
fn observe_cors(components: &Components, origin: Option<&HeaderValue>, response: &HeaderMap) {
    if let Some(origin) = origin {
        components.upstream.observed().record_cors(origin, response, clock::now());
    }
}

/// True if a request for another path carries headers of MCP.
fn has_mcp_headers(parts: &Parts) -> bool {
    let names = [headers::names::MCP_SESSION_ID, headers::names::MCP_PROTOCOL_VERSION];
    !parts.uri.path().contains(WELL_KNOWN) && names.iter().any(|name| parts.headers.contains_key(name))
}
