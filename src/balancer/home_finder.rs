//! Queries for the home of a session, before a body is sent that is too long to be kept for a
//! second attempt.
//!
//! Pingora sends a request's body while it waits for the response, and keeps at most 64 KiB of it.
//! A replica that refuses a longer request, because its session has another home, has consumed the
//! body. So the request cannot follow its session. Such a request is preceded by a HEAD with its
//! headers alone (`Mcp-Resume-Locate`). The replica responds with the home if it would refuse the
//! request. Queries have connections of their own, which are kept. Absent: the choice of requests
//! that need a query, and of the next replica ([`super::proxy`]).

use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri, Version};
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{ErrorType, OrErr, Result};
use pingora_http::RequestHeader;
use tracing::debug;

use super::in_flight::InFlight;
use super::peer::Peers;
use mcp_resume_protocol::headers::{names, remove_hop_by_hop};
use mcp_resume_protocol::ids::Owner;

/// Limit for the wait for a response: longer than a replica waits for the end of a home's lease,
/// with the defaults of both.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Retention of an idle connection; shorter than a sidecar keeps it open.
const IDLE: Duration = Duration::from_secs(30);

/// Outcome of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Another replica is the home of the session, and is to get the request.
    Home(Owner),
    /// The replica of the query takes the request, or responds with the reason for a refusal.
    Here,
    /// The replica went down before it responded.
    Down,
    /// The replica has not responded in time.
    Silent,
}

/// Client of the replicas' queries for the homes of sessions.
pub struct HomeFinder {
    connector: Connector,
}

impl HomeFinder {
    /// Creates a finder without connections.
    pub fn new(peers: &Peers) -> Self {
        Self { connector: Connector::new(Some(ConnectorOptions::from_server_conf(peers.server_conf()))) }
    }

    /// Sends `query` to the replica of `in_flight`. A failure counts as [`Found::Here`]: the
    /// request itself then meets the failure, which is handled there.
    pub async fn find(&self, peer: &HttpPeer, in_flight: &InFlight, query: RequestHeader) -> Found {
        let home = tokio::select! {
            biased;
            () = in_flight.down().cancelled() => return Found::Down,
            home = tokio::time::timeout(TIMEOUT, self.query(peer, query)) => home,
        };
        match home {
            Ok(Ok(Some(home))) => Found::Home(home),
            Ok(Ok(None)) => Found::Here,
            Err(_) => Found::Silent,
            Ok(Err(error)) => {
                debug!(%error, "a replica could not be asked for the home of a session");
                Found::Here
            }
        }
    }

    async fn query(&self, peer: &HttpPeer, query: RequestHeader) -> Result<Option<Owner>> {
        let (mut session, _) = self.connector.get_http_session(peer).await?;
        session.write_request_header(Box::new(query)).await?;
        session.finish_request_body().await?;
        session.read_response_header().await?;
        let head = session.response_header().filter(|head| head.status == StatusCode::MISDIRECTED_REQUEST);
        let home = head.and_then(|head| Owner::parse(head.headers.get(names::MCP_RESUME_HOME)?.to_str().ok()?));
        while session.read_response_body().await?.is_some() {}
        self.connector.release_http_session(session, peer, Some(IDLE)).await;
        Ok(home)
    }
}

/// Returns the query for the session of the request with this head. The caller adds the headers
/// that describe the client, and the mark.
///
/// # Errors
/// If the request's target cannot be sent.
pub(super) fn query_for(head: &RequestHeader) -> Result<RequestHeader> {
    let mut parts = head.as_owned_parts();
    (parts.method, parts.version) = (Method::HEAD, Version::HTTP_11);
    let authority = parts.uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = authority {
        parts.headers.insert(HOST, host);
    }
    let target = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::builder().path_and_query(target).build().or_err(ErrorType::InvalidHTTPHeader, "a target")?;
    remove_hop_by_hop(&mut parts.headers);
    for of_body in [CONTENT_LENGTH, CONTENT_TYPE, CONTENT_ENCODING, EXPECT] {
        parts.headers.remove(of_body);
    }
    parts.headers.insert(names::MCP_RESUME_LOCATE, HeaderValue::from_static("home"));
    Ok(parts.into())
}
