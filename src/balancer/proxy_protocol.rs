//! The PROXY protocol, versions 1 and 2: a load balancer in front sends the client's address before
//! TLS begins.
//!
//! Trusted peers must send a header. Of other peers none is looked for: a receiver must never guess
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt> §2). No byte behind the header is
//! read. Absent: everything in a header but the source address, such as TLVs.
//!
//! The parser is part of this crate. The parsers of `ppp` 2.3 and `proxy-header` 0.1 accept ports
//! such as `+1`. They need bytes read in advance, so the exact reading would stay here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;
use tracing::debug;

use mcp_resume_protocol::client_address::Trust;

/// Deadline for the whole header; the connection is then closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest header of version 1, with its end of line (§2.1).
const V1_MAX: usize = 107;
/// Longest header of version 2 that is accepted: TLVs with certificates make them long.
const V2_MAX: usize = 4096;
/// Shortest header of either version: `PROXY UNKNOWN` and an end of line.
const HEADER_MIN: usize = 15;
/// Bytes of a version 2 header before addresses and TLVs.
const V2_HEAD: usize = 16;
const V1_PREFIX: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A connection from a trusted peer is closed before its first request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The header is missing or malformed.
    #[error("the connection does not begin with a valid PROXY header: {0}")]
    Malformed(&'static str),
    /// The header did not arrive in time.
    #[error("the PROXY header did not come within {HEADER_TIMEOUT:?}")]
    TimedOut,
    /// The connection ended in the header.
    #[error("the connection ended in its PROXY header: {0}")]
    Io(#[from] io::Error),
}

/// Reads the header of a connection `io` from `peer`, and returns the address of its client: the
/// source in the header, or `peer` itself. It returns `peer` if `peer` is not trusted, or if the
/// header declares a connection of the load balancer's own, or a transport other than TCP over IP.
/// Must be called before any other read. Only the header is read, in pieces of any size.
///
/// # Errors
/// If a trusted peer sends no valid header in time. The connection must then be closed: the number
/// of bytes read is unknown.
pub async fn read(trust: &Trust, io: &mut (impl AsyncRead + Unpin), peer: SocketAddr) -> Result<SocketAddr, Error> {
    if !trust.contains(peer.ip()) {
        return Ok(peer);
    }
    let read = timeout(HEADER_TIMEOUT, source(io)).await.unwrap_or(Err(Error::TimedOut));
    match read {
        Ok(source) => Ok(source.unwrap_or(peer)),
        Err(error) => {
            debug!(%peer, %error, "connection refused");
            Err(error)
        }
    }
}

async fn source(io: &mut (impl AsyncRead + Unpin)) -> Result<Option<SocketAddr>, Error> {
    let mut header = Vec::new();
    loop {
        match missing_bytes(&header)? {
            0 => return parse(&header),
            certain => {
                let read = header.len();
                header.resize(read + certain, 0);
                io.read_exact(&mut header[read..]).await?;
            }
        }
    }
}

/// Returns the least number of bytes that the header continues beyond its beginning `header`, or 0
/// if it is complete.
fn missing_bytes(header: &[u8]) -> Result<usize, Error> {
    if header.len() < HEADER_MIN {
        return Ok(HEADER_MIN - header.len());
    }
    if header.starts_with(V1_PREFIX) {
        return missing_bytes_v1(header);
    }
    if !header.starts_with(V2_SIGNATURE) {
        return Err(Error::Malformed("neither version's beginning"));
    }
    let Some([high, low]) = header.get(V2_HEAD - 2..V2_HEAD) else { return Ok(V2_HEAD - header.len()) };
    let all = V2_HEAD + usize::from(u16::from_be_bytes([*high, *low]));
    if all > V2_MAX {
        return Err(Error::Malformed("too long"));
    }
    Ok(all - header.len())
}

fn missing_bytes_v1(header: &[u8]) -> Result<usize, Error> {
    match header {
        [.., b'\r', b'\n'] => Ok(0),
        _ if header.len() >= V1_MAX => Err(Error::Malformed("line too long")),
        [.., b'\r'] => Ok(1),
        // A lone carriage return or line feed, or an end of line before the last byte read.
        _ if header[..header.len() - 1].contains(&b'\r') || header.contains(&b'\n') => {
            Err(Error::Malformed("invalid end of line"))
        }
        _ => Ok(2.min(V1_MAX - header.len())),
    }
}

fn parse(header: &[u8]) -> Result<Option<SocketAddr>, Error> {
    let source = if header.starts_with(V1_PREFIX) { parse_v1(header)? } else { parse_v2(header)? };
    Ok(source.map(|source| SocketAddr::new(source.ip().to_canonical(), source.port())))
}

fn parse_v1(header: &[u8]) -> Result<Option<SocketAddr>, Error> {
    let line = std::str::from_utf8(header).map_err(|_| Error::Malformed("not UTF-8"))?.trim_end_matches("\r\n");
    if line.contains(['\r', '\n']) {
        return Err(Error::Malformed("invalid end of line"));
    }
    let fields: Vec<&str> = line.split(' ').collect();
    match fields[1..] {
        ["UNKNOWN", ..] => Ok(None),
        ["TCP4", source, to, port, to_port] => addresses_v1::<Ipv4Addr>(source, to, port, to_port).map(Some),
        ["TCP6", source, to, port, to_port] => addresses_v1::<Ipv6Addr>(source, to, port, to_port).map(Some),
        _ => Err(Error::Malformed("unknown fields")),
    }
}

fn addresses_v1<Ip: FromStr + Into<IpAddr>>(
    source: &str,
    to: &str,
    port: &str,
    to_port: &str,
) -> Result<SocketAddr, Error> {
    let ip = |text: &str| text.parse::<Ip>().map_err(|_| Error::Malformed("invalid address"));
    let (source, _) = (ip(source)?, ip(to)?);
    let (port, _) = (port_v1(port)?, port_v1(to_port)?);
    Ok(SocketAddr::new(source.into(), port))
}

/// Parses a port in canonical form: no sign, no leading zeros.
fn port_v1(text: &str) -> Result<u16, Error> {
    text.parse().ok().filter(|port: &u16| port.to_string() == text).ok_or(Error::Malformed("invalid port"))
}

fn parse_v2(header: &[u8]) -> Result<Option<SocketAddr>, Error> {
    let (head, block) = header.split_at(V2_HEAD);
    match head[12] {
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(Error::Malformed("unknown version or command in a header of version 2")),
    }
    // Source and destination addresses, and a port for each.
    match head[13] {
        0x11 => Ok(Some(source_v2::<4>(block, 12)?)),
        0x21 => Ok(Some(source_v2::<16>(block, 36)?)),
        // Unspecified families, datagrams and Unix sockets carry no TCP source.
        family if family >> 4 <= 3 && family & 0xF <= 2 => Ok(None),
        _ => Err(Error::Malformed("unknown family or protocol")),
    }
}

fn source_v2<const N: usize>(block: &[u8], least: usize) -> Result<SocketAddr, Error>
where
    IpAddr: From<[u8; N]>,
{
    let addresses = block.get(..least).ok_or(Error::Malformed("too short for its addresses"))?;
    let source: [u8; N] = addresses[..N].try_into().expect("a block of addresses begins with the source");
    let port = u16::from_be_bytes([addresses[2 * N], addresses[2 * N + 1]]);
    Ok(SocketAddr::new(source.into(), port))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const PEER: &str = "10.0.0.1:1";

    fn trust() -> Trust {
        Trust::new(["10.0.0.0/8".parse().unwrap(), "127.0.0.0/8".parse().unwrap()])
    }

    fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        [V2_SIGNATURE, &[command, family], &length, block].concat()
    }

    fn v4_block() -> Vec<u8> {
        [&[7, 7, 7, 7, 10, 0, 0, 9][..], &50000_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat()
    }

    fn v6_block(source: &str) -> Vec<u8> {
        let source = source.parse::<Ipv6Addr>().unwrap().octets();
        [&source[..], &Ipv6Addr::LOCALHOST.octets(), &50000_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat()
    }

    fn tlvs() -> Vec<u8> {
        [&[0x04, 0, 3, 1, 2, 3, 0x02, 0, 4][..], b"name"].concat()
    }

    /// Valid headers, each with the client address.
    fn good() -> Vec<(Vec<u8>, &'static str)> {
        let with_tlvs = |block: Vec<u8>| [block, tlvs()].concat();
        let longest = vec![0; V2_MAX - V2_HEAD - 12];
        let padded = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_MAX - 16));
        vec![
            (b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443\r\n".to_vec(), "7.7.7.7:50000"),
            (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n".to_vec(), "255.255.255.255:65535"),
            (b"PROXY TCP4 1.1.1.1 1.1.1.1 0 1\r\n".to_vec(), "1.1.1.1:0"),
            (b"PROXY TCP6 2001:db8::1 ::1 50000 443\r\n".to_vec(), "[2001:db8::1]:50000"),
            (b"PROXY TCP6 ::ffff:7.7.7.7 ::1 50000 443\r\n".to_vec(), "7.7.7.7:50000"),
            (b"PROXY UNKNOWN\r\n".to_vec(), PEER),
            (b"PROXY UNKNOWN ffff:f...f:ffff 1 2\r\n".to_vec(), PEER),
            (padded.into_bytes(), PEER),
            (v2(0x21, 0x11, &v4_block()), "7.7.7.7:50000"),
            (v2(0x21, 0x11, &with_tlvs(v4_block())), "7.7.7.7:50000"),
            (v2(0x21, 0x11, &[v4_block(), longest].concat()), "7.7.7.7:50000"),
            (v2(0x21, 0x21, &v6_block("2001:db8::1")), "[2001:db8::1]:50000"),
            (v2(0x21, 0x21, &with_tlvs(v6_block("::ffff:7.7.7.7"))), "7.7.7.7:50000"),
            (v2(0x20, 0x00, &[]), PEER),
            (v2(0x20, 0x11, &v4_block()), PEER),
            (v2(0x20, 0xFF, &tlvs()), PEER),
            (v2(0x21, 0x00, &tlvs()), PEER),
            (v2(0x21, 0x12, &v4_block()), PEER),
            (v2(0x21, 0x31, &[0; 216]), PEER),
        ]
    }

    async fn of(bytes: &[u8]) -> Result<SocketAddr, Error> {
        read(&trust(), &mut &bytes[..], PEER.parse().unwrap()).await
    }

    #[tokio::test]
    async fn a_valid_header_is_read_and_no_byte_behind_it() {
        for (header, source) in good() {
            let sent = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            let mut io = &sent[..];
            let read = read(&trust(), &mut io, PEER.parse().unwrap()).await.unwrap();
            assert_eq!(read.to_string(), source, "{}", header.escape_ascii());
            assert_eq!(io, b"GET / HTTP/1.1\r\n", "{}", header.escape_ascii());
        }
    }

    #[tokio::test]
    async fn a_header_may_arrive_byte_by_byte() {
        for (header, source) in good() {
            // The pipe has room for the next byte only once the last one was read.
            let (mut io, mut other) = duplex(1);
            let send = async {
                other.write_all(&header).await.unwrap();
                other.write_all(b"!").await.unwrap();
                other
            };
            let (trust, peer) = (trust(), PEER.parse().unwrap());
            let (read, _other) = tokio::join!(read(&trust, &mut io, peer), send);
            assert_eq!(read.unwrap().to_string(), source, "{}", header.escape_ascii());
            assert_eq!(io.read_u8().await.unwrap(), b'!');
        }
    }

    #[tokio::test]
    async fn a_header_that_ends_early_is_refused() {
        for (header, _) in good() {
            for end in 0..header.len() {
                let ended = of(&header[..end]).await;
                assert!(matches!(ended, Err(Error::Io(_))), "{}: {ended:?}", header[..end].escape_ascii());
            }
        }
    }

    #[tokio::test]
    async fn an_invalid_header_is_refused() {
        let too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_MAX - 15));
        let bad: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client's hello".to_vec(),
            b"PROXY\tTCP4 7.7.7.7 10.0.0.9 50000 443\r\n".to_vec(),
            b"proxy TCP4 7.7.7.7 10.0.0.9 50000 443\r\n".to_vec(),
            b"PROXY TCP5 7.7.7.7 10.0.0.9 50000 443\r\n".to_vec(),
            b"PROXY TCP4  7.7.7.7 10.0.0.9 50000 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443 \r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 50000\r\n".to_vec(),
            b"PROXY TCP4 7.7.7 10.0.0.9 50000 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 ::1 50000 443\r\n".to_vec(),
            b"PROXY TCP6 7.7.7.7 ::1 50000 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 65536 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 +1 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 01 443\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 x\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443\nGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443\rGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY UNKNOWN\n\nGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY \r\nGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY UNKNOWN \xFF\r\n".to_vec(),
            too_long.into_bytes(),
            vec![b'P'; 200],
            [b"PROXY ".to_vec(), vec![b' '; 200]].concat(),
            v2(0x11, 0x11, &v4_block()),
            v2(0x22, 0x11, &v4_block()),
            v2(0x21, 0x41, &v4_block()),
            v2(0x21, 0x13, &v4_block()),
            v2(0x21, 0x11, &v4_block()[..11]),
            v2(0x21, 0x21, &v6_block("::1")[..35]),
            v2(0x21, 0x11, &[]),
            v2(0x21, 0x11, &vec![0; V2_MAX - V2_HEAD + 1]),
            v2(0x20, 0x00, &vec![0; usize::from(u16::MAX)]),
        ];
        for header in bad {
            let read = of(&header).await;
            assert!(matches!(read, Err(Error::Malformed(_))), "{}: {read:?}", header.escape_ascii());
        }
    }

    #[tokio::test]
    async fn nothing_is_read_from_an_untrusted_peer() {
        let mut io = &b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443\r\n"[..];
        let peer = "8.8.8.8:1".parse().unwrap();
        assert_eq!(read(&trust(), &mut io, peer).await.unwrap(), peer);
        assert!(io.starts_with(b"PROXY"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_header_misses_its_deadline() {
        let (mut io, mut other) = duplex(64);
        other.write_all(b"PROXY TCP4 7.7.7").await.unwrap();
        let begin = mcp_resume_base::clock::now();
        let read = read(&trust(), &mut io, PEER.parse().unwrap()).await;
        assert!(matches!(read, Err(Error::TimedOut)), "{read:?}");
        assert_eq!(mcp_resume_base::clock::now() - begin, HEADER_TIMEOUT);
    }

    #[tokio::test]
    async fn bytes_behind_the_header_stay_for_the_next_reader() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"PROXY TCP4 7.7.7.7 10.0.0.9 50000 443\r\nhello").await.unwrap();
        let (mut socket, peer) = listener.accept().await.unwrap();
        assert_eq!(read(&trust(), &mut socket, peer).await.unwrap().to_string(), "7.7.7.7:50000");
        let mut hello = [0; 5];
        socket.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
    }
}
