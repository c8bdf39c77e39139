//! The server as a protected resource under the URL that clients type (`listen.public_url`).
//!
//! Owned here: the URL in challenges of the server, the place of its metadata, the metadata under
//! the public name, and warnings about a server that expects another name. Invariant: a document is
//! requested from the server's own origin alone. Absent: the syntax of challenges and documents
//! (`protocol/protected_resource.rs`), the check of tokens, and the metadata of authorization
//! servers, which passes unchanged.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, LOCATION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tracing::warn;

use super::body::begun;
use super::log_pause::LogPause;
use super::request::{Body, Template};
use super::response_body::ResponseBody;
use crate::config::PublicUrl;
use crate::protocol::access::is_loopback;
use crate::protocol::client_address::describes_client;
use crate::protocol::headers;
use crate::protocol::jwt;
use crate::protocol::origin;
use crate::protocol::protected_resource::{self as metadata, Document, MAX_DOCUMENT, WELL_KNOWN, metadata_path};
use crate::{clock, sync};

/// Time limit for the head of a document at one place. Clients wait for all places together.
pub(in crate::upstream) const HEAD_WAIT: Duration = Duration::from_secs(5);
/// Time limit for the body of a document.
const BODY_WAIT: Duration = Duration::from_secs(10);
/// Headers of a client that go along with a request for a document.
const PASSED: [&str; 7] =
    ["accept", "accept-language", "host", "mcp-protocol-version", "origin", "traceparent", "user-agent"];
/// Pause between two warnings about the audience of tokens: any caller can invent a token.
const WARN_PAUSE: Duration = Duration::from_secs(600);
/// Size limit of a place that is remembered.
const MAX_PLACE: usize = 2048;

/// Finds path and query of a URL of the server's own origin.
pub(in crate::upstream) type FindOwn<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// The server as a resource with a public name.
pub(in crate::upstream) struct ProtectedResource {
    public: Arc<PublicUrl>,
    /// Path and query of the document that the server's last challenge named.
    named: Mutex<Option<String>>,
    has_warned_challenge: AtomicBool,
    has_warned_resource: AtomicBool,
    audience_warnings: LogPause,
    has_warned_unread: AtomicBool,
}

impl ProtectedResource {
    /// Creates the resource. No challenge is known yet.
    pub(super) fn new(public: Arc<PublicUrl>) -> Arc<Self> {
        Arc::new(Self {
            public,
            named: Mutex::default(),
            has_warned_challenge: AtomicBool::default(),
            has_warned_resource: AtomicBool::default(),
            audience_warnings: LogPause::new(WARN_PAUSE),
            has_warned_unread: AtomicBool::default(),
        })
    }

    /// Returns the URL that clients type.
    pub(super) fn public(&self) -> &PublicUrl {
        &self.public
    }

    /// Puts the public URL of the metadata into the challenges of a response from the endpoint, and
    /// remembers the server's own.
    pub(super) fn rewrite_challenges(&self, own: FindOwn<'_>, headers: &mut HeaderMap) {
        if !headers.contains_key(WWW_AUTHENTICATE) {
            return;
        }
        let rewritten: Vec<HeaderValue> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .map(|challenge| {
                let replaced = metadata::rewrite_challenge(challenge, |url| self.replacement(own, url));
                replaced.unwrap_or_else(|| challenge.clone())
            })
            .collect();
        headers.remove(WWW_AUTHENTICATE);
        for challenge in rewritten {
            headers.append(WWW_AUTHENTICATE, challenge);
        }
    }

    /// Returns the public URL of the metadata in place of the server's, or `None` for a URL of
    /// another origin.
    fn replacement(&self, own: FindOwn<'_>, url: &str) -> Option<String> {
        let Some(place) = own(url) else {
            let parsed = url.parse::<Uri>().ok();
            if let Some(url) = parsed.as_ref().filter(|url| self.is_public(url)) {
                self.remember(url.path_and_query().map_or("/", |place| place.as_str()));
                return if url.scheme_str() == Some(self.public.scheme()) {
                    None
                } else {
                    Some(self.public.metadata_url())
                };
            }
            if !self.has_warned_challenge.swap(true, Ordering::Relaxed) {
                warn!(
                    origin = parsed.as_ref().and_then(origin::of),
                    public_url = %self.public,
                    "a 401 of the server names its metadata at another origin, and clients go there: give the server its public URL, \
                     or set upstream.host = \"client\" if it takes its name from Host"
                );
            }
            return None;
        };
        self.remember(&place);
        Some(self.public.metadata_url())
    }

    fn remember(&self, place: &str) {
        if place.len() <= MAX_PLACE {
            *sync::lock(&self.named) = Some(place.to_owned());
        }
    }

    /// Returns true for a URL with the public host, and with its port or that of a scheme. A server
    /// that does not evaluate the scheme of its clients names itself by another.
    pub(super) fn is_public(&self, url: &Uri) -> bool {
        let Some(scheme) = url.scheme_str() else { return false };
        let public = |port| Some(origin::serialised(scheme, self.public.authority().host(), port));
        let named = origin::of(url);
        named == public(None) || named == public(Some(self.public.port()))
    }

