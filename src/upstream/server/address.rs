//! Places at the server: URIs of its origin, references, and the targets of redirects.
//!
//! Invariant: every place that a response names must be within the configured origin, since
//! requests carry credentials.

use http::header::{HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};

use super::http::HttpServer;
use super::redirects::{Redirect, differs_by_slash, is_call};
use super::request::Template;
use super::response_body::ResponseBody;
use crate::config::HostHeader;
use crate::protocol::access::is_loopback;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::origin;

impl HttpServer {
    /// Returns the path and query of the endpoint: the configured query is always sent, the
    /// client's is added.
    pub(super) fn endpoint_target(&self, client_query: Option<&str>) -> String {
        let mut target = self.config.url.endpoint_path().to_owned();
        let queries = [self.config.url.query(), client_query].into_iter().flatten().filter(|query| !query.is_empty());
        for (index, query) in queries.enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(query);
        }
        target
    }

    pub(super) fn uri(&self, path_and_query: &str) -> Result<Uri, Failure> {
        Uri::builder()
            .scheme(self.config.url.scheme())
            .authority(self.config.url.authority().clone())
            .path_and_query(path_and_query)
            .build()
            .map_err(|_| Failure::before_run(ErrorCode::BadRequest))
    }

    /// Returns the meaning of the response to `template`, which was sent to `target`.
    pub(super) fn redirect(&self, template: &Template, target: &Uri, response: &Response<ResponseBody>) -> Redirect {
        let keeps_method = match response.status() {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => false,
            _ => return Redirect::None,
        };
        let Some(location) = response.headers().get(LOCATION) else { return Redirect::None };
        if let Some(path) = self.path_within_origin(location) {
            return if keeps_method { Redirect::To(path) } else { Redirect::None };
        }
        let Some(other) = self.absolute(location) else { return Redirect::None };
        if keeps_method
            && differs_by_slash(target.path(), other.path())
            && self.is_same_host(&other, template.lines().get(&HOST))
            && let Some(path) = other.path_and_query()
        {
            return Redirect::To(path.as_str().to_owned());
        }
        if is_call(template) { Redirect::Away(origin::of(&other).unwrap_or_default()) } else { Redirect::None }
    }

    /// Returns the URI of a reference that names a host, or `None` for any other. Browsers read a
    /// backslash as a slash.
    fn absolute(&self, location: &HeaderValue) -> Option<Uri> {
        let location = location.to_str().ok()?;
        let location = if has_host(location) {
            format!("{}://{}", self.config().url.scheme(), &location[2..])
        } else {
            location.to_owned()
        };
        location.parse::<Uri>().ok().filter(|uri| uri.authority().is_some())
    }

    /// Returns true if a URI names the server's host, or the host that the request named. A port
    /// must be that host's too.
    fn is_same_host(&self, other: &Uri, requested: Option<&[u8]>) -> bool {
        let requested = requested.and_then(|host| Authority::try_from(host).ok());
        let is_same = |host: &Authority| {
            other.host().is_some_and(|other| other.eq_ignore_ascii_case(host.host()))
                && other.port_u16().is_none_or(|port| Some(port) == host.port_u16())
        };
        is_same(self.config().url.authority()) || requested.is_some_and(|host| is_same(&host))
    }

    /// Rewrites a `Location` that names the upstream to a reference that is valid at the proxy as
    /// well. A path that begins like a host name is written so that it stays a path
    /// ([RFC 3986 §4.2]).
    ///
    /// [RFC 3986 §4.2]: https://www.rfc-editor.org/rfc/rfc3986#section-4.2
    pub(super) fn rewrite_location(&self, headers: &mut HeaderMap) {
        let Some(location) = headers.get(LOCATION) else { return };
        let Some(path) = self.path_within_origin(location) else { return };
        let mut reference = if has_host(&path) { format!("/.{path}") } else { path };
        if let Some((_, fragment)) = location.to_str().ok().and_then(|location| location.split_once('#')) {
            reference.push('#');
            reference.push_str(fragment);
        }
        if let Ok(value) = HeaderValue::from_str(&reference) {
            headers.insert(LOCATION, value);
        }
    }

    /// Returns true if an authority is the upstream's, as configured by its URL or by
    /// `upstream.host`.
    fn is_own(&self, authority: &Authority) -> bool {
        let named = match &self.config.host {
            HostHeader::Name(name) => name.to_str().ok().and_then(|name| name.parse().ok()),
            HostHeader::Upstream | HostHeader::Client => None,
        };
        let port = self.config.url.default_port();
        let is_same = |other: &Authority| {
            authority.host().eq_ignore_ascii_case(other.host())
                && authority.port_u16().unwrap_or(port) == other.port_u16().unwrap_or(port)
        };
        is_same(self.config.url.authority()) || named.is_some_and(|named| is_same(&named))
    }

    /// Returns the place of a reference that is relative to the endpoint, if it is within the
    /// upstream's origin.
    pub(super) fn reference(&self, reference: &str) -> Option<Uri> {
        let base = self.config.url.endpoint_path();
        let absolute = match reference.as_bytes().first() {
            Some(b'/') => reference.to_owned(),
            Some(b'?') => format!("{base}{reference}"),
            _ if reference.contains("://") => reference.to_owned(),
            _ => format!("{}{reference}", &base[..=base.rfind('/')?]),
        };
        self.uri(&self.path_within_origin(&HeaderValue::from_str(&absolute).ok()?)?).ok()
    }

    /// Returns path and query of a URL of the upstream's origin. On this machine every name of it
    /// is the same.
    pub(in crate::upstream) fn own_place(&self, url: &str) -> Option<String> {
        let own = &self.config.url;
        let place = self.reference(url).or_else(|| {
            let url: Uri = url.parse().ok()?;
            let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
            let is_here = is_loopback(url.host()?) && is_loopback(own.authority().host());
            let own_port = own.authority().port_u16().unwrap_or(own.default_port());
            (is_here && url.scheme_str() == Some(own.scheme()) && port == own_port).then_some(url)
        })?;
        Some(place.path_and_query().map_or_else(|| "/".to_owned(), |place| place.as_str().to_owned()))
    }

    /// Returns the path and query of a `Location` that names the upstream. A path is never empty.
    fn path_within_origin(&self, location: &HeaderValue) -> Option<String> {
        let location = location.to_str().ok()?;
        let uri: Uri = if location.starts_with("//") {
            format!("{}:{location}", self.config.url.scheme()).parse().ok()?
        } else if has_host(location) {
            return None;
        } else {
            location.parse().ok()?
        };
        let is_ours = match uri.authority() {
            Some(authority) => uri.scheme_str() == Some(self.config.url.scheme()) && self.is_own(authority),
            None => uri.path().starts_with('/'),
        };
        let path = uri.path_and_query()?.as_str();
        let root = if path.starts_with('/') { "" } else { "/" };
        if is_ours { Some(format!("{root}{path}")) } else { None }
    }
}

/// Returns true if a reference that begins with `/` names a host. Browsers treat `\` like `/`.
fn has_host(reference: &str) -> bool {
    reference.starts_with("//") || reference.starts_with("/\\")
}
