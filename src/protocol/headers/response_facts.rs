//! Facts of a response's head, read in one pass over its headers.

use http::header::HeaderMap;

use super::{SSE, describes_body, is_always_hop_by_hop, is_json_to_clients, is_media_type};

/// Facts of a response's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseFacts {
    /// True if clients read the body as JSON; see [`is_read_as_json`](super::is_read_as_json).
    pub is_read_as_json: bool,
    /// True if the body is `text/event-stream`, with any parameters.
    pub is_sse: bool,
    /// True if there is any header that [`remove_hop_by_hop`](super::remove_hop_by_hop) may remove.
    pub has_hop_by_hop: bool,
    /// True if there is a `Content-Encoding`.
    pub has_encoding: bool,
    /// True if there is any header that [`remove_body_facts`](super::remove_body_facts) removes.
    pub describes_body: bool,
    /// True if there is a `Location`.
    pub has_location: bool,
    /// True if there is an `Access-Control-Allow-Origin`.
    pub has_cors: bool,
}

impl ResponseFacts {
    /// Reads the facts of a response with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut facts = Self::default();
        let mut has_content_type = false;
        for (name, value) in headers {
            match name.as_str() {
                // The first of several counts.
                "content-type" if !std::mem::replace(&mut has_content_type, true) => {
                    facts.is_read_as_json = is_json_to_clients(value);
                    facts.is_sse = is_media_type(value, SSE);
                }
                "location" => facts.has_location = true,
                "access-control-allow-origin" => facts.has_cors = true,
                "content-encoding" => facts.has_encoding = true,
                name if describes_body(name) => facts.describes_body = true,
                _ => facts.has_hop_by_hop |= is_always_hop_by_hop(name),
            }
        }
        facts
    }
}
