//! Proxies of the environment: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, and `NO_PROXY`, in
//! capitals or small letters.
//!
//! Programs read `NO_PROXY` in different ways, and one value serves all of them. So its entries may
//! be apart by commas or blanks, begin with a dot or `*.`, name a port, or be networks. Loopback is
//! never reached through a proxy. Invariant: no problem quotes a value, which may hold a password.

use std::net::IpAddr;

use base64::prelude::{BASE64_STANDARD, Engine};
use http::uri::Authority;
use http::{HeaderValue, Uri};
use url::Url;

use crate::config::{Proxies, Proxy};

/// Names of the variables for a scheme, in their order.
const HTTP: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
const HTTPS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Returns the proxies on the way to the server at `url`. `read` returns the value of a variable.
///
/// # Errors
/// A variable that counts, and is no URL of a proxy on http.
pub(super) fn on_the_way(url: &Uri, read: impl Fn(&str) -> Option<String>) -> Result<Proxies, String> {
    let host = url.host().unwrap_or_default();
    if is_loopback(host) {
        return Ok(Proxies::default());
    }
    let value = |name: &str| read(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let except = EXCEPT.iter().find_map(|name| value(name)).unwrap_or_default();
    let proxy = |names: &[&'static str], default_port| {
        let Some((name, text)) = names.iter().find_map(|name| Some((*name, value(name)?))) else { return Ok(None) };
        let is_excepted = is_in(&except, host, url.port_u16().unwrap_or(default_port));
        if is_excepted { Ok(None) } else { parse(name, &text).map(Some) }
    };
    let is_http = url.scheme_str() == Some("http");
    // A server on http may redirect to https.
    Ok(Proxies { http: if is_http { proxy(&HTTP, 80)? } else { None }, https: proxy(&HTTPS, 443)? })
}

/// Returns true for a host on this machine, to which plain http needs no permission.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let is_address = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || host == "localhost" || host.ends_with(".localhost")
}

fn parse(name: &str, text: &str) -> Result<Proxy, String> {
    let problem = || format!("the variable {name} is no URL of a proxy: give http://HOST:PORT");
    let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
    let url = url.map_err(|_| problem())?;
    if url.scheme() != "http" {
        return Err(format!(
            "the variable {name} names a proxy of a kind that is not supported: give http://HOST:PORT"
        ));
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(problem)?;
    let authority = format!("{host}:{}", url.port().unwrap_or(80));
    let authority = Authority::try_from(authority).map_err(|_| problem())?;
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    let authorization = has_credentials.then(|| {
        let credentials = [&decoded(url.username())[..], b":", &decoded(url.password().unwrap_or_default())].concat();
        let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(credentials))).ok()?;
        value.set_sensitive(true);
        Some(value)
    });
    Ok(Proxy { authority, authorization: authorization.flatten() })
}

/// Returns the bytes of a text with `%XX` for some of them.
fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => (bytes.push(byte), rest = &behind[2..]).1,
            None => (bytes.push(first), rest = behind).1,
        }
    }
    bytes
}

/// Returns true if an entry of the list is for this host.
fn is_in(list: &str, host: &str, port: u16) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    list.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|entry| !entry.is_empty())
        .any(|entry| is_for(&entry.to_ascii_lowercase(), &host, address, port))
}

fn is_for(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, length)) = entry.split_once('/') {
        return address.is_some_and(|address| is_within(address, network, length) == Some(true));
    }
    let (name, entry_port) = match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        Some(_) | None => (entry, None),
    };
    if entry_port.is_some_and(|entry_port| entry_port.parse() != Ok(port)) {
        return false;
    }
    if let Some(address) = address {
        return name.trim_matches(['[', ']']).parse() == Ok(address);
    }
    let name = name.strip_prefix('*').unwrap_or(name).trim_matches('.');
    !name.is_empty() && host.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns true if an address is in a network, or `None` if the texts name none of its family.
