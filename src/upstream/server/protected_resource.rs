//! The server as a protected resource under the URL that clients type (`listen.public_url`).
//!
//! Owned here: the URL in challenges of the server, the place of its metadata, the metadata under
//! the public name, and warnings about a server that expects another name. Invariant: a document is
//! requested from the server's own origin alone. Absent: the syntax of
//! challenges and documents (`protocol/protected_resource.rs`), the check of tokens, and the
//! metadata of authorization servers, which passes unchanged.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use tracing::warn;

use super::body::begun;
use super::http::HttpServer;
use super::request::Template;
use super::response_body::ResponseBody;
use crate::config::PublicUrl;
use crate::protocol::access::is_loopback;
use crate::protocol::jwt;
use crate::protocol::protected_resource::{self as metadata, Document, MAX_DOCUMENT, WELL_KNOWN, metadata_path};
use crate::{clock, sync};

/// Time limit for the body of a document.
const BODY_WAIT: Duration = Duration::from_secs(10);
/// Size limit of a place that is remembered.
const MAX_PLACE: usize = 2048;

/// The server as a resource with a public name.
pub(in crate::upstream) struct ProtectedResource {
    public: Arc<PublicUrl>,
    /// Path and query of the document that the server's last challenge named.
    named: Mutex<Option<String>>,
    has_warned_challenge: AtomicBool,
    has_warned_resource: AtomicBool,
    has_warned_audience: AtomicBool,
}

impl ProtectedResource {
    /// Creates the resource. No challenge is known yet.
    pub(super) fn new(public: Arc<PublicUrl>) -> Arc<Self> {
        Arc::new(Self {
            public,
            named: Mutex::default(),
            has_warned_challenge: AtomicBool::default(),
            has_warned_resource: AtomicBool::default(),
            has_warned_audience: AtomicBool::default(),
        })
    }

    /// Puts the public URL of the metadata into the challenges of a response from the endpoint, and
    /// remembers the server's own.
    pub(super) fn rewrite_challenges(&self, server: &HttpServer, headers: &mut HeaderMap) {
        if !headers.contains_key(WWW_AUTHENTICATE) {
            return;
        }
        let rewritten: Vec<HeaderValue> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .map(|challenge| {
                let replaced = metadata::rewrite_challenge(challenge, |url| self.replacement(server, url));
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
    fn replacement(&self, server: &HttpServer, url: &str) -> Option<String> {
        let Some(own) = own_place(server, url) else {
            if url.parse::<Uri>().is_ok_and(|url| origin_of(&url) == Some(self.public.origin())) {
                return None;
            }
            if !self.has_warned_challenge.swap(true, Ordering::Relaxed) {
                warn!(
                    url,
                    public_url = %self.public,
                    "a 401 of the server names its metadata at another origin, and clients go there: give the server its public URL"
                );
            }
            return None;
        };
        if own.len() <= MAX_PLACE {
            *sync::lock(&self.named) = Some(own);
        }
        Some(self.public.metadata_url())
    }

    /// Warns once if the server refuses a token that was issued for the public URL.
    pub(super) fn check_audience(&self, template: &Template) {
        let Some(authorization) = template.lines().get(&AUTHORIZATION) else { return };
        let Ok(authorization) = HeaderValue::from_bytes(authorization) else { return };
        let is_for_us = jwt::audiences(&authorization).iter().any(|audience| self.public.is_named_by(audience));
        if is_for_us
            && jwt::expires_at(&authorization).is_some_and(|expiry| expiry > clock::wall())
            && !self.has_warned_audience.swap(true, Ordering::Relaxed)
        {
            warn!(
                public_url = %self.public,
                "the server refuses a token that was issued for listen.public_url: give the server this URL as its resource or audience"
            );
        }
    }

    /// Returns the places of the metadata at the server, the likeliest first.
    pub(in crate::upstream) fn places(&self, endpoint_path: &str) -> Vec<String> {
        let named = sync::lock(&self.named).clone();
        let mut places = Vec::new();
        for place in named.into_iter().chain([metadata_path(endpoint_path), WELL_KNOWN.to_owned()]) {
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
        server: &HttpServer,
        response: Response<ResponseBody>,
    ) -> (Response<ResponseBody>, bool) {
        if response.status() != StatusCode::OK || response.headers().contains_key(CONTENT_ENCODING) {
            return (response, false);
        }
        let (mut response, whole) = begun(response, MAX_DOCUMENT, BODY_WAIT).await;
        let is_own = |resource: &Uri| self.is_own(server, resource);
        match whole.map_or(Document::Other, |body| metadata::rename_resource(&body, self.public.as_str(), is_own)) {
            Document::Renamed(document) => {
                metadata::describe_changed(response.headers_mut(), document.len());
                *response.body_mut() = ResponseBody::Whole(Some(Bytes::from(document)));
                (response, true)
            }
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

    /// Returns true for a name of the server that its clients do not know, and for the public one.
    fn is_own(&self, server: &HttpServer, resource: &Uri) -> bool {
        let host = resource.host().unwrap_or_default();
        let is_private = || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(metadata::is_private);
        own_place(server, &resource.to_string()).is_some()
            || origin_of(resource) == Some(self.public.origin())
            || is_loopback(host)
            || is_private()
    }
}

/// Removes the headers of a request that would change the form of a document.
pub(in crate::upstream) fn plain_document(headers: &mut HeaderMap) {
    for name in [IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE] {
        headers.remove(name);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Returns path and query of a URL of the server's own origin. On this machine every name of it is
/// the same.
fn own_place(server: &HttpServer, url: &str) -> Option<String> {
    let own = &server.config().url;
    let place = server.reference(url).or_else(|| {
        let url: Uri = url.parse().ok()?;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
        let is_here = is_loopback(url.host()?) && is_loopback(own.authority().host());
        let own_port = own.authority().port_u16().unwrap_or(own.default_port());
        (is_here && url.scheme_str() == Some(own.scheme()) && port == own_port).then_some(url)
    })?;
    Some(place.path_and_query().map_or_else(|| "/".to_owned(), |place| place.as_str().to_owned()))
}

/// Returns scheme, host and port of a URL, in lower case and without the port of the scheme.
fn origin_of(url: &Uri) -> Option<String> {
    let (scheme, host) = (url.scheme_str()?.to_ascii_lowercase(), url.host()?.to_ascii_lowercase());
    let default_port = if scheme == "https" { 443 } else { 80 };
    Some(match url.port_u16() {
        Some(port) if port != default_port => format!("{scheme}://{host}:{port}"),
        Some(_) | None => format!("{scheme}://{host}"),
    })
}
