//! Messages of servers that are not on Streamable HTTP: their lines, and their routing to
//! responses.
//!
//! A channel carries JSON-RPC messages in order, both ways, without event IDs and without replay.
//! Owned here: the [lines](line) of the [stdio transport], and the [routing] of a server's messages
//! to the responses of calls. Further the [ids] of callers that share a channel, the [shared
//! state](shared_state) of sessions, and the [headers](envelope), which such a server does not see.
//! Absent: processes, queues, names of sessions.
//!
//! [stdio transport]: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

pub mod envelope;
pub mod ids;
pub mod line;
pub mod routing;
pub mod second_id;
mod server_requests;
pub mod shared_state;
#[cfg(test)]
mod tests;
