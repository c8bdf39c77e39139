//! A client and a server that speak HTTP/1.1 or HTTP/2, in TLS or not, by way of hyper: for what
//! the byte-exact kit cannot say.

use super::pki::Pki;
use super::sse::{Frame, Parser};
use super::within;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame as BodyFrame, Incoming};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1 as server1, http2 as server2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// HTTP version of one side of the proxy, with or without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http1Tls,
    Http2,
    Http2Tls,
}

impl HttpVersion {
    pub(crate) const ALL: [HttpVersion; 4] =
        [HttpVersion::Http1, HttpVersion::Http1Tls, HttpVersion::Http2, HttpVersion::Http2Tls];

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, HttpVersion::Http1Tls | HttpVersion::Http2Tls)
    }

    pub(crate) fn is_http2(self) -> bool {
        matches!(self, HttpVersion::Http2 | HttpVersion::Http2Tls)
    }

    fn scheme(self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    fn alpn(self) -> &'static str {
        if self.is_http2() { "h2" } else { "http/1.1" }
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

type Failure = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Failure>;

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

// ── the client ───────────────────────────────────────────────────────────────────────────────────

/// One downstream connection.
pub(crate) struct TestClient {
    addr: SocketAddr,
    version: HttpVersion,
    sender: Sender,
    connection: JoinHandle<()>,
    /// Certificate that the proxy presented.
    pub(crate) certificate: Option<CertificateDer<'static>>,
}

enum Sender {
    Http1(client1::SendRequest<Body>),
    Http2(client2::SendRequest<Body>),
}

impl TestClient {
    pub(crate) async fn connect(addr: SocketAddr, version: HttpVersion, pki: &Pki) -> TestClient {
        let tcp = TcpStream::connect(addr).await.expect("a connection");
        // Dropping it is a reset.
        tcp.set_zero_linger().expect("an open socket");
        tcp.set_nodelay(true).expect("an open socket");
        let mut certificate = None;
        let wire: Box<dyn Wire> = if version.is_tls() {
            let connector = TlsConnector::from(pki.client(&[version.alpn()]));
            let name = ServerName::try_from("localhost").expect("a name");
            let tls = within("the handshake", connector.connect(name, tcp)).await.expect("TLS");
            let session = tls.get_ref().1;
            assert_eq!(session.alpn_protocol(), Some(version.alpn().as_bytes()));
            let shown = session.peer_certificates().expect("a certificate");
            certificate = Some(shown[0].clone().into_owned());
            Box::new(tls)
        } else {
            Box::new(tcp)
        };
        let io = TokioIo::new(wire);
        let (sender, connection) = if version.is_http2() {
            let (sender, connection) = client2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
            (Sender::Http2(sender), tokio::spawn(async { drop(connection.await) }))
        } else {
            let (sender, connection) = client1::handshake(io).await.expect("HTTP/1.1");
            (Sender::Http1(sender), tokio::spawn(async { drop(connection.await) }))
        };
        TestClient { addr, version, sender, connection, certificate }
    }

    /// Sends a request with the headers of every SDK client; the answer comes when it is waited
    /// for.
    pub(crate) fn send(&mut self, method: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> PendingResponse {
        self.send_to("/mcp", method, headers, body)
    }

    /// Sends a request to `path` instead of the endpoint.
    pub(crate) fn send_to(
        &mut self,
        path: &str,
        method: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> PendingResponse {
        let body = body.into();
        let mut request = Request::builder().method(method).header("accept", "application/json, text/event-stream");
        request = match self.version.is_http2() {
            true => request.uri(format!("{}://{}{path}", self.version.scheme(), self.addr)),
            false => request.uri(path).header("host", self.addr.to_string()),
        };
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(whole(body)).expect("a request");
        let sending: Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>> = match &mut self.sender {
            Sender::Http1(sender) => Box::pin(sender.send_request(request)),
            Sender::Http2(sender) => Box::pin(sender.send_request(request)),
        };
        PendingResponse(sending)
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) async fn reset(self) {
        self.connection.abort();
        let _ = self.connection.await;
    }

    /// Waits until the proxy has closed the connection.
    pub(crate) async fn closed(self) {
        within("the proxy closes the connection", self.connection).await.expect("it ends well");
    }
}

/// An answer that is awaited. Dropped, an HTTP/2 stream is reset.
pub(crate) struct PendingResponse(Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>);

impl PendingResponse {
    /// The head.
    pub(crate) async fn head(self) -> TestResponse {
        let (head, body) = within("the head of an answer", self.0).await.expect("an answer").into_parts();
        TestResponse { head, body, parser: Parser::default(), last_id: String::new() }
    }
}

/// An answer whose head has come. Dropped, an HTTP/2 stream is reset.
pub(crate) struct TestResponse {
    pub(crate) head: http::response::Parts,
    body: Incoming,
    parser: Parser,
    pub(crate) last_id: String,
}

impl TestResponse {
    /// The next piece of the body, as it was framed.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        let frame = within("a piece of the body", self.body.frame()).await?;
        Some(frame.expect("an unbroken body").into_data().unwrap_or_default())
    }

    /// The next SSE frame but comments; `None` at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parser.next() {
                if let Some(id) = &frame.id {
                    self.last_id.clone_from(id);
                }
                if frame.is_comment() {
                    continue;
                }
                return Some(frame);
            }
            let mut piece = self.piece().await?.to_vec();
            self.parser.push(&mut piece);
        }
    }

    /// The empty first event.
    pub(crate) async fn prime(&mut self) {
        assert_eq!(self.head.status, 200, "{:?}", self.head);
        let frame = self.frame().await.expect("a first event");
        assert!(!frame.is_event() && frame.id.is_some(), "{frame:?}");
    }

    /// The payload of the next event.
    pub(crate) async fn event(&mut self) -> Vec<u8> {
        let frame = self.frame().await.expect("an event");
        assert!(frame.is_event(), "{frame:?}");
        frame.bytes().to_vec()
    }

    /// The payloads to the end.
    pub(crate) async fn events(&mut self) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        while let Some(frame) = self.frame().await {
            if frame.is_event() {
                events.push(frame.bytes().to_vec());
            }
        }
        events
    }

    /// A whole body.
    pub(crate) async fn body(mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend_from_slice(&piece);
        }
        body
    }
}