fn is_within(address: IpAddr, network: &str, length: &str) -> Option<bool> {
    let (bits, network, width) = match (address, network.parse().ok()?) {
        (IpAddr::V4(address), IpAddr::V4(network)) => (u128::from(address.to_bits()), network.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let length: u32 = length.parse().ok().filter(|length| *length <= width)?;
    Some(length == 0 || (bits ^ network) >> (width - length) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str, variables: &[(&str, &str)]) -> Result<(Option<String>, Option<String>), String> {
        let read = |name: &str| {
            let value = variables.iter().find(|(known, _)| *known == name);
            value.map(|(_, value)| (*value).to_owned())
        };
        let proxies = on_the_way(&url.parse().expect("a URL"), read)?;
        let text = |proxy: Option<Proxy>| proxy.map(|proxy| proxy.authority.to_string());
        Ok((text(proxies.http), text(proxies.https)))
    }

    #[test]
    fn a_proxy_is_for_the_scheme_of_its_variable() {
        let (of_http, of_https) = (("HTTP_PROXY", "http://a:1"), ("https_proxy", "b:2"));
        let of_all = ("ALL_PROXY", "http://c");
        let some = |text: &str| Some(text.to_owned());
        for (url, variables, expected) in [
            ("https://x.example/mcp", &[of_http, of_https][..], (None, some("b:2"))),
            ("http://x.example/mcp", &[of_http, of_https], (some("a:1"), some("b:2"))),
            ("https://x.example/mcp", &[of_http, of_all], (None, some("c:80"))),
            ("https://x.example/mcp", &[of_http], (None, None)),
            ("https://x.example/mcp", &[("HTTPS_PROXY", " "), of_all], (None, some("c:80"))),
            ("http://127.0.0.1:1/mcp", &[of_http, of_https, of_all], (None, None)),
            ("http://[::1]:1/mcp", &[of_http, of_https, of_all], (None, None)),
            ("https://a.localhost/mcp", &[of_http, of_https, of_all], (None, None)),
            ("https://x.example/mcp", &[of_https, ("NO_PROXY", "*")], (None, None)),
        ] {
            assert_eq!(found(url, variables), Ok(expected), "{url} {variables:?}");
        }
    }

    #[test]
    fn a_value_that_counts_and_is_no_proxy_is_a_problem_without_its_text() {
        for value in ["socks5://secret:1", "https://secret", "http://", "http://se cret:x", "://secret"] {
            let problem = found("https://x.example/mcp", &[("HTTPS_PROXY", value)]).expect_err(value);
            assert!(problem.contains("HTTPS_PROXY") && !problem.contains("cret"), "{problem}");
        }
        let both = [("HTTPS_PROXY", "http://a:1"), ("ALL_PROXY", "socks5://b:2")];
        assert!(found("https://x.example/mcp", &both).is_ok());
        let excepted = [("HTTPS_PROXY", "socks5://a:1"), ("NO_PROXY", "x.example")];
        assert!(found("https://x.example/mcp", &excepted).is_ok());
    }

    #[test]
    fn credentials_of_the_url_become_a_header() {
        let authorization = |text: &str| {
            let proxy = parse("HTTPS_PROXY", text).expect("a proxy");
            assert!(!format!("{proxy:?}").contains("Basic"));
            proxy.authorization.map(|value| value.to_str().expect("text").to_owned())
        };
        assert_eq!(authorization("http://us%65r:p%40ss@a:1").as_deref(), Some("Basic dXNlcjpwQHNz"));
        assert_eq!(authorization("user@a:1").as_deref(), Some("Basic dXNlcjo="));
        assert_eq!(authorization("http://a:1"), None);
        assert_eq!(decoded("100%"), b"100%");
        assert_eq!(decoded("%zz%41"), b"%zzA");
    }

    #[test]
    fn exceptions_are_read_in_all_usual_ways() {
        for (list, host, expected) in [
            ("a.example, b.example", "b.example", true),
            ("a.example b.example", "b.example", true),
            ("A.Example", "a.example", true),
            (".a.example", "x.A.example", true),
            (".a.example", "a.example", true),
            ("*.a.example", "x.a.example", true),
            ("a.example", "x.a.example", true),
            ("a.example", "xa.example", false),
            ("a.example.", "a.example", true),
            ("*", "10.0.0.1", true),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.0.0.0/8", "a.example", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.0.0.0/40", "10.1.2.3", false),
            ("fd00::/8", "[fd12::1]", true),
            ("fd00::/8", "10.0.0.1", false),
            ("::1", "[::1]", true),
            ("[fd12::1]:443", "[fd12::1]", true),
            ("[fd12::1]:80", "[fd12::1]", false),
            ("a.example:443", "a.example", true),
            ("a.example:80", "a.example", false),
            (",, .", "a.example", false),
            ("", "a.example", false),
        ] {
            assert_eq!(is_in(list, host, 443), expected, "{list} {host}");
        }
    }
}
