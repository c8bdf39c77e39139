//! The other end of the admin listener: what the commands ask a process that runs.
//!
//! Each question is one request on a connection of its own. Absent: where the listener is (the configuration says so), and what an
//! answer means for the exit code.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::clock;
use crate::lifecycle::drain::X_DRAIN;

/// So long a probe may take. Whoever probes does so again soon, and asks no process that cannot say a word in this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the same question.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// So much of a probe's answer is read. Ours are a line.
const PROBE_BYTES: usize = 4096;

/// What can be asked about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether it runs.
    Live,
    /// Whether it takes new calls.
    Ready,
}

impl Probe {
    fn uri(self) -> Uri {
        match self {
            Probe::Live => Uri::from_static("/livez"),
            Probe::Ready => Uri::from_static("/readyz"),
        }
    }
}

/// What a process says to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether the answer is yes.
    pub good: bool,
    /// In its own words.
    pub said: String,
}

/// Why a process could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers there.
    #[error("no admin listener answers at {0}: {1}")]
    Unreachable(SocketAddr, #[source] io::Error),
    /// The connection ended before the answer had.
    #[error("the connection to {0} ended before the answer had: {1}")]
    Broken(SocketAddr, #[source] hyper::Error),
    /// It said nothing, or too much.
    #[error("{0} gives no answer to a probe")]
    Silent(SocketAddr),
    /// It is no admin listener, or it refuses.
    #[error("{0} answers {1}: is that the admin listener?")]
    Refused(SocketAddr, StatusCode),
}

/// Asks the process whose admin listener is at `address` to drain, and returns when it has.
///
/// # Errors
/// When it is not there, refuses, or ends before.
pub async fn drain(address: SocketAddr) -> Result<(), AskError> {
    let mut request = request(Uri::from_static("/drain"));
    request.headers_mut().insert(X_DRAIN, HeaderValue::from_static("1"));
    match send(address, request).await?.status() {
        StatusCode::OK => Ok(()),
        status => Err(AskError::Refused(address, status)),
    }
}

/// Asks the process whose admin listener is at `address` how it is; five seconds at most.
///
/// # Errors
/// When it is not there, does not answer in time, or answers as no admin listener does.
pub async fn health(address: SocketAddr, probe: Probe) -> Result<Health, AskError> {
    let answer = async {
        let response = send(address, request(probe.uri())).await?;
        let good = match response.status() {
            StatusCode::OK => true,
            StatusCode::SERVICE_UNAVAILABLE => false,
            status => return Err(AskError::Refused(address, status)),
        };
        let body = Limited::new(response.into_body(), PROBE_BYTES).collect().await;
        let body = body.map_err(|_| AskError::Silent(address))?.to_bytes();
        Ok(Health { good, said: String::from_utf8_lossy(&body).trim_end().to_owned() })
    };
    tokio::time::timeout(PROBE_TIMEOUT, answer).await.unwrap_or(Err(AskError::Silent(address)))
}

/// Asks again and again until the answer is yes, for `limit` at most, and returns the last answer.
///
/// # Errors
/// What [`health`] said last.
pub async fn wait_for(address: SocketAddr, probe: Probe, limit: Duration) -> Result<Health, AskError> {
    let until = clock::now() + limit;
    loop {
        let answer = health(address, probe).await;
        let next = clock::now() + ASK_AGAIN;
        if answer.as_ref().is_ok_and(|health| health.good) || next > until {
            return answer;
        }
        clock::sleep_until(next).await;
    }
}

fn request(uri: Uri) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    request
}

/// The response's head; its body goes on in a task of its own.
async fn send(address: SocketAddr, mut request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, AskError> {
    let host = HeaderValue::from_str(&address.to_string()).expect("an address is ASCII");
    request.headers_mut().insert(HOST, host);
    let stream = TcpStream::connect(address).await.map_err(|error| AskError::Unreachable(address, error))?;
    let broken = |error| AskError::Broken(address, error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(broken)
}
