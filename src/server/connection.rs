//! One connection: TLS, and the choice of the HTTP version.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use super::handler::{Handler, NewConnection};
use super::prefixed_io::PrefixedIo;
use super::{HEAD_TIMEOUT, http1, http2};
use mcp_resume_protocol::certificate::CertificateNames;
use mcp_resume_tls::{self as tls, Certificates};

/// Serves a TLS connection.
pub(super) async fn serve_tls<Io, H>(io: Io, certificates: Arc<Certificates>, mut new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let handshake = tokio::time::timeout(HEAD_TIMEOUT, certificates.current().accept(io));
    let accepted = tokio::select! {
        biased;
        accepted = handshake => accepted,
        () = new.stopped() => return,
    };
    drop(certificates);
    new.peer.scheme = "https";
    let presented =
        accepted.as_ref().ok().and_then(|accepted| accepted.as_ref().ok()?.get_ref().1.peer_certificates()?.first());
    new.peer.certificate = presented.map(|certificate| CertificateNames::of(certificate));
    match accepted {
        Ok(Ok(io)) if io.get_ref().1.alpn_protocol() == Some(tls::HTTP2) => {
            http2::serve(PrefixedIo::new(io), new).await;
        }
        // A client without ALPN may speak either version.
        Ok(Ok(io)) => serve_plain(io, new).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
}

/// Serves a connection in the HTTP version of its first bytes.
pub(super) async fn serve_plain<Io, H>(io: Io, mut new: NewConnection<H>)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let mut io = PrefixedIo::new(io);
    let detected = tokio::select! {
        // A request that has arrived is served.
        biased;
        detected = tokio::time::timeout(HEAD_TIMEOUT, http2::detect(&mut io)) => detected,
        () = new.stopped() => return,
    };
    match detected {
        Ok(Ok(true)) => Box::pin(http2::serve(io, new)).await,
        Ok(Ok(false)) => http1::serve(io, new).await,
        Ok(Err(error)) => debug!(%error, "connection ended"),
        Err(_) => debug!("no request came in time"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, Response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::sync::watch;

    use super::*;
    use crate::body::{Incoming, whole};
    use crate::handler::{Peer, StopSignal};
    use mcp_resume_base::clock;

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_preface_is_given_up_after_the_head_timeout() {
        for begun in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut near, far) = duplex(1024);
            let (_stop, ending) = watch::channel(StopSignal::None);
            let handler = |_: Request<Incoming>| async { Response::new(whole(Bytes::new())) };
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let peer = Peer { address, scheme: "http", certificate: None };
            let new = NewConnection { peer, header_bytes: 65_536, idle: HEAD_TIMEOUT, handler, ending };
            let begin = clock::now();
            let serving = tokio::spawn(serve_plain(far, new));
            near.write_all(begun).await.expect("room");
            let mut received = Vec::new();
            near.read_to_end(&mut received).await.expect("a pipe");
            serving.await.expect("no panic");
            let took = clock::now() - begin;
            assert!(received.is_empty());
            assert!(took >= HEAD_TIMEOUT && took < HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
        }
    }
}
