//! Detection of HTTP/2 by its connection preface.

use std::future::poll_fn;
use std::io;

use tokio::io::AsyncRead;

use crate::prefixed_io::PrefixedIo;

/// Connection preface of HTTP/2 ([RFC 9113 §3.4]).
///
/// [RFC 9113 §3.4]: https://www.rfc-editor.org/rfc/rfc9113#section-3.4
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads ahead until the protocol is certain. Returns true for HTTP/2.
pub(crate) async fn detect<Io: AsyncRead + Unpin>(io: &mut PrefixedIo<Io>) -> io::Result<bool> {
    while io.prefix().len() < PREFACE.len() && PREFACE.starts_with(io.prefix()) {
        if poll_fn(|cx| io.poll_read_ahead(cx)).await? == 0 {
            break;
        }
    }
    Ok(io.prefix().starts_with(PREFACE))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn only_the_whole_preface_is_http2_and_no_byte_is_lost() {
        for (sent, expected) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], false),
            (b"PRI * HTTP/1.1\r\n\r\n", false),
            (b"PR", false),
            (b"", false),
            (PREFACE, true),
            (&[PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat(), true),
        ] {
            for piece in 1..=sent.len().max(1) {
                let (mut near, far) = duplex(piece);
                let mut far = PrefixedIo::new(far);
                let all = sent.to_vec();
                let to_send = all.clone();
                let sending = tokio::spawn(async move { near.write_all(&to_send).await });
                let is_http2 = detect(&mut far).await.expect("a pipe");
                assert_eq!(is_http2, expected, "{all:?} by {piece}");
                let mut received = Vec::new();
                far.read_to_end(&mut received).await.expect("a pipe");
                assert_eq!(received, all, "by {piece}");
                sending.await.expect("no panic").expect("a pipe");
            }
        }
    }
}