// ── the server ───────────────────────────────────────────────────────────────────────────────────

/// A scripted MCP server.
pub(crate) struct TestServer {
    addr: SocketAddr,
    version: HttpVersion,
    /// Version spoken on connections accepted from now on.
    accepted_version: Arc<Mutex<HttpVersion>>,
    accepted: Arc<AtomicUsize>,
    asked: mpsc::UnboundedReceiver<TestRequest>,
}

impl TestServer {
    pub(crate) async fn start(version: HttpVersion, pki: &Pki) -> TestServer {
        TestServer::start_asking(version, pki, false).await
    }

    /// One that takes so many requests at a time on an HTTP/2 connection.
    pub(crate) async fn start_narrow(version: HttpVersion, pki: &Pki, streams: u32) -> TestServer {
        TestServer::listening(version, pki, false, Some(streams)).await
    }

    /// One that wants certificates from its clients where `asks` says so.
    pub(crate) async fn start_asking(version: HttpVersion, pki: &Pki, asks: bool) -> TestServer {
        TestServer::listening(version, pki, asks, None).await
    }

    async fn listening(version: HttpVersion, pki: &Pki, asks: bool, streams: Option<u32>) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let acceptors = HttpVersion::ALL
            .map(|version| (version, version.is_tls().then(|| TlsAcceptor::from(pki.server(&[version.alpn()], asks)))));
        let (sender, asked) = mpsc::unbounded_channel();
        let (accepted_version, accepted) = (Arc::new(Mutex::new(version)), Arc::<AtomicUsize>::default());
        let (says, counts) = (accepted_version.clone(), accepted.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                counts.fetch_add(1, Ordering::Relaxed);
                let now = *says.lock().expect("no holder panics");
                let acceptor = acceptors.iter().find(|(version, _)| *version == now).and_then(|(_, it)| it.clone());
                tokio::spawn(converse(tcp, acceptor, now, streams, sender.clone()));
            }
        });
        TestServer { addr, version, accepted_version, accepted, asked }
    }

    /// Has new connections speak another version.
    pub(crate) fn switch_to(&self, version: HttpVersion) {
        *self.accepted_version.lock().expect("no holder panics") = version;
    }

    /// Returns the number of accepted connections.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://localhost:{}/mcp", self.version.scheme(), self.addr.port())
    }

    /// The authority that the proxy knows it by.
    pub(crate) fn authority(&self) -> String {
        format!("localhost:{}", self.addr.port())
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> TestRequest {
        within("a request reaches the upstream", self.asked.recv()).await.expect("the listener holds a sender")
    }

    /// Returns true if no request waits to be read.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }
}

