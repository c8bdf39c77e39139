//! Client of the admin listener: requests of the commands to a running process.
//!
//! Each request has a connection of its own. Absent: the address of the listener (configuration),
//! and the exit code (binary).

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

/// Timeout of a probe. Probes are repeated soon, and a process that does not respond in time is not
/// healthy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a probe is repeated.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes that are read of a probe's response; the admin listener sends a line.
const PROBE_BYTES: usize = 4096;

/// Probes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The process runs.
    Live,
    /// The process takes new calls.
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

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// True if the probe succeeded.
    pub is_good: bool,
    /// Text of the response.
    pub text: String,
}

/// Cause of a request that failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the address.
    #[error("no admin listener answers at {0}: {1}")]
    Unreachable(SocketAddr, #[source] io::Error),
    /// The connection ended before the response.
    #[error("the connection to {0} ended before the response: {1}")]
    Broken(SocketAddr, #[source] hyper::Error),
    /// The response is too late or too long.
    #[error("{0} gives no answer to a probe")]
    Silent(SocketAddr),
    /// The process is not an admin listener, or refuses the request.
    #[error("{0} answers {1}: is that the admin listener?")]
    Refused(SocketAddr, StatusCode),
}

/// Drains the process with the admin listener at `address`, and returns when it has drained.
///
/// # Errors
/// If the process cannot be reached, refuses, or ends before.
pub async fn drain(address: SocketAddr) -> Result<(), AskError> {
    let mut request = request(Uri::from_static("/drain"));
    request.headers_mut().insert(X_DRAIN, HeaderValue::from_static("1"));
    match send(address, request).await?.status() {
        StatusCode::OK => Ok(()),
        status => Err(AskError::Refused(address, status)),
    }
}

/// Probes the process with the admin listener at `address`, for five seconds at most.
///
/// # Errors
/// If the process cannot be reached, does not respond in time, or is not an admin listener.
pub async fn health(address: SocketAddr, probe: Probe) -> Result<ProbeResult, AskError> {
    let response = async {
        let response = send(address, request(probe.uri())).await?;
        let is_good = match response.status() {
            StatusCode::OK => true,
            StatusCode::SERVICE_UNAVAILABLE => false,
            status => return Err(AskError::Refused(address, status)),
        };
        let body = Limited::new(response.into_body(), PROBE_BYTES).collect().await;
        let body = body.map_err(|_| AskError::Silent(address))?.to_bytes();
        Ok(ProbeResult { is_good, text: String::from_utf8_lossy(&body).trim_end().to_owned() })
    };
    tokio::time::timeout(PROBE_TIMEOUT, response).await.unwrap_or(Err(AskError::Silent(address)))
}

/// Repeats a probe until it succeeds, for `limit` at most, and returns the last result.
///
/// # Errors
/// The last error of [`health`].
pub async fn wait_for(address: SocketAddr, probe: Probe, limit: Duration) -> Result<ProbeResult, AskError> {
    let until = clock::now() + limit;
    loop {
        let response = health(address, probe).await;
        let next = clock::now() + PROBE_INTERVAL;
        if response.as_ref().is_ok_and(|health| health.is_good) || next > until {
            return response;
        }
        clock::sleep_until(next).await;
    }
}

fn request(uri: Uri) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    request
}

/// Returns the head of the response. A task of its own drives the connection, and so the body.
async fn send(address: SocketAddr, mut request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, AskError> {
    let host = HeaderValue::from_str(&address.to_string()).expect("an address is ASCII");
    request.headers_mut().insert(HOST, host);
    let stream = TcpStream::connect(address).await.map_err(|error| AskError::Unreachable(address, error))?;
    let broken = |error| AskError::Broken(address, error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(broken)
}
