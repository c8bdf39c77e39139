//! CORS: the permission of pages in browsers to call the server and to read its responses.
//!
//! A server on HTTP gives it, and the proxy repeats it where it writes a head of its own. A server
//! on stdio or HTTP+SSE has no head of its own for Streamable HTTP, so the proxy permits the pages
//! of `listen.allowed_origins`. Absent: the refusal of other pages, and credentials that a browser
//! adds by itself (cookies), which no page may use.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::components::Components;
use crate::body::BoxBody;
use crate::protocol::headers::{self, Present, RequestFacts};
use crate::server::respond;

/// Methods of Streamable HTTP.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Time that a browser may keep the response to a preflight. The longest that Chromium takes.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
/// Headers of a request on which the response to a preflight depends.
const ASKED: HeaderValue = HeaderValue::from_static("Access-Control-Request-Method, Access-Control-Request-Headers");

/// A page that sends a request.
pub(super) struct Page {
    origin: HeaderValue,
    /// True for a request to the endpoint.
    is_at_endpoint: bool,
}

impl Page {
    /// Returns the page that sends a request, or `None` for a program.
    pub(super) fn of<B>(components: &Components, request: &Request<B>, facts: &RequestFacts) -> Option<Self> {
        if !facts.has(Present::Origin) {
            return None;
        }
        let origin = request.headers().get(ORIGIN)?.clone();
        Some(Self { origin, is_at_endpoint: components.config.upstream.url.is_endpoint(request.uri().path()) })
    }

    /// Adds the headers that let the page read the response.
    pub(super) fn permit(self, components: &Components, response: &mut Response<BoxBody>) {
        if components.upstream.answers_for_server(self.is_at_endpoint) {
            if !response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) && !respond::is_access_refused(response) {
                let headers = response.headers_mut();
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
                headers.append(VARY, HeaderValue::from_static("Origin"));
                headers::expose_ours(headers);
            }
        } else if respond::has_own_head(response) {
            let known = components.upstream.observed().cors(Some(&self.origin)).unwrap_or_default();
            response.headers_mut().extend(known);
            headers::expose_ours(response.headers_mut());
        }
    }
}

/// Returns the response to a preflight in place of a server on stdio or HTTP+SSE. `None` for any
/// other request.
pub(super) fn preflight(components: &Components, parts: &Parts) -> Option<Response<BoxBody>> {
    let is_preflight = parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let is_at_endpoint = components.config.upstream.url.is_endpoint(parts.uri.path());
    if !is_preflight || !components.upstream.answers_for_server(is_at_endpoint) {
        return None;
    }
    let mut response = respond::status(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // A page that may call may send any header.
    if let Some(wanted) = parts.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    headers.append(VARY, ASKED);
    Some(response)
}
