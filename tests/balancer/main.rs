//! The balancer by its wire: real sockets, and sidecars that say what a test wants.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]

mod clients;
mod failover;
mod homes;
#[allow(dead_code)]
#[path = "../it/support/pki.rs"]
mod pki;
mod routing;
mod support;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::{Answer, Sidecar, answer, balance, get, header, ok, post, post_chunked, post_chunked_with, report};

const CALL: &str = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t"}}"#;

async fn three() -> [Sidecar; 3] {
    [Sidecar::start(1).await, Sidecar::start(2).await, Sidecar::start(3).await]
}

/// A sidecar that refuses connections is down at once, and one that is slow is not.
const STOPS: [(&str, &str); 3] =
    [("BALANCE__HEALTH_MS", "50"), ("BALANCE__HEALTH_TIMEOUT_MS", "30000"), ("BALANCE__UNHEALTHY_AFTER", "1")];

/// A sidecar counts as frozen after three of these times. A loaded machine delays a response by
/// less.
const FREEZES: [(&str, &str); 2] = [("BALANCE__HEALTH_MS", "50"), ("BALANCE__HEALTH_TIMEOUT_MS", "1500")];