async fn converse(
    tcp: TcpStream,
    acceptor: Option<TlsAcceptor>,
    version: HttpVersion,
    streams: Option<u32>,
    asked: mpsc::UnboundedSender<TestRequest>,
) -> Option<()> {
    let _ = tcp.set_nodelay(true);
    // Dropping it is a reset.
    tcp.set_zero_linger().ok()?;
    let wire: Box<dyn Wire> = match acceptor {
        Some(acceptor) => Box::new(acceptor.accept(tcp).await.ok()?),
        None => Box::new(tcp),
    };
    let (cut, cutting) = mpsc::channel::<Kept>(1);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (asked, cut) = (asked.clone(), cut.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(_) => return std::future::pending().await,
            };
            let (reply, replied) = oneshot::channel();
            let _ = asked.send(TestRequest { head, body, reply, cut });
            match replied.await {
                Ok(response) => response,
                Err(_) => std::future::pending().await,
            }
        }
    });
    let io = TokioIo::new(wire);
    let mut cutting = cutting;
    tokio::select! {
        _kept = cutting.recv() => {}
        _ = async {
            match version.is_http2() {
                true => {
                    let mut http2 = server2::Builder::new(TokioExecutor::new());
                    if streams.is_some() {
                        http2.max_concurrent_streams(streams);
                    }
                    http2.serve_connection(io, service).await
                }
                false => server1::Builder::new().serve_connection(io, service).await,
            }
        } => {}
    }
    Some(())
}

/// Value that must live as long as the connection.
type Kept = Box<dyn Send>;

/// A request that reached the server.
pub(crate) struct TestRequest {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
    reply: oneshot::Sender<Result<Response<Body>, h2::Error>>,
    cut: mpsc::Sender<Kept>,
}

impl TestRequest {
    pub(crate) fn json(self, body: impl Into<Bytes>) {
        let response = Response::builder().header("content-type", "application/json").body(whole(body));
        let _ = self.reply.send(Ok(response.expect("a response")));
    }

    /// Resets the HTTP/2 stream before the head.
    pub(crate) fn reset_stream(self, reason: h2::Reason) {
        let _ = self.reply.send(Err(reason.into()));
    }

    /// Answers, and begins an event stream.
    pub(crate) fn sse(self) -> EventStream {
        let (pieces, body) = mpsc::unbounded_channel();
        let body = Pieces(body).boxed_unsync();
        let response = Response::builder().header("content-type", "text/event-stream").body(body);
        let _ = self.reply.send(Ok(response.expect("a response")));
        EventStream { pieces, cut: self.cut }
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) fn reset(self) {
        let _ = self.cut.try_send(Box::new(self.reply));
    }
}

/// An event stream under way. Dropped, it has ended.
pub(crate) struct EventStream {
    pieces: mpsc::UnboundedSender<Result<BodyFrame<Bytes>, Failure>>,
    cut: mpsc::Sender<Kept>,
}

impl EventStream {
    pub(crate) fn event(&self, data: impl AsRef<str>) {
        let event = format!("event: message\ndata: {}\n\n", data.as_ref());
        let _ = self.pieces.send(Ok(BodyFrame::data(event.into())));
    }

    /// The last event, then the end.
    pub(crate) fn finish(self, data: impl AsRef<str>) {
        self.event(data);
    }

    /// Breaks the connection with a TCP reset.
    pub(crate) fn reset(self) {
        let _ = self.cut.try_send(Box::new(self.pieces));
    }

    /// Resets the HTTP/2 stream alone.
    pub(crate) fn reset_stream(self, reason: h2::Reason) {
        let _ = self.pieces.send(Err(h2::Error::from(reason).into()));
    }

    /// Waits until the proxy has given the call up.
    pub(crate) async fn closed(&self) {
        within("the proxy gives the call up", self.pieces.closed()).await;
    }
}

struct Pieces(mpsc::UnboundedReceiver<Result<BodyFrame<Bytes>, Failure>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Bytes>, Failure>>> {
        self.0.poll_recv(cx)
    }
}

/// A listener that proves itself by `identity` and asks clients for nothing.
pub(crate) fn listen_tls(identity: mcp_resume::config::KeyPair) -> mcp_resume::config::ListenTls {
    mcp_resume::config::ListenTls { identity, client_ca: None }
}

/// A configuration change for what the two sides speak.
pub(crate) fn with_versions(
    down: HttpVersion,
    up: HttpVersion,
    pki: &Pki,
) -> impl FnOnce(&mut mcp_resume::config::Config) + use<> {
    let (pair, ca) = (pki.pair(), pki.ca());
    move |config| {
        config.listen.tls = down.is_tls().then_some(listen_tls(pair));
        config.upstream.http2 = up == HttpVersion::Http2;
        config.upstream.tls.ca = up.is_tls().then_some(ca);
    }
}
