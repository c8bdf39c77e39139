//! Origin of a URL: its scheme, host and port.
//!
//! Absent: origins in the header `Origin` and in patterns ([`access`](crate::access)).

use http::Uri;

/// Returns `scheme://host:port` of a URL, serialised as in RFC 6454 §6.2: in lower case, without
/// the port of the scheme, user, path and query. Returns `None` for a URL without scheme or host.
pub fn of(url: &Uri) -> Option<String> {
    Some(serialised(url.scheme_str()?, url.host()?, url.port_u16()))
}

/// Returns the origin of these parts, as [`of`] does.
pub fn serialised(scheme: &str, host: &str, port: Option<u16>) -> String {
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let default_port = if scheme == "https" { 443 } else { 80 };
    match port {
        Some(port) if port != default_port => format!("{scheme}://{host}:{port}"),
        Some(_) | None => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_neither_path_nor_user() {
        for (url, expected) in [
            ("https://login.example/a?token=x", Some("https://login.example")),
            ("http://me:secret@other.example:81/", Some("http://other.example:81")),
            ("https://[::1]:8443/mcp", Some("https://[::1]:8443")),
            ("http://[::1]", Some("http://[::1]")),
            ("HTTPS://Host:443/x", Some("https://host")),
            ("http://LocalHost:80/x", Some("http://localhost")),
            ("http://host:443", Some("http://host:443")),
            ("/path", None),
        ] {
            assert_eq!(of(&url.parse().expect("a URI")).as_deref(), expected, "{url}");
        }
    }
}
