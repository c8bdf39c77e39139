//! Proxies between this process and the server.
//!
//! A server on https is reached through a tunnel. One on http gets its requests from the proxy, in
//! absolute form: many proxies open tunnels to the port of https alone. Absent: the choice of the
//! proxy, which is the configuration's.

use std::io;

use http::{StatusCode, Uri};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::{self, Way};

/// Largest head of the response to `CONNECT`, in bytes.
const HEAD_MAX: usize = 16 * 1024;

/// The proxy has not opened the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy refused the tunnel with status {}", .0.as_u16())]
pub(super) struct Refused(pub(super) StatusCode);

/// Returns the proxy for the scheme of an origin, or `None` without one.
pub(super) fn of<'a>(way: &'a Way, origin: &Uri) -> Option<&'a config::Proxy> {
    if is_https(origin) { way.proxies.https.as_ref() } else { way.proxies.http.as_ref() }
}

/// Returns the place that connections for an origin lead to.
pub(super) fn place(proxy: &config::Proxy) -> Uri {
    let uri = Uri::builder().scheme("http").authority(proxy.authority.clone()).path_and_query("/");
    uri.build().expect("the parts of a URL")
}

fn is_https(origin: &Uri) -> bool {
    origin.scheme_str() == Some("https")
}

/// Opens a tunnel to the host of `origin`, on a connection to the proxy.
///
/// # Errors
/// [`Refused`] if the proxy did not open it; otherwise an error of the connection.
pub(super) async fn tunnel<W>(connection: &mut W, proxy: &config::Proxy, origin: &Uri) -> io::Result<()>
where
    W: AsyncRead + AsyncWrite + Unpin,
{
    let host = origin.host().unwrap_or_default();
    let port = origin.port_u16().unwrap_or(if is_https(origin) { 443 } else { 80 });
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    connection.write_all(&request).await?;
    let mut head = Vec::new();
    // The server sends nothing before the first bytes of this side, so nothing is behind the head.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if connection.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    match status(&head) {
        Some(status) if status.is_success() => Ok(()),
        Some(status) => Err(io::Error::other(Refused(status))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn status(head: &[u8]) -> Option<StatusCode> {
    let line = head.strip_prefix(b"HTTP/1.")?;
    let (version, line) = line.split_at_checked(2)?;
    if !matches!(version, b"0 " | b"1 ") {
        return None;
    }
    StatusCode::from_bytes(line.get(..3)?).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn proxy() -> config::Proxy {
        config::Proxy {
            authority: "proxy.example:3128".parse().unwrap(),
            authorization: Some(HeaderValue::from_static("Basic YTpi")),
        }
    }

    /// Returns the request of a tunnel to `origin`, and its outcome after `answer`.
    async fn tunnelled(origin: &'static str, answer: &[u8]) -> (String, io::Result<()>) {
        let (mut near, mut far) = tokio::io::duplex(4096);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let outcome = tunnel(&mut near, &proxy(), &Uri::from_static(origin)).await;
        drop(near);
        let mut request = String::new();
        far.read_to_string(&mut request).await.unwrap();
        (request, outcome)
    }

    #[tokio::test]
    async fn a_tunnel_names_host_and_port_and_the_credentials() {
        let (request, outcome) = tunnelled("https://a.example/", b"HTTP/1.1 200 Connection established\r\n\r\n").await;
        assert!(outcome.is_ok());
        let expected =
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nProxy-Authorization: Basic YTpi\r\n\r\n";
        assert_eq!(request, expected);
        let (request, _) = tunnelled("https://[2001:db8::1]:8443/", b"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n").await;
        assert!(request.starts_with("CONNECT [2001:db8::1]:8443 HTTP/1.1\r\n"), "{request}");
    }

    #[tokio::test]
    async fn another_answer_opens_no_tunnel() {
        for (answer, status) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], Some(407)),
            (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", Some(403)),
            (b"HTTP/1.1 2000 OK\r\n\r\n".as_slice(), Some(200)),
            (b"HTTP/2 200\r\n\r\n", None),
            (b"SSH-2.0-OpenSSH\r\n\r\n", None),
            (b"HTTP/1.1 200 OK\r\n", None),
            (b"", None),
        ] {
            let (_, outcome) = tunnelled("https://a.example/", answer).await;
            if status == Some(200) {
                assert!(outcome.is_ok());
                continue;
            }
            let error = outcome.unwrap_err();
            let refused = error.get_ref().and_then(|error| error.downcast_ref::<Refused>());
            assert_eq!(refused.map(|refused| refused.0.as_u16()), status, "{answer:?}");
        }
    }
}
