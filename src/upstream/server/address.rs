//! Places at the server: URIs of its origin, references, and the targets of redirects.
//!
//! A server names itself as its requests name it: by the host of `Host`, or the public one in
//! `X-Forwarded-Host`, and by the scheme of `X-Forwarded-Proto`. So its own places have several
//! names. Invariant: all are requested on the connections of the configured origin, since requests
//! carry credentials.

use std::borrow::Cow;

use http::header::{HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use url::{Position, Url};

use super::http::HttpServer;
use super::redirects::{Away, Redirect, differs_by_slash, is_call};
use super::request::Template;
use super::response_body::ResponseBody;
use crate::config::HostHeader;
use crate::protocol::access::{is_loopback, is_unspecified};
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
        let own = self.path_within_origin(location).or_else(|| joined(target.path(), location.to_str().ok()?));
        if let Some(path) = own {
            return if keeps_method { Redirect::To(path) } else { Redirect::None };
        }
        let Some(other) = location.to_str().ok().and_then(|location| self.absolute(location)) else {
            return Redirect::None;
        };
        if keeps_method && self.is_https_form(&other) {
            return Redirect::ToHttps(path_and_query(&other));
        }
        if keeps_method && let Some(path) = self.path_under_other_name(template, target, &other) {
            return Redirect::To(path);
        }
        if !is_call(template) {
            return Redirect::None;
        }
        let status = response.status();
        Redirect::Away(Away { origin: origin::of(&other).unwrap_or_default(), status, is_own: self.is_named(&other) })
    }

    /// Returns path and query of a redirect to another name of the server: its own host under
    /// either scheme, the public URL's, or the host of the request for a slash at the end. A
    /// redirect to the place of the request itself asks for that name, and is none of these.
    fn path_under_other_name(&self, template: &Template, target: &Uri, other: &Uri) -> Option<String> {
        let (path, public) = (other.path(), self.resource().map(|resource| resource.public()));
        let is_public_endpoint = self.is_public(other)
            && self.config.url.is_endpoint(target.path())
            && public.is_some_and(|public| public.is_endpoint(path));
        // The public path is the endpoint's.
        let path = match is_public_endpoint {
            true if path.ends_with('/') => format!("{}/", target.path().trim_end_matches('/')),
            true => target.path().trim_end_matches('/').to_owned(),
            false => path.to_owned(),
        };
        let is_slash = differs_by_slash(target.path(), &path) && self.is_same_host(other, template.lines().get(&HOST));
        if path.is_empty() || path == target.path() || !is_slash && !self.is_named(other) {
            return None;
        }
        Some(other.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}")))
    }

    /// Returns true if a URL is the https form of the server on http, on the default ports of both.
    /// On a way through networks of others requests are better sent there.
    fn is_https_form(&self, url: &Uri) -> bool {
        let own = &self.config.url;
        let is_same_host = url.host().is_some_and(|host| host.eq_ignore_ascii_case(own.authority().host()));
        self.config.way.has_strangers
            && !own.is_https()
            && url.scheme_str() == Some("https")
            && is_same_host
            && own.authority().port_u16().is_none_or(|port| port == 80)
            && url.port_u16().is_none_or(|port| port == 443)
    }

    /// Returns true if a URL names the server, as [`Self::is_own_url`] or by the public name.
    fn is_named(&self, url: &Uri) -> bool {
        self.is_own_url(url) || self.is_public(url)
    }

    /// Returns true if a URL has the public host, which requests to the server name.
    fn is_public(&self, url: &Uri) -> bool {
        self.resource().is_some_and(|resource| resource.is_public(url))
    }

    /// Returns the URI of a reference that names a host, or `None` for any other. Browsers read a
    /// backslash as a slash.
    fn absolute(&self, reference: &str) -> Option<Uri> {
        let absolute = match reference.get(2..) {
            Some(rest) if has_host(reference) => Cow::Owned(format!("{}://{rest}", self.config.url.scheme())),
            Some(_) | None => Cow::Borrowed(reference),
        };
        absolute.parse::<Uri>().ok().filter(|uri| uri.authority().is_some())
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
        let of_other_name = || {
            let other = self.absolute(location.to_str().ok()?)?;
            // The public URL itself is valid for clients, but for another scheme of it.
            let is_of_other_scheme = other.scheme_str() != self.resource().map(|resource| resource.public().scheme());
            let is_own = self.is_own_url(&other) || is_of_other_scheme && self.is_public(&other);
            is_own.then(|| path_and_query(&other))
        };
        let Some(path) = self.path_within_origin(location).or_else(of_other_name) else { return };
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
        let origin = |of: &Authority| origin::serialised(self.config.url.scheme(), of.host(), of.port_u16());
        origin(authority) == self.config.url.origin() || named.is_some_and(|named| origin(authority) == origin(&named))
    }

    /// Returns true if a URL names the server by its own host and port. It may name the other
    /// scheme, which the server takes from `X-Forwarded-Proto`. Without a port, that is the server
    /// only behind a public URL: another server may have the port of that scheme. On this machine
    /// every name of it is the same, and no host has an unspecified address.
    fn is_own_url(&self, url: &Uri) -> bool {
        let (own, Some(authority)) = (&self.config.url, url.authority()) else { return false };
        let is_of_scheme = match url.scheme_str() {
            Some(scheme) if scheme == own.scheme() => true,
            Some("http" | "https") => authority.port_u16().is_some() || self.resource().is_some(),
            Some(_) | None => false,
        };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(own.default_port());
        let is_here = is_loopback(authority.host())
            && is_loopback(own.authority().host())
            && port(authority) == port(own.authority());
        is_of_scheme && (self.is_own(authority) || is_here || is_unspecified(authority.host()))
    }

    /// Returns the place of a reference that is relative to the endpoint, if it is one of the
    /// server.
    pub(super) fn reference(&self, reference: &str) -> Option<Uri> {
        let base = self.config.url.endpoint_path();
        let path = self.path_within_origin(&HeaderValue::from_str(reference).ok()?);
        let of_other_name = || {
            let is_own = |url: &Uri| self.is_own_url(url) || self.is_https_only() && self.is_https_form(url);
            self.absolute(reference).filter(is_own).map(|url| path_and_query(&url))
        };
        self.uri(&path.or_else(|| joined(base, reference)).or_else(of_other_name)?).ok()
    }

    /// Returns path and query of a reference that names the server by one of its own hosts.
    pub(in crate::upstream) fn own_place(&self, url: &str) -> Option<String> {
        self.reference(url).map(|place| path_and_query(&place))
    }

    /// Returns path and query of a reference that names the server by any host of its own, or by
    /// the public one.
    pub(in crate::upstream) fn named_place(&self, url: &str) -> Option<String> {
        self.own_place(url).or_else(|| {
            let url = self.absolute(url).filter(|url| self.is_public(url))?;
            Some(path_and_query(&url))
        })
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
        is_ours.then(|| path_and_query(&uri))
    }
}

