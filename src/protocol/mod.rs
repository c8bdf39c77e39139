//! The sans-io core: bytes, values and `now` in; values, effects and deadlines out.
//!
//! Owned here: the codecs of what crosses the wire, the identifiers, the classification of requests and the stream state
//! machine. Absent, on purpose: sockets, tasks, clocks and randomness; nothing here imports anything else of this crate, so
//! that every protocol bug can be replayed by a short synchronous test.

pub mod access;
pub mod call_name;
pub mod certificate;
pub mod classify;
pub mod client;
pub mod cluster;
pub mod dialect;
pub mod error;
pub mod headers;
pub mod http1;
pub mod ids;
pub mod jsonrpc;
pub mod jwt;
pub mod routing;
pub mod sse;
pub mod stream;
pub mod stream_url;
pub mod trace;
