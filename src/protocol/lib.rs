//! The sans-io core: bytes, values and `now` in; values, effects and deadlines out.
//!
//! Owned here: the codecs of the wire formats, the identifiers, the classification of requests and
//! the stream state machine. Deliberately absent: sockets, tasks, clocks and randomness. Nothing in
//! this folder imports a module of this crate outside it, so a short synchronous test can replay
//! every protocol bug.

pub mod access;
pub mod body_events;
pub mod bridge;
pub mod call_name;
pub mod certificate;
pub mod channel;
pub mod classify;
pub mod client_address;
pub mod client_names;
pub mod cluster;
pub mod dialect;
pub mod effects;
pub mod era;
pub mod error;
pub mod excerpt;
pub mod headers;
pub mod http1;
pub mod ids;
pub mod jsonrpc;
pub mod jwt;
pub mod lists;
pub mod named_rules;
pub mod origin;
pub mod progress;
pub mod promise;
pub mod protected_resource;
pub mod refusal;
pub mod request_ids;
pub mod routing;
pub mod session_cookies;
pub mod session_refusal;
pub mod sse;
pub mod stream;
pub mod stream_url;
pub mod tail;
pub mod tasks;
pub mod trace;
pub mod unicode_line_ends;