    /// Warns if the server refuses a token that names the public URL, once in ten minutes.
    pub(super) fn check_audience(&self, template: &Template) {
        let Some(authorization) = template.lines().get(&AUTHORIZATION) else { return };
        let Ok(authorization) = HeaderValue::from_bytes(authorization) else { return };
        let is_for_us = jwt::audiences(&authorization).iter().any(|audience| self.public.is_named_by(audience));
        if is_for_us
            && jwt::expires_at(&authorization).is_some_and(|expiry| expiry > clock::wall())
            && self.audience_warnings.may_log()
        {
            warn!(
                public_url = %self.public,
                "the server refuses a token that names listen.public_url as its audience: if the authorization server issued it, \
                 give the server this URL as its resource or audience"
            );
        }
    }

    /// Returns the places of the metadata at the server, the likeliest first.
    pub(in crate::upstream) fn places(&self, endpoint_path: &str) -> Vec<String> {
        let named = sync::lock(&self.named).clone();
        let mut places = Vec::new();
        // A server that knows its public URL has the document at that path.
        let paths = [metadata_path(endpoint_path), metadata_path(self.public.path()), WELL_KNOWN.to_owned()];
        for place in named.into_iter().chain(paths) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Returns true if `path` is one of the paths of the metadata at the proxy: that of the public
    /// URL, that of the server's endpoint, and that of a resource at the root.
    pub(in crate::upstream) fn is_place(&self, path: &str, endpoint_path: &str) -> bool {
        let Some(resource) = path.strip_prefix(WELL_KNOWN) else { return false };
        let resource = resource.strip_suffix('/').unwrap_or(resource);
        [self.public.path(), endpoint_path, "/"].iter().any(|path| path.trim_end_matches('/') == resource)
    }

    /// Gives the resource in a document its public name. Returns the response, and whether it is
    /// metadata of a resource.
    pub(in crate::upstream) async fn rename(
        &self,
        own: FindOwn<'_>,
        response: Response<ResponseBody>,
    ) -> (Response<ResponseBody>, bool) {
        if response.status() != StatusCode::OK || headers::is_sse(response.headers()) {
            return (response, false);
        }
        if response.headers().get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            self.warn_of_unread(&response, "it has a content coding, though its request accepts none");
            return (response, false);
        }
        let (mut response, whole) = begun(response, MAX_DOCUMENT, BODY_WAIT).await;
        if whole.is_none() {
            self.warn_of_unread(&response, "it is larger than 64 KiB, or incomplete");
        }
        let is_own = |resource: &Uri| !self.public.is_named_by(&resource.to_string()) && self.is_own(own, resource);
        match whole.map_or(Document::Other, |body| metadata::rename_resource(&body, self.public.as_str(), is_own)) {
            Document::Renamed(document) => {
                metadata::describe_changed(response.headers_mut(), document.len());
                *response.body_mut() = ResponseBody::Whole(Some(Bytes::from(document)));
                (response, true)
            }
            // Each spelling of the public URL is the server's choice: the issuer may know that one.
            Document::Foreign(resource) if self.public.is_named_by(&resource) => (response, true),
            Document::Foreign(resource) => {
                if !self.has_warned_resource.swap(true, Ordering::Relaxed) {
                    warn!(
                        resource,
                        public_url = %self.public,
                        "the metadata of the server names another resource, which stays: clients of listen.public_url may refuse it"
                    );
                }
                (response, true)
            }
            Document::Other => (response, false),
        }
    }

    /// Warns once of a document that cannot be read. A page of an app has another type.
    fn warn_of_unread(&self, response: &Response<ResponseBody>, reason: &str) {
        if headers::is_read_as_json(response.headers()) && !self.has_warned_unread.swap(true, Ordering::Relaxed) {
            warn!(
                reason,
                public_url = %self.public,
                "the metadata of the server cannot be read, and passes as it is: clients of listen.public_url may refuse it"
            );
        }
    }

    /// Returns true for a name of the server that its clients do not know, and for the public one.
    fn is_own(&self, own: FindOwn<'_>, resource: &Uri) -> bool {
        let host = resource.host().unwrap_or_default();
        let is_private = || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(metadata::is_private);
        own(&resource.to_string()).is_some() || self.is_public(resource) || is_loopback(host) || is_private()
    }
}

/// Returns a request for a document at `target`, of the client that sent `request`. It has no body,
/// and no credential: a challenge chose the place.
pub(in crate::upstream) fn document_request(request: &Parts, target: Uri, body: Body) -> Request<Body> {
    let is_passed = |name: &HeaderName| {
        let name = name.as_str();
        PASSED.contains(&name) || name.starts_with("access-control-request-")
    };
    let mut document = Request::new(body);
    let is_preflight = request.method == Method::OPTIONS;
    *document.method_mut() = if is_preflight { Method::OPTIONS } else { Method::GET };
    *document.uri_mut() = target;
    for (name, value) in &request.headers {
        if is_passed(name) || describes_client(name) {
            document.headers_mut().append(name, value.clone());
        }
    }
    document.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    document
}

/// Returns the place within the server's origin to which a response redirects.
pub(in crate::upstream) fn redirected(own: FindOwn<'_>, response: &Response<ResponseBody>) -> Option<String> {
    if !response.status().is_redirection() {
        return None;
    }
    own(response.headers().get(LOCATION)?.to_str().ok()?)
}