/// Returns path and query of a URL. A path is never empty.
fn path_and_query(url: &Uri) -> String {
    let path = url.path_and_query().map_or("", |path| path.as_str());
    let root = if path.starts_with('/') { "" } else { "/" };
    format!("{root}{path}")
}

/// Returns path and query of a reference without a host, relative to the path `base`. Returns
/// `None` for a reference with a host or scheme, and for one that begins with a slash.
fn joined(base: &str, reference: &str) -> Option<String> {
    if reference.is_empty() || reference.starts_with(['/', '\\']) {
        return None;
    }
    let mut of_base = Url::parse("http://server.invalid").ok()?;
    of_base.set_path(base);
    let place = of_base.join(reference).ok()?;
    let is_within = !reference.contains("://") && place.origin() == of_base.origin();
    is_within.then(|| place[Position::BeforePath..Position::AfterQuery].to_owned())
}

/// Returns true if a reference that begins with `/` names a host. Browsers treat `\` like `/`.
fn has_host(reference: &str) -> bool {
    reference.starts_with("//") || reference.starts_with("/\\")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Method;

    use super::*;
    use crate::config::{Config, Flags};
    use crate::upstream::server::protected_resource::ProtectedResource;

    const LOCAL: &str = "http://127.0.0.1:3000/mcp";
    const PUBLIC: &str = "https://mcp.example/mcp";

    fn server(url: &str, public: &str) -> HttpServer {
        let text = format!("[listen]\npublic_url = '{public}'\n[upstream]\nurl = '{url}'");
        let config = Config::load(Some(("c.toml", &text)), [], Flags::default()).expect("a configuration");
        let resource = config.listen.public_url.map(ProtectedResource::new);
        HttpServer::new(config.upstream).expect("a client").with_resource(resource)
    }

    /// Returns the meaning of a redirect of a call to the endpoint: `->` and a path, the origin of
    /// another server, or `""` for a response that passes.
    fn followed(server: &HttpServer, status: u16, location: &str) -> String {
        let mut response = Response::new(ResponseBody::whole(Bytes::new()));
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        response.headers_mut().insert(LOCATION, HeaderValue::from_str(location).expect("a header"));
        let call = Template::plain(Method::POST, &HeaderMap::new(), Bytes::new());
        let target = server.uri(&server.endpoint_target(None)).expect("an endpoint");
        match server.redirect(&call, &target, &response) {
            Redirect::None => String::new(),
            Redirect::To(path) => format!("-> {path}"),
            Redirect::ToHttps(path) => format!("-> https {path}"),
            Redirect::Away(Away { origin, is_own, .. }) => format!("{origin}{}", if is_own { " (own)" } else { "" }),
        }
    }

    #[tokio::test]
    async fn a_redirect_to_the_https_form_is_followed_on_the_default_ports_alone() {
        let server = |url: &str| {
            let mut config = Config::for_upstream(url).expect("a configuration");
            config.upstream.way.has_strangers = true;
            HttpServer::new(config.upstream).expect("a client")
        };
        for (url, location, expected) in [
            ("http://a.example/mcp", "https://a.example/mcp", "-> https /mcp"),
            ("http://a.example:80/mcp", "https://A.example:443/v2/mcp?a=b", "-> https /v2/mcp?a=b"),
            ("http://a.example/mcp", "https://a.example/mcp/", "-> https /mcp/"),
            ("http://a.example/mcp", "https://a.example:8443/mcp", "https://a.example:8443"),
            ("http://a.example:8080/mcp", "https://a.example/mcp", "https://a.example"),
            ("http://a.example/mcp", "https://b.example/mcp", "https://b.example"),
            ("https://a.example/mcp", "http://a.example/mcp", "http://a.example"),
        ] {
            assert_eq!(followed(&server(url), 308, location), expected, "{url} {location}");
        }
        assert_eq!(followed(&server("http://a.example/mcp"), 302, "https://a.example/mcp"), "https://a.example");
    }

    #[tokio::test]
    async fn a_redirect_to_any_name_of_the_server_is_followed() {
        for (url, public, location, expected) in [
            (LOCAL, "", "/mcp/", "-> /mcp/"),
            (LOCAL, "", "mcp/", "-> /mcp/"),
            (LOCAL, "", "./mcp/?a=b#c", "-> /mcp/?a=b"),
            (LOCAL, "", "../v2/mcp", "-> /v2/mcp"),
            (LOCAL, "", "mcp", "-> /mcp"),
            (LOCAL, "", "?a=b", "-> /mcp?a=b"),
            (LOCAL, "", "http://localhost:3000/mcp/", "-> /mcp/"),
            (LOCAL, "", "https://localhost:3000/v2", "-> /v2"),
            (LOCAL, "", "https://127.0.0.1:3000/v2", "-> /v2"),
            (LOCAL, "", "http://localhost:3001/mcp/", "http://localhost:3001"),
            (LOCAL, "", "https://127.0.0.1:3000/mcp", "https://127.0.0.1:3000 (own)"),
            (LOCAL, "", "https://mcp.example/mcp/", "https://mcp.example"),
            (LOCAL, "", "/\\evil.example/mcp/", "http://evil.example"),
            (LOCAL, "", "mailto:a@b", ""),
            (LOCAL, PUBLIC, "https://mcp.example/mcp/", "-> /mcp/"),
            (LOCAL, PUBLIC, "http://mcp.example/mcp/?a=b", "-> /mcp/?a=b"),
            (LOCAL, PUBLIC, "http://mcp.example:80/mcp/", "-> /mcp/"),
            (LOCAL, PUBLIC, "http://MCP.example:443/mcp/", "-> /mcp/"),
            (LOCAL, PUBLIC, "https://mcp.example:8443/mcp/", "https://mcp.example:8443"),
            (LOCAL, PUBLIC, "https://mcp.example/v2", "-> /v2"),
            (LOCAL, PUBLIC, "https://mcp.example/mcp", "https://mcp.example (own)"),
            (LOCAL, PUBLIC, "https://other.example/mcp/", "https://other.example"),
            (LOCAL, "https://mcp.example/t/mcp", "https://mcp.example/t/mcp/", "-> /mcp/"),
            (LOCAL, "https://mcp.example/t/mcp", "https://mcp.example/t/mcp", "https://mcp.example (own)"),
            // Another server may have the port of that scheme.
            ("http://vm/mcp", "", "https://vm/v2", "https://vm"),
            ("http://vm/mcp", PUBLIC, "https://vm/v2", "-> /v2"),
            ("http://vm/mcp", "", "https://vm/mcp/", "-> /mcp/"),
            ("http://vm/mcp", PUBLIC, "https://vm:8443/v2", "https://vm:8443"),
        ] {
            assert_eq!(followed(&server(url, public), 307, location), expected, "{url} {public} {location}");
        }
    }

    #[tokio::test]
    async fn a_redirect_that_changes_the_method_is_not_followed() {
        for (location, expected) in [
            ("/login", ""),
            ("login", ""),
            ("https://127.0.0.1:3000/login", "https://127.0.0.1:3000 (own)"),
            ("https://mcp.example/mcp/", "https://mcp.example (own)"),
        ] {
            assert_eq!(followed(&server(LOCAL, PUBLIC), 302, location), expected, "{location}");
        }
    }

    #[tokio::test]
    async fn own_places_have_either_scheme_and_any_name_of_the_machine() {
        for (url, place, expected) in [
            (LOCAL, "http://127.0.0.1:3000/x?y", Some("/x?y")),
            (LOCAL, "https://127.0.0.1:3000/x", Some("/x")),
            (LOCAL, "HTTPS://LOCALHOST:3000/x", Some("/x")),
            (LOCAL, "http://[::1]:3000", Some("/")),
            (LOCAL, "http://0.0.0.0:3000/x", Some("/x")),
            (LOCAL, "http://[::]:8000/x", Some("/x")),
            (LOCAL, "meta/x", Some("/meta/x")),
            (LOCAL, "//127.0.0.1:3000/x", Some("/x")),
            (LOCAL, "http://127.0.0.1:3001/x", None),
            (LOCAL, "ftp://127.0.0.1:3000/x", None),
            (LOCAL, "https://mcp.example/x", None),
            ("http://vm:3000/mcp", "https://vm:3000/x", Some("/x")),
            ("http://vm:3000/mcp", "https://vm/x", None),
            ("http://vm:3000/mcp", "http://localhost:3000/x", None),
            ("http://vm/mcp", "https://vm/x", Some("/x")),
        ] {
            assert_eq!(server(url, PUBLIC).own_place(place).as_deref(), expected, "{url} {place}");
        }
        assert_eq!(server(LOCAL, PUBLIC).named_place("https://mcp.example/x").as_deref(), Some("/x"));
        assert_eq!(server(LOCAL, "").named_place("https://mcp.example/x"), None);
    }

    #[tokio::test]
    async fn a_location_of_another_name_of_the_server_is_valid_at_the_proxy() {
        for (public, location, expected) in [
            (PUBLIC, "https://127.0.0.1:3000/login#a", "/login#a"),
            (PUBLIC, "http://localhost:3000//evil.example", "/.//evil.example"),
            (PUBLIC, "http://mcp.example/login", "/login"),
            (PUBLIC, "https://mcp.example/login", "https://mcp.example/login"),
            (PUBLIC, "https://other.example/login", "https://other.example/login"),
            ("", "http://mcp.example/login", "http://mcp.example/login"),
            ("", "login", "login"),
        ] {
            let mut headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_str(location).expect("a header"))]);
            server(LOCAL, public).rewrite_location(&mut headers);
            assert_eq!(headers[LOCATION], expected, "{public} {location}");
        }
    }
}
