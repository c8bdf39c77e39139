//! Facts of a request's head, read in one pass over its headers.
//!
//! A search for a header by its name hashes the name, and most headers that the proxy knows are
//! absent from most requests. So every request is read once, and later steps ask its facts.

use http::header::{HeaderMap, HeaderValue};

use super::{Accept, BOTH_TYPES, ProtocolVersion, SessionId, accept, is_media_type};
use crate::client_address;

/// Facts of a request's head.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// Approximate bytes of the headers as they were sent: names, values, and four bytes of framing
    /// for each.
    pub size: usize,
    /// Forms of response that the client accepts; see [`accept`].
    pub accept: Accept,
    /// True if the body is `application/json`, with any parameters.
    pub is_json: bool,
    /// Revision in `MCP-Protocol-Version`; see [`ProtocolVersion::from_headers`].
    pub version: Option<ProtocolVersion>,
    /// Session in `Mcp-Session-Id`; see [`SessionId::from_headers`].
    pub session: Option<SessionId>,
    present: u16,
}

/// Headers whose presence is a fact. Several headers may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Present {
    /// `Authorization` or `X-API-Key`.
    Credential = 1,
    /// `Content-Length`.
    ContentLength = 1 << 1,
    /// `Idempotency-Key`.
    IdempotencyKey = 1 << 2,
    /// `Origin`.
    Origin = 1 << 3,
    /// `traceparent`.
    Trace = 1 << 4,
    /// `Upgrade`.
    Upgrade = 1 << 5,
    /// `Mcp-Resume-Owner` or `Mcp-Resume-Home`.
    Balancer = 1 << 6,
    /// A header of a proxy in front: `Via`, or one that
    /// [`describes_client`](client_address::describes_client).
    Proxy = 1 << 7,
    /// `Mcp-Session-Id` with a repeated value.
    RepeatedSession = 1 << 8,
    /// `DPoP`, the proof of a key for this one request (RFC 9449).
    Proof = 1 << 9,
    /// `Mcp-Resume-Epoch` or `Mcp-Resume-Hold`.
    Promise = 1 << 10,
}

impl RequestFacts {
    /// Reads the facts of a request with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut size = 0;
        let mut present = 0;
        let (mut accepted, mut content_type) = (Line::Absent, None);
        let (mut version, mut session) = (Line::Absent, Line::Absent);
        for (name, value) in headers {
            size += name.as_str().len() + value.len() + 4;
            match name.as_str() {
                "accept" => accepted.add(value),
                "content-type" => content_type = content_type.or(Some(value)),
                "mcp-protocol-version" => version.add(value),
                "mcp-session-id" => session.add(value),
                "authorization" | "x-api-key" => present |= Present::Credential as u16,
                "dpop" => present |= Present::Proof as u16,
                "content-length" => present |= Present::ContentLength as u16,
                "idempotency-key" => present |= Present::IdempotencyKey as u16,
                "origin" => present |= Present::Origin as u16,
                "traceparent" => present |= Present::Trace as u16,
                "upgrade" => present |= Present::Upgrade as u16,
                "mcp-resume-owner" | "mcp-resume-home" => present |= Present::Balancer as u16,
                "mcp-resume-epoch" | "mcp-resume-hold" => present |= Present::Promise as u16,
                "via" => present |= Present::Proxy as u16,
                _ if client_address::describes_client(name) => present |= Present::Proxy as u16,
                _ => {}
            }
        }
        let accept = match accepted {
            // The value that every SDK sends.
            Line::Only(value) if value == BOTH_TYPES => Accept { json: true, sse: true, names_sse: true },
            Line::Absent => Accept { json: true, sse: true, names_sse: false },
            Line::Only(_) | Line::Several => accept(headers),
        };
        let session = match session {
            Line::Absent => None,
            Line::Only(value) if !value.as_bytes().contains(&b' ') => value.to_str().ok().and_then(SessionId::parse),
            Line::Only(_) | Line::Several => {
                let repeated = SessionId::from_headers(headers);
                present |= if repeated.is_some() { Present::RepeatedSession as u16 } else { 0 };
                repeated
            }
        };
        Self {
            size,
            accept,
            is_json: content_type.is_some_and(|value| is_media_type(value, "application/json")),
            version: version.text().and_then(ProtocolVersion::parse),
            session,
            present,
        }
    }

    /// Returns true if the request has such a header.
    pub fn has(&self, header: Present) -> bool {
        self.present & header as u16 != 0
    }
}

/// Lines of one header.
enum Line<'a> {
    Absent,
    Only(&'a HeaderValue),
    Several,
}

impl<'a> Line<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Self::Absent => Self::Only(value),
            Self::Only(_) | Self::Several => Self::Several,
        };
    }

    /// Returns the only value, if it is text.
    fn text(self) -> Option<&'a str> {
        match self {
            Self::Only(value) => value.to_str().ok(),
            Self::Absent | Self::Several => None,
        }
    }
}
