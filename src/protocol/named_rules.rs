//! Rules for a client that its name has chosen.
//!
//! A client names itself once, when it opens its session. The rules are a part of the session's
//! record, and of the IDs of sessions that the proxy issues. They choose how the client gets what
//! is its own, and give no permission. Absent: the lists of names (`client_names.rs`, and the
//! configuration).

use serde::{Deserialize, Serialize};

/// Rules for one client. By default none applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedRules {
    /// True if the client gets no progress of the proxy's own.
    #[serde(rename = "no_beats", skip_serializing_if = "std::ops::Not::not")]
    pub has_no_beats: bool,
    /// True if the session's GET stream carries responses that the client does not resume.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_get: bool,
    /// True if the client counts broken connections, so that the first response after a break ends
    /// in order.
    #[serde(rename = "graceful", skip_serializing_if = "std::ops::Not::not")]
    pub counts_breaks: bool,
}
